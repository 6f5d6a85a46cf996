"""The one recipe to follow: the lowest response on average over the posterior, within the budget."""

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from planner.recipe import optimum, rounding, search
from planner.recipe.optimum import Mean, Optimum
from planner.recipe.problem import Box, Posynomial
from planner.recipe.result import JointRecipe
from planner.recipe.rounding import AllowedValues
from planner.recipe.search import RecipePart

# Optima of single draws tried as the joint recipe before it is polished.
NUM_CANDIDATES = 8


class _Average(NamedTuple):
    """The draws that count, and the search for the lowest average response over them."""

    laws: list[RecipePart]
    counted: np.ndarray  # (S,) bool
    cost: Posynomial
    log_budget: float

    def minimise(self, box: Box, starts: np.ndarray) -> Optimum:
        """The best point from the best of `starts` (M, A); numpy arrays without a draw axis."""
        used = [i for i, mine in enumerate(self._rows()) if len(mine)]
        result = optimum.solve_draws(
            average_of(tuple(self.laws[i].mean for i in used)),
            self._weighted_draws(used),
            tuple(self.laws[i].shared for i in used),
            jnp.asarray(self.log_budget),
            jnp.asarray(np.resize(starts, (1, NUM_CANDIDATES, starts.shape[1]))),
            search.to_problem(self.cost, box),
        )
        return Optimum(*(np.asarray(leaf)[0] for leaf in result))

    def responses(self, log_x: np.ndarray) -> np.ndarray:
        """Response of every draw, counted or not, at one point (A,); (S,)."""
        return np.concatenate([search.responses(law, log_x[None])[:, 0] for law in self.laws])

    def _rows(self) -> list[np.ndarray]:
        ends = np.cumsum([law.num_draws for law in self.laws])[:-1]
        return [np.flatnonzero(mine) for mine in np.split(self.counted, ends)]

    def _weighted_draws(self, used: list[int]) -> tuple[Any, ...]:
        """`(thetas, weights)` of each law, padded to a bucket with weight zero, under one leading axis of length 1."""
        draws, rows = [], self._rows()
        for i in used:
            size = search.bucket(self.laws[i].num_draws, search.SMALLEST_BLOCK)
            padded = np.concatenate([rows[i], np.full(size - len(rows[i]), rows[i][0])])
            weights = np.where(np.arange(size) < len(rows[i]), 1.0 / self.counted.sum(), 0.0)
            thetas = jax.tree.map(lambda leaf, padded=padded: np.asarray(leaf)[padded][None], self.laws[i].thetas)
            draws.append((thetas, weights[None]))
        return tuple(draws)


@functools.lru_cache(maxsize=64)
def average_of(means: tuple[Mean, ...]) -> Mean:
    """The weighted average response over the draws of several laws, as a mean function of its own.

    Its theta holds `(thetas, weights)` of every law.  Cached, because code is compiled per function object.
    """

    def average(draws: tuple[Any, ...], log_x: jax.Array, *shared: tuple[Any, ...]) -> jax.Array:
        total = jnp.zeros(())
        for mean, (thetas, weights), extra in zip(means, draws, shared, strict=True):
            values = jax.vmap(lambda theta, mean=mean, extra=extra: mean(theta, log_x, *extra))(thetas)
            total += jnp.sum(weights * values)
        return total

    return average


def joint_recipe(
    laws: list[RecipePart],
    cost: Posynomial,
    log_budget: float,
    box: Box,
    found: Optimum,
    allowed: Sequence[AllowedValues | None] | None = None,
) -> JointRecipe | None:
    """Minimises the average response, starting from the draws' own optima; None if no draw has one."""
    usable = np.flatnonzero(found.converged)
    if len(usable) == 0:
        return None
    candidates = found.log_x[usable[np.unique(np.linspace(0, len(usable) - 1, NUM_CANDIDATES).astype(int))]]
    values = np.concatenate([search.responses(law, candidates) for law in laws])
    # A draw that is not finite at another draw's optimum would make every average infinite.
    counted = found.converged & np.isfinite(values).all(axis=1)
    if not counted.any():
        return None
    average = _Average(laws, counted, cost, log_budget)
    best = average.minimise(box, candidates[np.argsort(values[counted].mean(axis=0), kind="stable")])
    response, elasticity = average.responses(best.log_x), cost.elasticity(best.log_x)
    rounded = None if allowed is None else _rounded(average, best.log_x, box, allowed)
    return JointRecipe(
        log_x=best.log_x,
        response=response,
        regret=response - found.response,
        share=elasticity / elasticity.sum(),
        cost=float(np.exp(cost.log_cost(best.log_x))),
        converged=bool(best.converged),
        rounded_log_x=rounded,
        rounded_response=None if rounded is None else average.responses(rounded),
    )


def _rounded(average: _Average, log_x: np.ndarray, box: Box, allowed: Sequence[AllowedValues | None]) -> np.ndarray:
    """The joint recipe on the allowed values, (A,); NaN if none of them fits the budget."""
    around = (average.cost, average.log_budget)
    first, value = rounding.round_average(average.laws, average.counted, log_x, *around, box, allowed)
    held = rounding.coarse_axes(allowed, box, log_x)
    if held.all() or not np.isfinite(first).all():
        return first
    # The continuous axes are best where the others now are, not where they were before rounding.
    inner = dataclasses.replace(box, low=np.where(held, first, box.low), high=np.where(held, first, box.high))
    again = average.minimise(inner, first[None])
    second, lower = rounding.round_average(average.laws, average.counted, again.log_x, *around, inner, allowed)
    return second if lower < value else first
