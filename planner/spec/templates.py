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

[[axes]]
name = "environments"
role = "environments"
low = 4
high = 384
integer = true

[[axes]]
name = "tasks"
role = "tasks"
low = 160
high = 20480
integer = true

[[axes]]
name = "trajectories"
unit = "per environment and task"
role = "trajectories"
low = 1
high = 48
integer = true

[[domains]]
name = "math-code"
factors = {{ family = "reasoning", algorithm = "GRPO" }}

[[domains]]
name = "web"
factors = {{ family = "interaction", algorithm = "GRPO" }}

# Sampling and training grow with model, tasks and trajectories; environments and tasks also have to be built.
# `domains` replaces a coefficient where a domain is dearer.
[cost]
unit = "GPU-hour"
terms = [
  {{ coefficient = 1e-12, powers = {{ N = 1, tasks = 1, trajectories = 1 }} }},
  {{ coefficient = 0.5, powers = {{ environments = 1 }}, domains = {{ web = 1.0 }} }},
  {{ coefficient = 0.01, powers = {{ tasks = 1 }} }},
]

[budget]
total = 5000
per_run_max = 600

[[targets]]
kind = "recipe"               # how to split a large budget over the four axes
budgets = [5e3, 2e4]

[[targets]]
kind = "exponent"             # how fast more environments help
axis = "environments"

[laws]
use = "auto"
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
values = [8, 16, 32, 64, 128, 256, 512, 1024]

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
total = 2e7
per_run_max = 4e6

[[targets]]
kind = "recipe"               # the best rollouts, problems and updates for so many rollouts in all
budgets = [1e7, 1e8]

[laws]
use = "auto"
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

[[axes]]
name = "complexity"
unit = "calls per task"
role = "complexity"
low = 1
high = 8
integer = true

[[domains]]
name = "retail"
factors = {{ task = "retail" }}

[[domains]]
name = "travel"
factors = {{ task = "travel" }}

# Longer tasks are dearer to write, check and train on; tools and databases are built once.
[cost]
unit = "dollar"
terms = [
  {{ coefficient = 0.005, powers = {{ tasks = 1, complexity = 1 }} }},
  {{ coefficient = 0.5, powers = {{ tools = 1 }} }},
  {{ coefficient = 2, powers = {{ databases = 1 }} }},
]

[budget]
total = 10000
per_run_max = 1000

[[targets]]
kind = "recipe"
budgets = [1e4, 1e5]

[[targets]]
kind = "threshold"            # the budget at which this response is reached with 90 % probability
response = 0.7
probability = 0.9

[laws]
use = "auto"
"""

_TEMPLATES = {
    "language-model": (_LANGUAGE_MODEL, "chinchilla", ("--parameters={N:.0f}", "--tokens={D:.0f}")),
    "agentic-data": (_AGENTIC_DATA, "agentic", ("--model-size={N:.0f}", "--tasks={tasks}")),
    "rl-sampling": (_RL_SAMPLING, "rl_sampling", ("--rollouts={rollouts}", "--updates={updates}")),
    "tool-environments": (_TOOL_ENVIRONMENTS, "tools", ("--tools={tools}", "--tasks={tasks}")),
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
    return _HEADER.format(name=json.dumps(name)) + body.format() + _BACKEND.format(command=command, truth=truth)
