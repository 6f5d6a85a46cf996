"""Runs the compiled search over many draws and budgets in blocks of one shape, and keeps the best of several starts."""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from planner.recipe import optimum
from planner.recipe.optimum import LogProblem, Mean, Optimum
from planner.recipe.problem import Box, Posynomial, cheapest_point, start_points

# Draws solved by one call: large enough to hide the dispatch, small enough to stay in cache and to let the easy
# draws of one block finish without waiting for the hard ones of another.
BLOCK = 512
SMALLEST_BLOCK = 64
RESPONSE_BLOCK = 4096
# Fresh starts for the draws that failed from the first ones.
RETRY_STARTS = 8


class RecipePart(NamedTuple):
    """The draws of one law.

    `mean(theta, log_x (A,), *shared) -> ()` is compiled once per function object, so it must be a module-level or
    cached function, not a fresh closure; what changes from study to study goes into `shared`, a tuple of pytrees
    that all draws have in common.
    """

    mean: Mean
    thetas: Any  # (S, p), or a pytree of arrays with a leading axis S
    shared: tuple[Any, ...] = ()

    @property
    def num_draws(self) -> int:
        return len(jax.tree.leaves(self.thetas)[0])


def bucket(size: int, smallest: int) -> int:
    """The power of two that `size` is padded to, so that nearby sizes share a compiled program."""
    return max(smallest, 1 << (size - 1).bit_length())


def block_size(num_draws: int) -> int:
    """Draws per call for a law with `num_draws` draws; the same for its subsets, so that they share its program."""
    return min(BLOCK, bucket(num_draws, SMALLEST_BLOCK))


def to_problem(cost: Posynomial, box: Box) -> LogProblem:
    cheapest = cheapest_point(cost, box)
    return LogProblem(*map(jnp.asarray, (cost.log_coefficients, cost.powers, box.low, box.width, cheapest)))


def solve_part(
    part: RecipePart,
    cost: Posynomial,
    log_budget: float,
    box: Box,
    num_starts: int,
    block: int,
    guess: np.ndarray | None = None,
) -> Optimum:
    """The optimum of every draw of one law, the best over `num_starts` starts; numpy arrays with a leading axis S.

    `block` draws are solved by one call, see `block_size`.  `guess` (S, A) joins the points that the first start is
    chosen from.  Draws without a certified optimum get `RETRY_STARTS` further starts.  Call under 64-bit arithmetic.
    """
    problem = to_problem(cost, box)
    groups = start_points(cost, log_budget, box, num_starts)
    found = _solve_blocks(part, problem, log_budget, groups[0], block, guess)
    for group in groups[1:]:
        found = _better(found, _solve_blocks(part, problem, log_budget, group, block))
    failed = np.flatnonzero(~found.converged)
    if len(failed) == 0 or num_starts >= RETRY_STARTS:
        return found
    rest = part._replace(thetas=jax.tree.map(lambda leaf: np.asarray(leaf)[failed], part.thetas))
    again = Optimum(*(leaf[failed] for leaf in found))
    for group in start_points(cost, log_budget, box, RETRY_STARTS):
        again = _better(again, _solve_blocks(rest, problem, log_budget, group, block))
    for old, new in zip(found, again, strict=True):
        old[failed] = new
    return found


def _solve_blocks(
    part: RecipePart,
    problem: LogProblem,
    log_budget: float,
    starts: np.ndarray,
    size: int,
    guess: np.ndarray | None = None,
) -> Optimum:
    num_axes = starts.shape[1]
    first = np.broadcast_to(starts[0], (part.num_draws, num_axes)) if guess is None else guess
    common = np.broadcast_to(starts, (size, *starts.shape))
    blocks = []
    for thetas, own in blocks_of((part.thetas, first), part.num_draws, size):
        points = np.concatenate([own[:, None, :], common], axis=1)
        blocks.append(optimum.solve_draws(part.mean, thetas, part.shared, np.float64(log_budget), points, problem))
    # Copied because the search writes the retried draws back in place.
    return Optimum(
        *(np.concatenate([np.asarray(b) for b in leaf])[: part.num_draws] for leaf in zip(*blocks, strict=True))
    )


def blocks_of(thetas: Any, num_draws: int, size: int) -> list[Any]:
    """Cuts the leading axis into blocks of `size`, the last one filled up with copies of the first draw."""
    rows = np.arange(-(-num_draws // size) * size)
    padded = np.where(rows < num_draws, rows, 0).reshape(-1, size)
    return [jax.tree.map(lambda leaf, block=block: np.asarray(leaf)[block], thetas) for block in padded]


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


def responses(part: RecipePart, log_x: np.ndarray) -> np.ndarray:
    """Mean response of every draw at common points (M, A), or at its own points (S, M, A); (S, M).

    Call under 64-bit arithmetic.
    """
    log_x = np.asarray(log_x, dtype=np.float64)
    num_points = log_x.shape[-2]
    padding = [(0, 0)] * (log_x.ndim - 2) + [(0, bucket(num_points, 8) - num_points), (0, 0)]
    padded = np.pad(log_x, padding, mode="edge")
    size = min(RESPONSE_BLOCK, bucket(part.num_draws, SMALLEST_BLOCK))
    thetas = blocks_of(part.thetas, part.num_draws, size)
    points = blocks_of(padded, part.num_draws, size) if padded.ndim == 3 else [padded] * len(thetas)
    values = [
        optimum.responses_at(part.mean, block, part.shared, jnp.asarray(x))
        for block, x in zip(thetas, points, strict=True)
    ]
    return np.concatenate([np.asarray(v) for v in values])[: part.num_draws, :num_points]
