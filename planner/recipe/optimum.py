"""The axis values that give the lowest mean response under a cost budget, for every posterior draw.

Minimises mean(log x) subject to log cost(log x) <= log budget and low <= log x <= high: Newton steps on the
Karush-Kuhn-Tucker system of the bounds and the budget that bind, the binding set revised at every step, each
trial put back on the cost surface so that the response alone says whether it is better.  For a law and a cost that are
posynomials both are convex in the logs, and the only minimum is found.
All work is in box coordinates t = (log x - low) / (high - low), where every axis has length one.

The steps are numpy over all S draws, which are the last axis, where they are contiguous: a quantity of one draw is
(S,), of its axes (A, S).  Only the derivatives know the law, so nothing but those is compiled for a law.
"""

import dataclasses
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from planner.recipe import factorise
from planner.recipe.curves import Curve
from planner.recipe.problem import Box, Limits, Posynomial, cheapest_point

Curves = Callable[[np.ndarray, np.ndarray], Curve]  # draws (n,), points (A, n)

MAX_STEPS = 40
FIRST_RADIUS = 0.3  # largest first move, in units of the box
BUDGET_TOLERANCE = 1e-9  # of log cost
# A Newton step errs by about the square of its length: nothing is left to gain below this, in units of the box.
ARRIVED = 1e-6
# Certificate of an optimum: projected gradient and signs of multipliers, relative to the largest gradient or
# curvature in box units.
OPTIMALITY_TOLERANCE = 1e-6
# Curvature added across the cost surface, relative to the largest: enough to hide a negative one there unless that
# along the surface is 10,000 times smaller, and costs four digits of sixteen.
STIFFNESS = 1e4
# Below this curvature along the cost surface, relative to the largest curvature, the optimum is not unique.
FLAT_CURVATURE = 1e-9
# Draws that have ended are put aside when they are at least this share.
_ENDED_SHARE = 0.15


@dataclasses.dataclass(frozen=True)
class LogProblem:
    """A recipe problem in natural logs, as columns that broadcast over draws; K cost terms, A axes."""

    log_coefficients: np.ndarray  # (K, 1) -inf for an absent term
    powers: np.ndarray  # (K, A)
    low: np.ndarray  # (A, 1)
    width: np.ndarray  # (A, 1) zero where the axis is held fixed
    cheapest: np.ndarray  # (A, 1) the point of the box that costs least
    limits: Limits | None = None

    @classmethod
    def of(cls, cost: Posynomial, box: Box) -> "LogProblem":
        used = cost.coefficients > 0
        columns = (cost.log_coefficients[used], box.low, box.width, cheapest_point(cost, box))
        log_coefficients, low, width, cheapest = (v[:, None] for v in columns)
        return cls(log_coefficients, cost.powers[used], low, width, cheapest, box.limits)

    def log_x(self, t: np.ndarray) -> np.ndarray:
        """Axis coordinates (A, S) of box coordinates."""
        return self.low + self.width * t

    def spend(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log cost (S,) at `t`, and the part of it that every term takes, (K, S)."""
        terms = self.log_coefficients + self.powers @ self.log_x(t)
        largest = terms.max(axis=0)
        weights = np.exp(terms - largest)
        total = weights.sum(axis=0)
        return largest + np.log(total), weights / total

    def log_cost(self, t: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Log cost (S,) at `t` and its gradient (A, S)."""
        log_cost, spend = self.spend(t)
        return log_cost, (self.powers.T @ spend) * self.width


class Optimum(NamedTuple):
    """What is known at the best point found for each of S draws; A axes."""

    log_x: np.ndarray  # (S, A)
    response: np.ndarray  # (S,)
    gradient: np.ndarray  # (S, A) of the mean in log x
    slope: np.ndarray  # (S, A) d log x / d log budget, zero for axes at a bound or when the budget does not bind
    multiplier: np.ndarray  # (S,) fall of the response per unit of log budget
    at_low: np.ndarray  # (S, A) bool
    at_high: np.ndarray  # (S, A) bool
    binds: np.ndarray  # (S,) bool, the budget is used up
    converged: np.ndarray  # (S,) bool, certified a local optimum
    flat: np.ndarray  # (S,) bool, the optimum is not unique: `log_x` is one of many, `slope` NaN


class _State(NamedTuple):
    """Where every draw stands; draws are the last axis of every field."""

    row: np.ndarray  # (S,) which draw it is
    log_budget: np.ndarray  # (S,)
    t: np.ndarray  # (A, S) in [0, 1], the best point so far
    value: np.ndarray  # (S,) the curve at t
    gradient: np.ndarray  # (A, S) in log x
    hessian: np.ndarray  # (A, A, S)
    log_cost: np.ndarray  # (S,)
    multiplier: np.ndarray  # (S,) of log cost; NaN before the first step
    at_low: np.ndarray  # (A, S) bool, held at the bound
    at_high: np.ndarray  # (A, S) bool
    binds: np.ndarray  # (S,) bool, the budget is treated as an equation
    radius: np.ndarray  # (S,) largest move
    done: np.ndarray  # (S,) bool

    def some(self, chosen: np.ndarray) -> "_State":
        return _State(*(leaf[..., chosen] for leaf in self))


class _Direction(NamedTuple):
    move: np.ndarray  # (A, S)
    multiplier: np.ndarray  # (S,)
    residual: np.ndarray  # (A, S) predicted gradient of the Lagrangian; its sign at a bound tells whether to leave it
    tangent: np.ndarray  # (A, S) d t / d log budget
    curvature: np.ndarray  # (S,) smallest pivot of the reduced Hessian, relative
    scale: np.ndarray  # (S,) largest gradient or curvature, what a zero gradient is measured against


def minimise(curves: Curves, problem: LogProblem, log_budget: float | np.ndarray, starts: np.ndarray) -> Optimum:
    """The optimum of every draw reached from its start (S, A).

    Args:
        curves: `curves(rows (n,), log_x (A, n))`, the responses of some draws and their derivatives.
        log_budget: one for all draws or one for each, (S,).
    """
    if problem.limits is not None:
        from planner.recipe import limited

        return limited.minimise(curves, problem, problem.limits, log_budget, starts)
    return minimise_in_box(curves, problem, log_budget, starts)


def minimise_in_box(curves: Curves, problem: LogProblem, log_budget: float | np.ndarray, starts: np.ndarray) -> Optimum:
    """`minimise` without regard to the problem's limits."""
    with np.errstate(all="ignore"):  # a law may overflow far from its optimum; such a trial is refused
        state = _first(curves, problem, np.broadcast_to(log_budget, len(starts)).astype(np.float64), starts.T)
        ended: list[_State] = []
        for _ in range(MAX_STEPS):
            if state.done.mean() >= _ENDED_SHARE:
                ended.append(state.some(state.done))
                state = state.some(~state.done)
            if not len(state.row):
                break
            state = _step(curves, problem, state)
        pieces = [*ended, state]
        whole = _State(*(np.concatenate(leaf, axis=-1) for leaf in zip(*pieces, strict=True)))
        return _certify(problem, whole.some(np.argsort(whole.row)))


def _first(curves: Curves, problem: LogProblem, log_budget: np.ndarray, log_x: np.ndarray) -> _State:
    """Begins at `log_x` (A, S), drawn towards the cheapest point as far as the budget asks."""
    scale = np.where(problem.width > 0, problem.width, 1.0)
    t, cheapest = np.clip((log_x - problem.low) / scale, 0.0, 1.0), (problem.cheapest - problem.low) / scale
    log_cost, least = problem.spend(t)[0], problem.spend(cheapest)[0]
    over = np.maximum(log_cost - log_budget, 0.0)
    # The log cost is convex: where its chord to the cheapest point meets the budget, the cost is at most the budget.
    t = t + (over / np.where(over > 0, log_cost - least, 1.0)) * (cheapest - t)
    log_cost = problem.spend(t)[0]
    rows, none = np.arange(t.shape[1]), np.zeros(t.shape, dtype=bool)
    curve = curves(rows, problem.log_x(t))
    return _State(
        row=rows,
        log_budget=log_budget,
        t=t,
        value=curve.value,
        gradient=curve.gradient,
        hessian=curve.hessian,
        log_cost=log_cost,
        multiplier=np.full(len(rows), np.nan),
        at_low=none,
        at_high=none,
        # A start deep inside the budget may lead to an optimum that leaves some unspent.
        binds=log_cost > log_budget - 0.1,
        radius=np.full(len(rows), FIRST_RADIUS),
        done=~np.isfinite(curve.value),
    )


def _free(problem: LogProblem, state: _State) -> np.ndarray:
    return ~(state.at_low | state.at_high) & (problem.width > 0)


def _largest_diagonal(matrix: np.ndarray) -> np.ndarray:
    return np.abs(np.stack([matrix[i, i] for i in range(len(matrix))])).max(axis=0)


def _direction(problem: LogProblem, state: _State) -> _Direction:
    """The Newton move on the free axes, with the budget as an equation where it binds.

    Solves [W g; g' 0] (move, multiplier) = (-grad, slack) through W + rho g g', which is positive definite at a
    minimum although W itself need not be.
    """
    width, free = problem.width, _free(problem, state)
    _, spend = problem.spend(state.t)
    rows = problem.powers * width.T
    cost_gradient = rows.T @ spend
    # Written as a product with a matrix that no draw changes: one matrix product for the whole batch.
    second_moment = (rows[:, :, None] * rows[:, None, :]).reshape(len(rows), -1).T @ spend
    cost_hessian = second_moment.reshape(state.hessian.shape) - cost_gradient[:, None] * cost_gradient
    all_gradient, hessian = state.gradient * width, state.hessian * width[:, None] * width
    gradient, normal = np.where(free, all_gradient, 0.0), np.where(free & state.binds, cost_gradient, 0.0)
    normal_sq = (normal**2).sum(axis=0)
    safe_sq = np.where(normal_sq > 0, normal_sq, 1.0)
    first_guess = -(gradient * normal).sum(axis=0) / safe_sq
    weight = np.maximum(np.where(np.isnan(state.multiplier), first_guess, state.multiplier), 0.0)
    curvature = hessian + weight * cost_hessian
    reduced = np.where(free[:, None] & free, curvature, 0.0)
    spread = _largest_diagonal(reduced)
    spread = np.where(spread > 0, spread, 1.0)
    rho = np.where(normal_sq > 0, STIFFNESS * spread / safe_sq, 0.0)
    slack = state.log_budget - state.log_cost
    matrix = reduced + rho * normal[:, None] * normal
    for i in range(len(free)):
        matrix[i, i] += np.where(free[i], 0.0, spread)
    (step, along), pivot = factorise.solve_positive(matrix, rho * slack * normal - gradient, normal)
    along_normal = (normal * along).sum(axis=0)
    has_surface = along_normal > 0
    per_normal = 1.0 / np.where(has_surface, along_normal, 1.0)
    on_surface = ((normal * step).sum(axis=0) - slack) * per_normal
    multiplier = np.where(has_surface, on_surface, _multiplier_at_corner(all_gradient, cost_gradient, state))
    move = np.where(free, step - np.where(has_surface, multiplier, 0.0) * along, 0.0)
    return _Direction(
        move=move,
        multiplier=multiplier,
        residual=all_gradient + multiplier * cost_gradient + (curvature * move).sum(axis=1),
        tangent=np.where(has_surface, along * per_normal, 0.0),
        curvature=pivot / spread,
        # At an optimum that leaves budget unspent the gradient itself is zero and cannot serve as a scale.
        scale=np.maximum(np.abs(all_gradient).max(axis=0), _largest_diagonal(hessian)),
    )


def _multiplier_at_corner(gradient: np.ndarray, cost_gradient: np.ndarray, state: _State) -> np.ndarray:
    """The smallest multiplier that keeps every axis at its lower bound there; 0 unless the budget binds."""
    costs = state.at_low & (cost_gradient > 0)
    price = np.where(costs, -gradient / np.where(costs, cost_gradient, 1.0), 0.0)
    return np.where(state.binds, np.maximum(price.max(axis=0), 0.0), 0.0)


def _onto_budget(
    problem: LogProblem, log_budget: np.ndarray, t: np.ndarray, free: np.ndarray, equal: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Moves `t` along the cost gradient to cost <= budget (to equality where `equal`); the point and its log cost."""
    for _ in range(3):
        log_cost, gradient = problem.log_cost(t)
        gap = np.where(equal, log_budget - log_cost, np.minimum(log_budget - log_cost, 0.0))
        if not (np.abs(gap) > 1e-15 * np.abs(log_budget)).any():
            return t, log_cost
        # What a step has brought to a bound stays there, so that the bound is found to bind.
        normal = np.where(free & (t > 0) & (t < 1), gradient, 0.0)
        normal_sq = (normal**2).sum(axis=0)
        t = np.clip(t + normal * (gap / np.where(normal_sq > 0, normal_sq, 1.0)), 0.0, 1.0)
    return t, problem.spend(t)[0]


def _step(curves: Curves, problem: LogProblem, state: _State) -> _State:
    free = _free(problem, state)
    way = _direction(problem, state)
    length = np.abs(way.move).max(axis=0)
    shrink = np.minimum(1.0, state.radius / np.maximum(length, 1e-300))
    wanted = state.t + shrink * way.move
    equal = state.binds & free.any(axis=0)
    trial, trial_cost = _onto_budget(problem, state.log_budget, np.clip(wanted, 0.0, 1.0), free, equal)
    there = curves(state.row, problem.log_x(trial))
    # Rounding, and what the allowed overshoot of the budget is worth, must not reject a good step.
    allowance = 1e-13 * np.abs(state.value) + 4 * BUDGET_TOLERANCE * np.abs(way.multiplier)
    better = (there.value <= state.value + allowance) | (np.isfinite(there.value) & (length < 1e-6))
    accept = better & (trial_cost <= state.log_budget + BUDGET_TOLERANCE) & ~state.done
    t, log_cost = np.where(accept, trial, state.t), np.where(accept, trial_cost, state.log_cost)

    tolerance = 1e-10 * way.scale
    at_low = np.where(state.at_low, way.residual >= -tolerance, free & (wanted <= 0) & (t <= 0))
    at_high = np.where(state.at_high, way.residual <= tolerance, free & (wanted >= 1) & (t >= 1))
    unused = ~free.any(axis=0) & (state.log_budget - state.log_cost > BUDGET_TOLERANCE)
    reached = log_cost > state.log_budget - BUDGET_TOLERANCE
    binds = np.where(state.binds, (way.multiplier >= 0) & ~unused, reached)
    same = ((at_low == state.at_low) & (at_high == state.at_high)).all(axis=0) & (binds == state.binds)
    grown, shorter = np.maximum(state.radius, 2.0 * shrink * length), 0.25 * shrink * length
    radius = np.minimum(np.where(accept, grown, shorter), 1.0)
    ends = same & ((accept & (length < ARRIVED)) | ~(radius >= 1e-12))
    kept = state.done
    return _State(
        row=state.row,
        log_budget=state.log_budget,
        t=t,
        value=np.where(accept, there.value, state.value),
        gradient=np.where(accept, there.gradient, state.gradient),
        hessian=np.where(accept, there.hessian, state.hessian),
        log_cost=log_cost,
        multiplier=np.where(kept, state.multiplier, np.maximum(way.multiplier, 0.0)),
        at_low=np.where(kept, state.at_low, at_low),
        at_high=np.where(kept, state.at_high, at_high),
        binds=np.where(kept, state.binds, binds),
        radius=radius,
        done=kept | ends,
    )


def _certify(problem: LogProblem, state: _State) -> Optimum:
    """Checks the first- and second-order conditions at the final point, independently of how it was reached."""
    moves, free = problem.width > 0, _free(problem, state)
    way = _direction(problem, state)
    log_cost, normal = problem.log_cost(state.t)
    scaled = state.gradient * problem.width
    inner = np.where(free & state.binds, normal, 0.0)
    normal_sq = (inner**2).sum(axis=0)
    on_surface = -(scaled * inner).sum(axis=0) / np.where(normal_sq > 0, normal_sq, 1.0)
    multiplier = np.where(state.binds, np.where(normal_sq > 0, on_surface, way.multiplier), 0.0)
    residual = scaled + multiplier * normal
    tolerance = OPTIMALITY_TOLERANCE * way.scale + np.finfo(np.float64).tiny
    at_bound = np.where(state.at_low, residual >= -tolerance, ~state.at_high | (residual <= tolerance))
    stationary = np.where(free, np.abs(residual) <= tolerance, at_bound)
    gap = state.log_budget - log_cost
    converged = (
        stationary.all(axis=0)
        & np.isfinite(state.value)
        & (multiplier >= -tolerance)
        & (gap >= -2 * BUDGET_TOLERANCE)
        & (~state.binds | (gap <= 2 * BUDGET_TOLERANCE))
        & (way.curvature > -FLAT_CURVATURE)
    )
    flat = way.curvature < FLAT_CURVATURE
    slope = np.where(free & state.binds, way.tangent * problem.width, 0.0)
    return Optimum(
        log_x=problem.log_x(state.t).T,
        response=state.value,
        gradient=state.gradient.T,
        slope=np.where(flat & free & state.binds, np.nan, slope).T,
        multiplier=multiplier,
        at_low=(state.at_low & moves).T,
        at_high=(state.at_high & moves).T,
        binds=state.binds,
        converged=converged,
        flat=flat & converged,
    )
