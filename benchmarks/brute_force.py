"""The true optimum under a budget, by brute force: a second way to the answer that shares nothing with the planner.

The affordable set is filled with points, those that are too dear being drawn back to the budget; the best of them are
then improved by random moves that shrink.  No derivative is used and nothing is assumed of the response.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from scipy.stats import qmc

from benchmarks.scenarios import Scenario

_LOG2_POINTS = 16
_KEPT = 16  # points that are improved
_MOVES = 128  # tried around each of them in a round
_ROUNDS = 60
_FIRST_MOVE, _SHRINK = 0.1, 0.75  # of the width of the box; the last moves are about 3e-9 of it
_BISECTIONS = 60


class TrueOptimum(NamedTuple):
    """What a budget buys at best, and what it buys somebody who allocates it blindly; responses in raw units."""

    x: np.ndarray  # (A,) raw units
    response: float
    reference: float  # median response over allocations that use the budget up, spread evenly over the logs


class Affordable:
    """The allocations that cost at most `budget`.

    Axes that cost nothing keep the range of the pool; the others go as far as the budget lets each of them alone.
    """

    def __init__(self, scenario: Scenario, budget: float) -> None:
        self.scenario, self.log_budget = scenario, float(np.log(budget))
        self.log_coefficients = np.log([coefficient for coefficient, _ in scenario.cost])
        self.priced = (scenario.powers > 0).any(axis=0)
        self.low, self.high = np.log(scenario.low), np.log(scenario.high)
        for a in np.flatnonzero(self.priced):
            alone = self.low + 100.0 * (np.arange(len(self.low)) == a)
            self.high[a] = max(self.high[a], self.draw_back(alone[None])[0, a])

    def log_cost(self, log_x: np.ndarray) -> np.ndarray:
        """Log of the cost at logs of axis values (..., A); (...)."""
        return np.logaddexp.reduce(self.log_coefficients + log_x @ self.scenario.powers.T, axis=-1)

    def draw_back(self, log_x: np.ndarray) -> np.ndarray:
        """Points (P, A); those that are too dear move towards the cheapest values until the budget pays them."""
        result = log_x.copy()
        dear = np.flatnonzero(self.log_cost(log_x) > self.log_budget)
        cheapest = np.where(self.priced, self.low, log_x[dear])
        step = log_x[dear] - cheapest
        inside, outside = np.zeros(len(dear)), np.ones(len(dear))
        for _ in range(_BISECTIONS):
            middle = 0.5 * (inside + outside)
            pays = self.log_cost(cheapest + middle[:, None] * step) <= self.log_budget
            inside, outside = np.where(pays, middle, inside), np.where(pays, outside, middle)
        result[dear] = cheapest + inside[:, None] * step
        return result

    def fill(self, count_log2: int, rng: np.random.Generator) -> np.ndarray:
        """Affordable points (2 ** count_log2, A), logs; many of them cost the whole budget."""
        unit = qmc.Sobol(len(self.low), rng=rng).random_base2(count_log2)
        return self.draw_back(self.low + unit * (self.high - self.low))

    def allocations(self, count: int, rng: np.random.Generator) -> np.ndarray:
        """Points (count, A), logs, that cost the whole budget, spread over the box."""
        points = self.fill(_LOG2_POINTS, rng)
        return points[np.abs(self.log_cost(points) - self.log_budget) < 1e-9][:count]


def find_optimum(scenario: Scenario, domain: int, budget: float) -> TrueOptimum:
    """The best affordable allocation of one domain, integer axes taken as continuous."""
    affordable = Affordable(scenario, budget)
    rng = np.random.default_rng(0)

    def loss(log_x: np.ndarray) -> np.ndarray:
        return scenario.sign * scenario.true_mean(domain, np.exp(log_x))

    blind = loss(affordable.allocations(2**_LOG2_POINTS, rng))
    best = _improve(loss, affordable, _distinct(loss, affordable, rng), rng)
    response, reference = scenario.sign * float(loss(best)), scenario.sign * float(np.median(blind))
    return TrueOptimum(x=np.exp(best), response=response, reference=reference)


def _distinct(loss: Callable[[np.ndarray], np.ndarray], affordable: Affordable, rng: np.random.Generator) -> np.ndarray:
    """The best points of a fill that lie in different places, (_KEPT, A)."""
    points = affordable.fill(_LOG2_POINTS, rng)
    points = points[np.argsort(loss(points))]
    kept = points[:1]
    for point in points[1 : len(points) // 8]:
        gap = np.abs((kept - point) / (affordable.high - affordable.low)).max(axis=1)
        if gap.min() > 2.0 * _FIRST_MOVE / len(point):
            kept = np.vstack([kept, point])
        if len(kept) == _KEPT:
            break
    return kept


def _improve(
    loss: Callable[[np.ndarray], np.ndarray], affordable: Affordable, start: np.ndarray, rng: np.random.Generator
) -> np.ndarray:
    """The best point (A,) that shrinking random moves from each of `start` (K, A) lead to."""
    best, value = start, loss(start)
    width = (affordable.high - affordable.low) * _FIRST_MOVE
    for _ in range(_ROUNDS):
        moves = rng.standard_normal((_MOVES, *start.shape)) * width
        tried = np.clip(best + moves, affordable.low, affordable.high).reshape(-1, start.shape[1])
        tried = affordable.draw_back(tried).reshape(moves.shape)
        found = loss(tried)
        pick = found.argmin(axis=0)
        lowest = np.take_along_axis(found, pick[None], axis=0)[0]
        better = lowest < value
        best = np.where(better[:, None], tried[pick, np.arange(len(best))], best)
        value = np.minimum(value, lowest)
        width = width * _SHRINK
    return best[value.argmin()]
