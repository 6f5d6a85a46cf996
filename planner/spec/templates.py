"""Commented study files to start from; each runs on the simulator until its backend is changed."""

from __future__ import annotations

import json

from planner.errors import InputError
from planner.spec.checks import unknown

_HEADER = """\
# A study for scaling-planner.  Check it with `planner check FILE`, run it with `planner run FILE`.
# Sizes and costs are plain numbers in the units you name; the planner takes logarithms itself.

[study]
name = {name}
seed = 0                      # of every random choice; same seed, same decisions
"""

_BACKEND = """
# Where runs happen.  The simulator answers from a hidden law at once and costs nothing: it shows what the planner
# would do.  Replace it to run for real:
#
#   [backend]
#   kind = "local"            # processes on this machine, one per GPU
#   command = {command}
#
# The command writes {{"response": ..., "cost": ...}} to the file that the environment variable PLANNER_RESULT names.
[backend]
kind = "simulator"
truth = "{truth}"
{options}
# The ledger of runs is an SQLite file beside this one; several machines can share a PostgreSQL database instead.
# [store]
# url = "postgresql://user@host/database"
"""

_LANGUAGE_MODEL = """
# What is measured at the end of a run.
[response]
name = "loss"
unit = "nats per token"
goal = "minimise"
link = "identity"             # laws are written for the loss itself
lower = 0                     # what it cannot fall below, whatever the scale
expect = [1.5, 6.0]           # roughly where results will lie, before any run

# What a run can be given more of.  Roles tell the laws what an axis means; `low` and `high` bound the runs you would
# pay for, predictions may go beyond.
[[axes]]
name = "N"
unit = "parameters"
role = "parameters"
low = 1e7
high = 1e9

[[axes]]
name = "D"
unit = "tokens"
role = "tokens"
low = 2e8
high = 2e10

# Contexts with exponents of their own; what they have in common is learned from all of them.
[[domains]]
name = "web"
factors = {{ corpus = "web" }}

[[domains]]
name = "code"
factors = {{ corpus = "code" }}

# What a run is charged: a sum of terms, coefficient * N^power * D^power.  Here 6 N D.
[cost]
unit = "FLOP"
terms = [{{ coefficient = 6, powers = {{ N = 1, D = 1 }} }}]

[budget]
total = 2e20                  # for the whole study, in the cost's unit
per_run_max = 2e19            # no single run may cost more

# What you want to know.  Runs are chosen for these.
[[targets]]
kind = "recipe"               # the best N and D for so much compute
budgets = [1e21, 1e22]

[[targets]]
kind = "prediction"           # the loss of a run that nobody has made
points = [{{ N = 7e9, D = 1.4e11, domain = "web" }}]

# Laws to average over.  "auto" takes all that fit the axes' roles.
[laws]
use = "auto"
"""

_AGENTIC_DATA = """
# The share of held-out tasks solved by an agent after reinforcement learning, measured on a fixed number of trials.
# With link = "neg_log" the laws are written for -log(success rate), which falls like a power of every axis.
[response]
name = "success_rate"
goal = "maximise"
link = "neg_log"
noise = "binomial"
trials = 500                  # or the name of the column that holds them
expect = [0.1, 0.8]

[[axes]]
name = "N"
unit = "parameters"
role = "parameters"
values = [6e8, 1.7e9, 4e9, 8e9]   # only these models exist

# A control: it has no price and is not scaled, but set, and scales what all that is bought is worth (scaled_powers).
[[axes]]
name = "reward_density"
unit = "rewards per step"
role = "reward_density"
values = [0.1, 0.3, 1.0]

# Where the domains have worlds (repositories, sites), write two axes in its place, here and in [cost]:
#
#   [[axes]]
#   name = "worlds"
#   role = "worlds"
#   low = 2
#   high = 64
#   integer = true
#
#   [[axes]]
#   name = "structures"         # different environments within a world; then powers = {{ worlds = 1, structures = 1 }}
#   role = "structures"
#   low = 2
#   high = 64
#   integer = true
#
# An axis is one of all domains: those with worlds and those without are two studies.
[[axes]]
name = "environments"
role = "environments"
low = 4
high = 384
integer = true

# Another way to buy environments.  None may be bought; `low` is the least one would buy.  `discount` is what one is
# worth beside as many real ones, `break_even` the number per real one at which they are worth nothing together: guesses
# with their errors, here for AWM as He et al. 2026 measured it.  GenEnv: [0.66, 0.06], 3.80 dollar.  Of tasks (add an
# axis with source_of = "tasks"): AutoPlay [0.54, 0.04] and [4, 1]; SCA [0.51, 0.05]; RLVE [0.57, 0.04].  Of
# trajectories: SWiRL [0.34, 0.06] and [1.1, 0.1].
[[axes]]
name = "synthetic"
source_of = "environments"
low = 4
high = 2000
integer = true
discount = [0.71, 0.15]
break_even = [8.5, 3]

[[axes]]
name = "tasks"
role = "tasks"
low = 160
high = 20480
integer = true

[[axes]]
name = "trajectories"
unit = "per task"
role = "trajectories"
low = 1
high = 48
integer = true

# Model, algorithm and task domain, crossed: exponents are shared by what domains have in common.
[[domains]]
name = "qwen-grpo-math"
factors = {{ family = "qwen", algorithm = "GRPO", task = "math" }}

[[domains]]
name = "qwen-ppo-math"
factors = {{ family = "qwen", algorithm = "PPO", task = "math" }}

[[domains]]
name = "qwen-grpo-swe"
factors = {{ family = "qwen", algorithm = "GRPO", task = "swe" }}

# What a run is charged: a sum of terms in axes and constants, all turned into one unit.  Rollouts and training are
# bilinear in N and trajectories; failed rollouts are paid but not kept, and accelerators are not always busy.
[cost]
unit = "GPU-hour"
conversions = {{ dollar = 0.5, second = 2.8e-4, FLOP = 2.8e-19 }}   # a GPU does 1e15 FLOP a second

[[cost.terms]]
name = "construction"
unit = "dollar"
coefficient = 20
powers = {{ environments = 1 }}

[[cost.terms]]
name = "synthesis"
unit = "dollar"
coefficient = 4.1
powers = {{ synthetic = 1 }}

[[cost.terms]]
name = "tasks"
unit = "dollar"
coefficient = 0.02
powers = {{ tasks = 1 }}

[[cost.terms]]
name = "rollouts and training"
unit = "FLOP"
coefficient = 8
powers = {{ N = 1, tasks = 1, trajectories = 1, tokens = 1, kept = -1, utilisation = -1 }}

[[cost.terms]]
name = "environment latency"
unit = "second"
coefficient = 0.05            # twenty environments share what a GPU is charged for
powers = {{ tasks = 1, trajectories = 1, horizon = 1, latency = 1, kept = -1 }}

[[cost.terms]]
name = "verifier"
unit = "second"
coefficient = 0.05
powers = {{ tasks = 1, trajectories = 1, verifier = 1, kept = -1 }}

# Drivers that differ between domains: steps of an episode, tokens of a trajectory, seconds of a call and of a check,
# the share of rollouts that do not fail, the share of time that accelerators work.
[cost.constants]
horizon = {{ qwen-grpo-math = 3.4, qwen-ppo-math = 3.4, qwen-grpo-swe = 18.2 }}
tokens = {{ qwen-grpo-math = 2600, qwen-ppo-math = 2600, qwen-grpo-swe = 11400 }}
latency = {{ qwen-grpo-math = 0.9, qwen-ppo-math = 0.9, qwen-grpo-swe = 6.3 }}
verifier = {{ qwen-grpo-math = 0.4, qwen-ppo-math = 0.4, qwen-grpo-swe = 41 }}
kept = {{ qwen-grpo-math = 0.93, qwen-ppo-math = 0.93, qwen-grpo-swe = 0.81 }}
utilisation = {{ qwen-grpo-math = 0.61, qwen-ppo-math = 0.61, qwen-grpo-swe = 0.38 }}

[budget]
total = 30000
per_run_max = 4000

[[targets]]
kind = "recipe"               # how to split a large budget over all axes
budgets = [2e4]

[[targets]]
kind = "source"               # what synthetic environments are worth
axis = "synthetic"

# Additive terms, scaled by the density of rewards; terms that share what is left to learn; and environments without
# which tasks do not matter.  Without a control, write sum_of_powers in place of scaled_powers.
[laws]
use = ["scaled_powers", "power_of_sum", "gated_powers"]
"""

_RL_SAMPLING = """
# Mean validation reward after reinforcement learning with verifiable rewards.
[response]
name = "reward"
goal = "maximise"
link = "identity"
lower = 0
upper = 1
expect = [0.2, 0.8]

# Compute = problems per batch x rollouts per problem x updates.
[[axes]]
name = "rollouts"
unit = "per problem"
role = "rollouts"
values = [8, 16, 32, 64, 128, 256, 512, 1024, 2048]

[[axes]]
name = "problems"
unit = "per batch"
role = "problems"
values = [32, 64, 128, 256, 512, 1024]

[[axes]]
name = "updates"
unit = "steps"
role = "updates"
low = 20
high = 1000
step = 20

# Batches that fit.  With low = high, the batch is fixed: problems = batch / rollouts.
[[limits]]
powers = {{ rollouts = 1, problems = 1 }}
high = 65536

# Handed to the trainer beside the axes and not chosen: the learning rate follows the square root of the batch.
[[derived]]
name = "learning_rate"
coefficient = 3.1e-8          # 1e-6 at a batch of 1024
powers = {{ rollouts = 0.5, problems = 0.5 }}

# Problem sets of different difficulty prefer different numbers of rollouts.
[[domains]]
name = "easy"
factors = {{ difficulty = "easy" }}

[[domains]]
name = "hard"
factors = {{ difficulty = "hard" }}

[cost]
unit = "rollouts"
terms = [{{ coefficient = 1, powers = {{ rollouts = 1, problems = 1, updates = 1 }} }}]

[budget]
total = 4e7
per_run_max = 1e7

[[targets]]
kind = "recipe"               # the best rollouts, problems and updates for so many rollouts in all
budgets = [6e7]

# A ceiling and a middle for each number of rollouts, one curve for all, and a free quadratic that neither needs.
[laws]
use = ["rollout_sigmoid", "sigmoid", "exp_quadratic"]
"""

_TOOL_ENVIRONMENTS = """
# The share of tool-use tasks solved by a model trained on synthetic environments.
[response]
name = "success_rate"
goal = "maximise"
link = "neg_log"              # laws are written for -log(success rate)
noise = "binomial"
trials = 500
expect = [0.1, 0.8]

[[axes]]
name = "tools"
role = "tools"
low = 10
high = 1000
integer = true

[[axes]]
name = "databases"
role = "databases"
low = 2
high = 200
integer = true

[[axes]]
name = "tasks"
role = "tasks"
low = 500
high = 50000
integer = true

# Scales what every other axis is worth.
[[axes]]
name = "complexity"
unit = "calls per task"
role = "complexity"
low = 1
high = 8
integer = true

# Models of four sizes, each with a law of its own.
[[domains]]
name = "0.6B"
factors = {{ size = "0.6B" }}

[[domains]]
name = "1.7B"
factors = {{ size = "1.7B" }}

[[domains]]
name = "4B"
factors = {{ size = "4B" }}

[[domains]]
name = "8B"
factors = {{ size = "8B" }}

# Longer tasks are dearer to write, check and train on, and larger models to train; tools and databases are built once.
[cost]
unit = "dollar"
terms = [
  {{ name = "training", coefficient = 0.001, powers = {{ tasks = 1, complexity = 1, size = 1 }} }},
  {{ name = "writing", coefficient = 0.004, powers = {{ tasks = 1, complexity = 1 }} }},
  {{ name = "tools", coefficient = 0.5, powers = {{ tools = 1 }} }},
  {{ name = "databases", coefficient = 2, powers = {{ databases = 1 }} }},
]
constants = {{ size = {{ "0.6B" = 0.6, "1.7B" = 1.7, "4B" = 4, "8B" = 8 }} }}

[budget]
total = 10000
per_run_max = 1000

[[targets]]
kind = "recipe"
budgets = [1e4]

[laws]
use = ["scaled_powers", "sum_of_powers", "power_of_sum"]
"""

_TEMPLATES = {
    "language-model": (_LANGUAGE_MODEL, "chinchilla", ("--parameters={N:.0f}", "--tokens={D:.0f}")),
    "agentic-data": (_AGENTIC_DATA, "agentic", ("--model-size={N:.0f}", "--tasks={tasks}", "--dense={reward_density}")),
    "rl-sampling": (
        _RL_SAMPLING,
        "rl_sampling",
        ("--rollouts={rollouts}", "--updates={updates}", "--learning-rate={learning_rate}"),
    ),
    "tool-environments": (_TOOL_ENVIRONMENTS, "tools", ("--tools={tools}", "--tasks={tasks}")),
}

# What the simulator has to be told besides: the hidden worth of synthetic environments.
_OPTIONS = {
    "agentic-data": """\
sources = { synthetic = { of = "environments", discount = 0.71, break_even = 8.5, bend = -0.39 } }
"""
}

TEMPLATE_NAMES = tuple(_TEMPLATES)


def render_template(kind: str, name: str) -> str:
    """A commented study file of one of `TEMPLATE_NAMES` for a study called `name`.

    Raises `InputError` for an unknown kind, naming the known ones.
    """
    if kind not in _TEMPLATES:
        raise InputError(unknown("template", kind, TEMPLATE_NAMES))
    body, truth, arguments = _TEMPLATES[kind]
    command = json.dumps(["python", "train.py", *arguments, "--domain={domain}"])
    # A JSON string is also a TOML basic string.
    return (
        _HEADER.format(name=json.dumps(name))
        + body.format()
        + _BACKEND.format(command=command, truth=truth, options=_OPTIONS.get(kind, ""))
    )
