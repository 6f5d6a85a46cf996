"""Policies to compare: ours, and what others do.  All hand over to the same posterior for the final prediction."""

from __future__ import annotations

import functools

import numpy as np
from scipy.stats import qmc

from benchmarks.active import STEP_DRAWS, BenchmarkPolicy, Desk
from benchmarks.optimal import d_optimal, v_optimal
from planner.design import policies
from planner.design.targets import prediction_points, reads_draws, target_points
from planner.encoding import make_encoding
from planner.records import DesignTable

_HYPERCUBE_GROWTH = 1.25  # of the number of points from one hypercube tried to the next


def ours(desk: Desk, rng: np.random.Generator, *, batch: int | None = None) -> np.ndarray:
    """The planner's own policy; by default an eighth of what is known is bought before thinking again.

    It aims at what the study asks for, and where it asks for nothing at the responses of the hidden targets.
    """
    problem = desk.problem
    spec, targets = problem.specs[0], problem.targets
    free = desk.affordable()
    num = batch or max(1, len(desk.bought) // 8)
    posteriors = desk.fit(num_draws=STEP_DRAWS if reads_draws(problem.specs[0]) else 0)
    choice = policies.choose(
        posteriors,
        problem.pool.take(free),
        target_points(spec, posteriors[0], targets.take(np.arange(0)))
        if spec.targets
        else prediction_points(targets.domain, targets.x),
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


def latin_hypercube(desk: Desk, rng: np.random.Generator) -> np.ndarray:
    """A Latin hypercube in the logs of what can be paid, each point the nearest such row; as many as the purse pays.

    What a purse has left is filled by the smaller hypercube of the next call.
    """
    free = desk.affordable()
    return np.concatenate(
        [_hypercube_of_purse(desk, free[desk.purse[free] == k], rng) for k in range(len(desk.purses))]
    )


def _hypercube_of_purse(desk: Desk, rows: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Rows of the dearest hypercube that the purse of `rows` pays; none if there are no rows."""
    table, best, best_price, size = desk.problem.pool.take(rows), rows[:0], 0.0, 1.0
    if not len(rows):
        return best
    purse = float(desk.purses[desk.purse[rows[0]]])
    encoding = make_encoding(desk.problem.specs[0], desk.problem.pool)
    scaled = encoding.coordinates(table.x) / encoding.spread
    while size <= len(rows):
        picks = _match(table, scaled, int(size), rng)
        price = float(table.cost[picks].sum())
        if best_price < price <= purse * (1.0 + 1e-12):
            best, best_price = rows[picks], price
        if price > 4.0 * purse:
            break
        size = max(size + 1.0, size * _HYPERCUBE_GROWTH)
    return best


def _match(table: DesignTable, scaled: np.ndarray, num: int, rng: np.random.Generator) -> np.ndarray:
    """Distinct rows nearest to the points of a fresh Latin hypercube, its points dealt out to the domains in turn."""
    low, high = scaled.min(axis=0), scaled.max(axis=0)
    points = low + (high - low) * qmc.LatinHypercube(scaled.shape[1], rng=rng).random(num)
    turns = rng.permutation(np.unique(table.domain))
    taken = np.zeros(len(table), dtype=bool)
    for point, domain in zip(points, np.resize(turns, num), strict=True):
        gap = ((scaled - point) ** 2).sum(axis=1)
        gap[taken | (table.domain != domain)] = np.inf
        if np.isfinite(gap).any():
            taken[np.argmin(gap)] = True
    return np.flatnonzero(taken)


POLICIES: dict[str, BenchmarkPolicy] = {
    "ours": ours,
    "ours_batch8": functools.partial(ours, batch=8),
    "random": random,
    "cheapest": cheapest,
    "cost_random": cost_random,
    "latin_hypercube": latin_hypercube,
    "d_optimal": d_optimal,
    "v_optimal": v_optimal,
    "ladder": ladder,
}
