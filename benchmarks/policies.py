"""Policies to compare: ours, and what others do.  All hand over to the same posterior for the final prediction."""

from __future__ import annotations

import functools

import numpy as np

from benchmarks.active import BenchmarkPolicy, Desk
from planner.design import policies
from planner.design.targets import prediction_points

_LADDER_RUNGS = 12


def ours(desk: Desk, rng: np.random.Generator, *, batch: int | None = None) -> np.ndarray:
    """The planner's own policy; by default an eighth of what is known is bought before thinking again."""
    problem = desk.problem
    free = desk.affordable()
    num = batch or max(1, len(desk.bought) // 8)
    posteriors = desk.fit()
    choice = policies.choose(
        posteriors,
        problem.pool.take(free),
        prediction_points(problem.targets.domain, problem.targets.x),
        total_budget=desk.spent + float(desk.purses.sum()),
        budget=desk.purses,
        pending=np.zeros((0, 1 + problem.pool.x.shape[1])),
        num=num,
        purse=desk.purse[free],
        units=np.array([float(p.parts[0].law.context.scale) ** 2 for p in posteriors]),
    )
    return _within_purses(desk, free[choice.picks])


def _within_purses(desk: Desk, rows: np.ndarray) -> np.ndarray:
    left = desk.purses.copy()
    kept = []
    for row in rows:
        price = desk.problem.pool.cost[row]
        if price <= left[desk.purse[row]] * (1.0 + 1e-12):
            left[desk.purse[row]] -= price
            kept.append(int(row))
    return np.array(kept, dtype=int)


def random(desk: Desk, rng: np.random.Generator) -> np.ndarray:
    """Affordable rows in random order until the purses are empty."""
    return _within_purses(desk, rng.permutation(desk.affordable()))


def cheapest(desk: Desk, rng: np.random.Generator) -> np.ndarray:
    """The cheapest rows first."""
    free = desk.affordable()
    return _within_purses(desk, free[np.argsort(desk.problem.pool.cost[free], kind="stable")])


def cost_random(desk: Desk, rng: np.random.Generator) -> np.ndarray:
    """Random rows, each as likely as it is cheap (probability proportional to 1 / cost)."""
    free = desk.affordable()
    # Gumbel keys give a random order by successive sampling without replacement.
    keys = -np.log(desk.problem.pool.cost[free]) + rng.gumbel(size=len(free))
    return _within_purses(desk, free[np.argsort(-keys)])


def ladder(desk: Desk, rng: np.random.Generator) -> np.ndarray:
    """What a lab does: a geometric ladder of costs whose dearest rung takes a third of the purse, each halving."""
    problem, rows = desk.problem, []
    for k in range(len(desk.purses)):
        mine = np.flatnonzero(desk.purse == k)
        mine = mine[np.isin(mine, desk.affordable())]
        price, left = desk.purses[k] / 3.0, desk.purses[k]
        while len(mine) and price > problem.pool.cost[mine].min() / 2.0:
            gaps = np.abs(np.log(problem.pool.cost[mine] / price))
            best = mine[np.argmin(gaps + 1e-9 * rng.random(len(mine)))]
            if problem.pool.cost[best] <= left:
                rows.append(best)
                left -= problem.pool.cost[best]
            mine = mine[mine != best]
            price /= 2.0**0.5
    if not rows:
        return cheapest(desk, rng)[:0]
    return np.array(rows)


POLICIES: dict[str, BenchmarkPolicy] = {
    "ours": ours,
    "ours_batch8": functools.partial(ours, batch=8),
    "random": random,
    "cheapest": cheapest,
    "cost_random": cost_random,
    "ladder": ladder,
}
