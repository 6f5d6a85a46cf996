"""Hidden truths for the simulator: laws of the mean response, written here a second time and on purpose.

Nothing is shared with `planner/laws`, so that one mistake cannot hide in both.  Every truth is a frozen dataclass: its
fields are its constants, `axes` names the roles it knows with the value that stands in for a role the study does not
have, and `mean(domain, axes)` is the mean response in raw units; axis values may be numpy arrays that broadcast.
`spread` scales how far the constants of a domain, drawn from `domain_seed` and the domain's name, lie from the
published ones; with 0 every domain has the published constants.

`response` says how a run is measured: "loss" (additive noise of sd `noise`), "reward" (the same, kept within 0 and 1)
or "success" (`trials` yes-or-no answers; with `trials = 0` like "reward").  `drawn` are axes that the study cannot set:
each run has a value of its own unless the study declares the axis after all.
"""

from collections.abc import Mapping

from backends.truths.losses import BrokenPower, Chinchilla, Experts, HiddenAxis, Outside, RepeatedData, Valley
from backends.truths.rewards import Agentic, RewardSampling, Sigmoid, ToolEnvironments

Truth = (
    Chinchilla
    | Agentic
    | RewardSampling
    | ToolEnvironments
    | RepeatedData
    | Experts
    | Valley
    | BrokenPower
    | Sigmoid
    | Outside
    | HiddenAxis
)

TRUTHS: Mapping[str, type[Truth]] = {
    "agentic": Agentic,
    "broken": BrokenPower,
    "chinchilla": Chinchilla,
    "experts": Experts,
    "hidden_axis": HiddenAxis,
    "outside": Outside,
    "repeated_data": RepeatedData,
    "rl_sampling": RewardSampling,
    "sigmoid": Sigmoid,
    "tools": ToolEnvironments,
    "valley": Valley,
}
