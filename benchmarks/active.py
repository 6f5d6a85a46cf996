"""Buying a problem's runs under a budget: the desk where a policy buys, and the prediction it ends with."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Sequence

import numpy as np

from benchmarks.problems import Problem
from benchmarks.score import Scores, score
from planner import inference
from planner.inference import StudyPosterior

_PREDICTIVE_DRAWS = 1000
STEP_DRAWS = 300


@dataclasses.dataclass
class Desk:
    """What a policy sees and does: candidates and their costs, responses bought so far, purses.

    One purse a group (ScaleBench's rule) or one for all; never more is spent than a purse holds, but for the one run
    a group that `peer` grants at the start.
    """

    problem: Problem
    purses: np.ndarray  # (K,) what is left
    purse: np.ndarray  # (C,) which purse pays each row
    seed: int
    bought: list[int] = dataclasses.field(default_factory=list)
    spent: float = 0.0
    steps: int = 0
    seconds: list[float] = dataclasses.field(default_factory=list)
    posteriors: Sequence[StudyPosterior] | None = None

    def affordable(self) -> np.ndarray:
        """Indices of pool rows that are not bought and can be paid, (K,)."""
        free = np.ones(len(self.problem.pool), dtype=bool)
        free[self.bought] = False
        return np.flatnonzero(free & (self.problem.pool.cost <= self.purses[self.purse] * (1.0 + 1e-12)))

    def buy(self, rows: Sequence[int] | np.ndarray, *, free_of_limit: bool = False) -> None:
        """Pays and reveals rows; a row that cannot be paid is a fault of the policy."""
        for row in map(int, rows):
            price = float(self.problem.pool.cost[row])
            assert row not in self.bought, f"row {row} is bought already"
            assert free_of_limit or price <= self.purses[self.purse[row]] * (1.0 + 1e-9), f"row {row} cannot be paid"
            self.bought.append(row)
            self.spent += price
            self.purses[self.purse[row]] = max(self.purses[self.purse[row]] - price, 0.0)

    def fit(self, *, num_draws: int = STEP_DRAWS, look_ahead: bool = False) -> list[StudyPosterior]:
        """The posterior of every response given what is bought, warmed by the last one; arguments as `fit_study`."""
        warm: Sequence[StudyPosterior | None] = self.posteriors or [None] * self.problem.num_responses
        self.posteriors = [
            inference.fit_study(
                spec,
                self.problem.outcomes(self.bought, y),
                self.problem.pool,
                self.problem.targets,
                num_draws=num_draws,
                seed=self.seed,
                look_ahead=look_ahead,
                warm=warm[y],
            )
            for y, spec in enumerate(self.problem.specs)
        ]
        return list(self.posteriors)


BenchmarkPolicy = Callable[[Desk, np.random.Generator], np.ndarray]


def open_desk(problem: Problem, *, fraction: float, scope: str, rule: str, seed: int) -> Desk:
    """A desk whose purses hold `fraction` of the pool's cost.

    Args:
        scope: "group" gives each group a fraction of its own pool's cost, "pooled" one purse for all.
        rule: "strict", or "peer", which grants each group its cheapest run when nothing else can be paid.
    """
    num_groups = len(problem.specs[0].domain_names)
    purse = problem.pool.domain if scope == "group" else np.zeros(len(problem.pool), dtype=int)
    purses = fraction * np.bincount(purse, weights=problem.pool.cost, minlength=num_groups if scope == "group" else 1)
    desk = Desk(problem=problem, purses=purses, purse=purse, seed=seed)
    if rule == "peer":
        for g in range(num_groups):
            mine = np.flatnonzero(problem.pool.domain == g)
            if len(mine) and problem.pool.cost[mine].min() > purses[purse[mine[0]]]:
                desk.buy([mine[np.argmin(problem.pool.cost[mine])]], free_of_limit=True)
    return desk


def buy_until_done(desk: Desk, policy: BenchmarkPolicy, *, max_steps: int = 500) -> None:
    """Lets the policy buy until it wants nothing or nothing can be paid."""
    rng = np.random.default_rng(desk.seed)
    while desk.steps < max_steps and len(desk.affordable()):
        start = time.perf_counter()
        rows = policy(desk, rng)
        desk.seconds.append(time.perf_counter() - start)
        if not len(rows):
            break
        desk.buy(rows)
        desk.steps += 1


def predict_targets(desk: Desk) -> Scores:
    """Scores of the final posterior at the hidden targets."""
    problem = desk.problem
    points, draws = [], []
    for posterior in desk.fit(num_draws=_PREDICTIVE_DRAWS, look_ahead=True):
        mean = posterior.mean_draws(problem.targets.domain, problem.targets.x)
        points.append(np.median(mean, axis=0))
        draws.append(posterior.response_draws(problem.targets.domain, problem.targets.x))
    return score(problem.target_responses, np.stack(draws, axis=-1), np.stack(points, axis=-1), problem.targets.domain)
