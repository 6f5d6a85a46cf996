"""The simulated scenarios: which truth, which box its pool fills, and what a run costs."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from backends.simulator import Simulator
from planner.errors import InputError

_DOMAINS = ("web", "code", "math", "books")

_LOSS = {"name": "loss", "lower": 0.0, "expect": [1.5, 6.0]}
_REWARD = {"name": "reward", "goal": "maximise", "lower": 0.0, "upper": 1.0, "expect": [0.2, 0.8]}
_SUCCESS = {
    "name": "success_rate",
    "goal": "maximise",
    "link": "neg_log",
    "noise": "binomial",
    "trials": 500,
    "expect": [0.1, 0.8],
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Axis:
    """One axis of a scenario, raw units; its name is the role that the truth and the laws know it by."""

    role: str
    low: float  # of the pool
    high: float
    reach: float = 1.0  # targets lie as far as `reach * high`
    integer: bool = False


@dataclasses.dataclass(frozen=True, kw_only=True)
class Scenario:
    """A truth, the box of its pool, and what a run costs: terms of a coefficient and a power of each axis, summed."""

    name: str
    truth: str
    axes: Sequence[Axis]
    cost: Sequence[tuple[float, Mapping[str, float]]]
    num_domains: int
    size: int  # rows of the pool
    response: Mapping[str, Any] = dataclasses.field(default_factory=lambda: dict(_LOSS))
    no_recipe: str = ""  # why a recipe would say nothing; empty where it does

    @property
    def domains(self) -> Sequence[str]:
        """Names of the domains; the truth draws the constants of a domain from its name."""
        return _DOMAINS[: self.num_domains]

    @property
    def low(self) -> np.ndarray:
        """(A,) of the pool, raw units."""
        return np.array([axis.low for axis in self.axes])

    @property
    def high(self) -> np.ndarray:
        """(A,) of the pool, raw units."""
        return np.array([axis.high for axis in self.axes])

    @property
    def powers(self) -> np.ndarray:
        """(K, A) power of each axis in each term of the cost."""
        return np.array([[powers.get(axis.role, 0.0) for axis in self.axes] for _, powers in self.cost])

    @property
    def sign(self) -> float:
        """What a response is multiplied by to be better when smaller."""
        return -1.0 if self.response.get("goal") == "maximise" else 1.0

    def costs(self, x: np.ndarray) -> np.ndarray:
        """Cost of runs at `x` (..., A), raw units; (...)."""
        terms = np.exp(np.log(x) @ self.powers.T)
        return terms @ np.array([coefficient for coefficient, _ in self.cost])

    def true_mean(self, domain: int, x: np.ndarray) -> np.ndarray:
        """Mean response (...) at `x` (..., A).

        An axis that the study does not record stands at its middle, which adds the same everywhere to the only truth
        that has one.
        """
        axes = {axis.role: x[..., a] for a, axis in enumerate(self.axes)}
        return np.asarray(_truth(self.truth).truth_mean(self.domains[domain], axes))


@functools.cache
def _truth(name: str) -> Simulator:
    return Simulator({"truth": name}, Path())


def _compute(amount: float) -> Sequence[tuple[float, Mapping[str, float]]]:
    return ((amount, {"parameters": 1.0, "tokens": 1.0}),)


_SIZE = Axis(role="parameters", low=1e7, high=1e9, reach=10.0)
_DATA = Axis(role="tokens", low=2e8, high=2e10, reach=10.0)

SCENARIOS = (
    Scenario(
        name="sim_chinchilla", truth="chinchilla", axes=(_SIZE, _DATA), cost=_compute(6.0), num_domains=3, size=300
    ),
    Scenario(
        name="sim_repeated_data",
        truth="repeated_data",
        axes=(_SIZE, _DATA, Axis(role="unique_tokens", low=5e7, high=5e9, reach=4.0)),
        # Text has to be collected, which makes it worth repeating.
        cost=(*_compute(6.0), (1e9, {"unique_tokens": 1.0})),
        num_domains=3,
        size=360,
    ),
    Scenario(
        name="sim_experts",
        truth="experts",
        axes=(_SIZE, Axis(role="experts", low=1, high=256, reach=2.0, integer=True)),
        # Compute for a fixed amount of data, and memory and traffic for each expert.
        cost=((1.2e11, {"parameters": 1.0}), (2.4e9, {"parameters": 1.0, "experts": 1.0})),
        num_domains=2,
        size=200,
    ),
    Scenario(
        name="sim_valley",
        truth="valley",
        axes=(
            _SIZE,
            _DATA,
            Axis(role="learning_rate", low=1e-4, high=2e-2),
            Axis(role="batch_size", low=1e4, high=5e6),
        ),
        cost=_compute(6.0),
        num_domains=2,
        size=400,
    ),
    Scenario(name="sim_broken", truth="broken", axes=(_SIZE, _DATA), cost=_compute(6.0), num_domains=2, size=240),
    Scenario(
        name="sim_sigmoid",
        truth="sigmoid",
        axes=(Axis(role="compute", low=50.0, high=4000.0, reach=30.0),),
        cost=((1.0, {"compute": 1.0}),),
        num_domains=4,
        size=160,
        response=_REWARD,
        no_recipe="its one axis takes the whole budget whatever the posterior says",
    ),
    Scenario(
        name="sim_agentic",
        truth="agentic",
        axes=(
            Axis(role="environments", low=4, high=384, reach=8.0, integer=True),
            Axis(role="tasks", low=160, high=20480, reach=8.0, integer=True),
            Axis(role="trajectories", low=1, high=48, reach=4.0, integer=True),
        ),
        # Hours: environments and tasks are built once, every trajectory of every task is sampled and trained on.
        cost=((0.5, {"environments": 1.0}), (0.01, {"tasks": 1.0}), (8e-3, {"tasks": 1.0, "trajectories": 1.0})),
        num_domains=3,
        size=300,
        response=_SUCCESS,
    ),
    Scenario(
        name="sim_rollouts",
        truth="rl_sampling",
        axes=(
            Axis(role="rollouts", low=8, high=512, reach=4.0, integer=True),
            Axis(role="problems", low=16, high=128, reach=2.0, integer=True),
            Axis(role="updates", low=10, high=200, reach=4.0, integer=True),
        ),
        cost=((1.0, {"rollouts": 1.0, "problems": 1.0, "updates": 1.0}),),
        num_domains=2,
        size=300,
        response=_REWARD,
    ),
    Scenario(name="sim_outside", truth="outside", axes=(_SIZE, _DATA), cost=_compute(6.0), num_domains=1, size=200),
    Scenario(
        name="sim_hidden_axis", truth="hidden_axis", axes=(_SIZE, _DATA), cost=_compute(6.0), num_domains=1, size=200
    ),
)


def scenario_names() -> list[str]:
    """Names of the simulated scenarios."""
    return [scenario.name for scenario in SCENARIOS]


def find_scenario(name: str) -> Scenario:
    """The scenario of that name.  Raises `InputError` for an unknown one."""
    for scenario in SCENARIOS:
        if scenario.name == name:
            return scenario
    raise InputError(f"unknown scenario {name}; known: {', '.join(scenario_names())}")
