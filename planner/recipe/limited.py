"""Optima that keep to limits on products of the axes, by the method of multipliers.

A limit low <= p . log x <= high is linear in the logs.  The search for the optimum in a box is asked for the lowest of

    mean(log x) + rho / 2 (z - clip(z, low, high))^2 - lambda^2 / (2 rho),     z = p . log x + lambda / rho

and lambda is moved to rho (z - clip(z, low, high)), until the limits are kept and lambda stands still (Hestenes 1969,
Powell 1969; Rockafellar 1973 for inequalities).  A limit with low = high is an equation, and one that does not bind has
lambda = 0.  What lambda misses shrinks by the ratio of the curvatures, about `STIFFNESS`, at every pass.
"""

from typing import NamedTuple

import numpy as np

from planner.recipe.curves import Curve
from planner.recipe.optimum import Curves, LogProblem, Optimum, minimise_in_box
from planner.recipe.problem import LIMIT_TOLERANCE, Limits

# Curvature across a limit over the largest of the response, in units of the box.
STIFFNESS = 1e3
MAX_PASSES = 15
_STIFFER = 10.0


class _Penalty(NamedTuple):
    """What is added to the responses of S draws; L limits."""

    limits: Limits
    multiplier: np.ndarray  # (L, S)
    stiffness: np.ndarray  # (L, S)

    def some(self, chosen: np.ndarray) -> "_Penalty":
        return _Penalty(self.limits, self.multiplier[:, chosen], self.stiffness[:, chosen])

    def force(self, log_x: np.ndarray) -> np.ndarray:
        """Its derivative in the log of each product at `log_x` (A, S), which is the next multiplier; (L, S)."""
        low, high = self.limits.low[:, None], self.limits.high[:, None]
        z = self.limits.powers @ log_x + self.multiplier / self.stiffness
        return self.stiffness * (z - np.clip(z, low, high))

    def curve(self, log_x: np.ndarray) -> Curve:
        """The penalty and its derivatives at `log_x` (A, S)."""
        force, powers = self.force(log_x), self.limits.powers
        value = ((force**2 - self.multiplier**2) / (2.0 * self.stiffness)).sum(axis=0)
        curvature = np.where(force != 0, self.stiffness, 0.0)
        return Curve(value, powers.T @ force, np.einsum("la,ls,lb->abs", powers, curvature, powers))


def minimise(
    curves: Curves, problem: LogProblem, limits: Limits, log_budget: float | np.ndarray, starts: np.ndarray
) -> Optimum:
    """`planner.recipe.optimum.minimise` within `limits`; a draw that does not come to keep them is not converged."""
    num_draws = len(starts)
    budgets = np.broadcast_to(np.asarray(log_budget, dtype=np.float64), (num_draws,))
    penalty = _first(curves, problem, limits, starts)
    result, missed = None, np.full(num_draws, np.inf)
    rows, begin = np.arange(num_draws), starts
    for _ in range(MAX_PASSES):
        own = penalty.some(rows)
        found = minimise_in_box(_penalised(curves, rows, own), problem, budgets[rows], begin)
        own_curve = own.curve(found.log_x.T)
        found = found._replace(
            response=found.response - own_curve.value, gradient=found.gradient - own_curve.gradient.T
        )
        if result is None:
            result = Optimum(*(np.array(leaf) for leaf in found))
        else:
            for old, new in zip(result, found, strict=True):
                old[rows] = new
        force = own.force(found.log_x.T)
        before, misses = missed[rows], np.abs((force - own.multiplier) / own.stiffness).max(axis=0)
        missed[rows] = misses
        penalty.multiplier[:, rows] = force
        penalty.stiffness[:, rows] *= np.where(misses > 0.25 * before, _STIFFER, 1.0)
        left = np.isfinite(misses) & (misses > 0.1 * LIMIT_TOLERANCE)
        rows, begin = rows[left], found.log_x[left]
        if not len(rows):
            break
    assert result is not None
    return result._replace(converged=result.converged & (missed <= LIMIT_TOLERANCE))


def _first(curves: Curves, problem: LogProblem, limits: Limits, starts: np.ndarray) -> _Penalty:
    """No multipliers yet, and a stiffness that suits the curvature of each draw at its start (S, A)."""
    here, width = curves(np.arange(len(starts)), starts.T), problem.width
    diagonal = np.einsum("aas->as", here.hessian)
    scale = np.maximum(np.abs(here.gradient * width), np.abs(diagonal * width**2)).max(axis=0)
    # A start where the law overflows says nothing of its scale.
    scale = np.where(np.isfinite(scale) & (scale > 0), scale, 1.0)
    across = ((limits.powers * width.T) ** 2).sum(axis=1)
    stiffness = STIFFNESS * scale / np.where(across > 0, across, 1.0)[:, None]
    return _Penalty(limits, np.zeros_like(stiffness), stiffness)


def _penalised(curves: Curves, rows: np.ndarray, penalty: _Penalty) -> Curves:
    def penalised(chosen: np.ndarray, log_x: np.ndarray) -> Curve:
        pairs = zip(curves(rows[chosen], log_x), penalty.some(chosen).curve(log_x), strict=True)
        return Curve(*(plain + added for plain, added in pairs))

    return penalised
