"""The optima of many draws from several starts, of which the best is kept."""

import functools
from collections.abc import Sequence

import numpy as np

from planner.recipe import curves, optimum
from planner.recipe.curves import RecipePart
from planner.recipe.optimum import LogProblem, Optimum
from planner.recipe.problem import Box, Posynomial, start_points

# Fresh starts for the draws that failed from the first ones.
RETRY_STARTS = 4


def solve_laws(
    laws: Sequence[RecipePart],
    cost: Posynomial,
    log_budget: float | np.ndarray,
    box: Box,
    num_starts: int,
    guess: np.ndarray | None = None,
    rows: np.ndarray | slice = slice(None),
    *,
    retry: int = RETRY_STARTS,
) -> Optimum:
    """`solve_part` for the draws `rows` of several laws, law after law; S counts the draws of all laws.

    `rows` is a mask (S,) or a slice taken of each law's draws.  `log_budget` and `guess` are those of the draws solved.
    """
    parts, begin, first = [], 0, 0
    for law in laws:
        own = rows if isinstance(rows, slice) else np.flatnonzero(rows[begin : begin + law.num_draws])
        begin += law.num_draws
        some = law.rows(own)
        mine = slice(first, first + some.num_draws)
        first += some.num_draws
        if some.num_draws:
            budgets = log_budget if np.ndim(log_budget) == 0 else np.asarray(log_budget)[mine]
            near = None if guess is None else guess[mine]
            parts.append(solve_part(some, cost, budgets, box, num_starts, near, retry=retry))
    return Optimum(*(np.concatenate(leaf) for leaf in zip(*parts, strict=True)))


def solve_part(
    part: RecipePart,
    cost: Posynomial,
    log_budget: float | np.ndarray,
    box: Box,
    num_starts: int,
    guess: np.ndarray | None = None,
    *,
    retry: int = RETRY_STARTS,
) -> Optimum:
    """The optimum of every draw of one law, the best over `num_starts` starts.

    `log_budget` is one for all draws or one for each, (S,).  `guess` (S, A) is one more start, and the only one where
    one is asked for.  Draws without a certified optimum get `retry` further starts.  Call under
    64-bit arithmetic.
    """
    problem, middle = LogProblem.of(cost, box), float(np.median(log_budget))
    num_starts = 1 if part.unimodal else num_starts
    groups = start_points(cost, middle, box, num_starts)
    found = _from_groups(part, problem, log_budget, groups, guess)
    failed = np.flatnonzero(~found.converged)
    if len(failed) == 0 or num_starts >= retry:
        return found
    groups = start_points(cost, middle, box, retry)
    own = log_budget if np.ndim(log_budget) == 0 else np.asarray(log_budget)[failed]
    again = _from_groups(part.rows(failed), problem, own, groups, None)
    again = _better(Optimum(*(leaf[failed] for leaf in found)), again)
    for old, new in zip(found, again, strict=True):
        old[failed] = new
    return found


def _from_groups(
    part: RecipePart,
    problem: LogProblem,
    log_budget: float | np.ndarray,
    groups: np.ndarray,
    guess: np.ndarray | None,
) -> Optimum:
    """Every draw from the best point of each group (G, M, A), all at once, and from `guess`; the best of them."""
    num_draws, num_groups = part.num_draws, len(groups)
    if guess is not None and num_groups == 1:
        starts = [guess]
    else:
        values = curves.responses(part, groups.reshape(-1, groups.shape[-1])).reshape(num_draws, num_groups, -1)
        # A law may overflow far from its optimum; such a point is no start.
        best = np.where(np.isfinite(values), values, np.inf).argmin(axis=2)
        starts = [groups[g][best[:, g]] for g in range(num_groups)]
        starts += [] if guess is None else [guess]
    rows = np.tile(np.arange(num_draws), len(starts))
    budgets = log_budget if np.ndim(log_budget) == 0 else np.asarray(log_budget)[rows]
    found = optimum.minimise(
        lambda chosen, log_x: curves.curves(part, rows[chosen], log_x), problem, budgets, np.concatenate(starts)
    )
    each = [Optimum(*(leaf[i : i + num_draws] for leaf in found)) for i in range(0, len(rows), num_draws)]
    return Optimum(*(np.array(leaf) for leaf in functools.reduce(_better, each)))


def _better(first: Optimum, second: Optimum) -> Optimum:
    """Draw by draw the one with the lower response; a certified one unless the other is clearly lower."""
    with np.errstate(invalid="ignore"):
        margin = 1e-9 * (np.abs(first.response) + np.abs(second.response))
        lower = second.response < first.response - margin
        as_good = second.response <= first.response + margin
    certified = second.converged & ~first.converged & as_good
    takes = lower | certified | (~np.isfinite(first.response) & np.isfinite(second.response))
    return Optimum(
        *(np.where(takes.reshape(-1, *[1] * (old.ndim - 1)), new, old) for old, new in zip(first, second, strict=True))
    )
