"""The axis values that give the lowest mean response under a cost budget, for one posterior draw.

Minimises mean(log x) subject to log cost(log x) <= log budget and low <= log x <= high: Newton steps on the
Karush-Kuhn-Tucker system of the bounds and the budget that bind, the binding set revised at every step, each
trial put back on the cost surface so that the response alone says whether it is better.
All work is in box coordinates t = (log x - low) / (high - low), where every axis has length one.
"""

import collections
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from planner.recipe import factorise

Mean = Callable[..., jax.Array]  # mean(theta, log_x (A,), *shared) -> (), smaller is better, pure JAX
Leaf = Any  # jax.Array inside compiled code, a numpy array once copied to the host

MAX_STEPS = 60
FIRST_RADIUS = 0.3  # largest first move, in units of the box
BUDGET_TOLERANCE = 1e-9  # of log cost
# Certificate of an optimum: projected gradient and signs of multipliers, relative to the largest gradient or
# curvature in box units.
OPTIMALITY_TOLERANCE = 1e-6
# Curvature added across the cost surface, relative to the largest: enough to hide a negative one there unless that
# along the surface is 10,000 times smaller, and costs four digits of sixteen.
STIFFNESS = 1e4
# Below this curvature along the cost surface, relative to the largest curvature, the optimum is not unique.
FLAT_CURVATURE = 1e-9

# How often each function below was traced, for the test that one program serves many calls.
trace_counts: collections.Counter[str] = collections.Counter()


class LogProblem(NamedTuple):
    """A recipe problem in natural logs; K cost terms, A axes."""

    log_coefficients: jax.Array  # (K,) -inf for an absent term
    powers: jax.Array  # (K, A)
    low: jax.Array  # (A,)
    width: jax.Array  # (A,) zero where the axis is held fixed
    cheapest: jax.Array  # (A,) the point of the box that costs least


class Optimum(NamedTuple):
    """What is known at the best point found for one draw, or, with a leading axis S, for S draws; A axes."""

    log_x: Leaf  # (A,)
    response: Leaf  # ()
    gradient: Leaf  # (A,) of the mean in log x
    slope: Leaf  # (A,) d log x / d log budget, zero for axes at a bound or when the budget does not bind
    multiplier: Leaf  # () fall of the response per unit of log budget
    at_low: Leaf  # (A,) bool
    at_high: Leaf  # (A,) bool
    binds: Leaf  # () bool, the budget is used up
    converged: Leaf  # () bool, certified a local optimum
    flat: Leaf  # () bool, the optimum is not unique: `log_x` is one of many, `slope` NaN


class _Local(NamedTuple):
    """Derivatives in box coordinates."""

    value: jax.Array  # () mean
    gradient: jax.Array  # (A,)
    hessian: jax.Array  # (A, A)
    log_cost: jax.Array  # ()
    cost_gradient: jax.Array  # (A,)
    cost_hessian: jax.Array  # (A, A)


class _State(NamedTuple):
    t: jax.Array  # (A,) in [0, 1]
    multiplier: jax.Array  # () of log cost
    at_low: jax.Array  # (A,) bool, held at the bound
    at_high: jax.Array  # (A,) bool
    binds: jax.Array  # () bool, the budget is treated as an equation
    radius: jax.Array  # () largest move
    tangent: jax.Array  # (A,) d t / d log budget
    curvature: jax.Array  # () smallest pivot of the reduced Hessian, relative
    done: jax.Array  # () bool
    scale: jax.Array  # () largest gradient or curvature, what a zero gradient is measured against
    steps: jax.Array  # () int


class _Direction(NamedTuple):
    move: jax.Array  # (A,)
    multiplier: jax.Array  # ()
    residual: jax.Array  # (A,) predicted gradient of the Lagrangian; its sign at a bound tells whether to leave it
    tangent: jax.Array  # (A,)
    curvature: jax.Array  # () smallest pivot of the reduced Hessian, relative
    scale: jax.Array  # () largest gradient or curvature


@functools.partial(jax.jit, static_argnames=("mean",))
def solve_draws(
    mean: Mean, thetas: Any, shared: tuple[Any, ...], log_budget: jax.Array, starts: jax.Array, problem: LogProblem
) -> Optimum:
    """Optimises every draw from the best of its `starts` (S, M, A); `thetas` and the result have a leading axis S."""
    trace_counts["solve_draws"] += 1
    solve = functools.partial(_solve, mean, problem)
    return jax.vmap(solve, in_axes=(0, None, None, 0))(thetas, shared, log_budget, starts)


@functools.partial(jax.jit, static_argnames=("mean",))
def responses_at(mean: Mean, thetas: Any, shared: tuple[Any, ...], log_x: jax.Array) -> jax.Array:
    """Mean response of every draw at its own points `log_x` (S, M, A), or at common points (M, A); (S, M)."""
    trace_counts["responses_at"] += 1
    at_points = jax.vmap(lambda theta, x: mean(theta, x, *shared), in_axes=(None, 0))
    return jax.vmap(at_points, in_axes=(0, 0 if log_x.ndim == 3 else None))(thetas, log_x)


def _solve(
    mean: Mean, problem: LogProblem, theta: Any, shared: tuple[Any, ...], log_budget: jax.Array, starts: jax.Array
) -> Optimum:
    def function(log_x: jax.Array) -> jax.Array:
        return mean(theta, log_x, *shared)

    values = jax.vmap(function)(starts)
    # A law may overflow far from its optimum; such a point is no start.
    best = jnp.argmin(jnp.where(jnp.isfinite(values), values, jnp.inf))
    t, log_cost = _affordable_start(problem, log_budget, starts[best])
    none = problem.width < 0
    zero = jnp.zeros_like(log_cost)
    state = _State(
        t=t,
        multiplier=zero,
        at_low=none,
        at_high=none,
        # A start deep inside the budget may lead to an optimum that leaves some unspent.
        binds=log_cost > log_budget - 0.1,
        radius=zero + FIRST_RADIUS,
        tangent=jnp.zeros_like(t),
        curvature=zero,
        done=~jnp.isfinite(values[best]),
        scale=zero,
        steps=jnp.zeros((), jnp.int32),
    )
    state = jax.lax.while_loop(
        lambda s: ~s.done & (s.steps < MAX_STEPS), functools.partial(_step, function, problem, log_budget), state
    )
    return _certify(function, problem, log_budget, state)


def _affordable_start(problem: LogProblem, log_budget: jax.Array, log_x: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`log_x` in box coordinates, drawn towards the cheapest point as far as the budget asks; and its log cost."""
    scale = jnp.where(problem.width > 0, problem.width, 1.0)
    t, cheapest = jnp.clip((log_x - problem.low) / scale, 0.0, 1.0), (problem.cheapest - problem.low) / scale
    log_cost, _ = _log_cost(problem, t)
    over = jnp.maximum(log_cost - log_budget, 0.0)
    # The log cost is convex: where its chord to the cheapest point meets the budget, the cost is at most the budget.
    fall = jnp.where(over > 0, log_cost - _log_cost(problem, cheapest)[0], 1.0)
    t = t + (over / fall) * (cheapest - t)
    return t, _log_cost(problem, t)[0]


def _log_cost(problem: LogProblem, t: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Log cost at `t` and the spend share of every term, (K,)."""
    terms = problem.log_coefficients + problem.powers @ (problem.low + problem.width * t)
    largest = jnp.max(terms)
    weights = jnp.exp(terms - largest)
    total = jnp.sum(weights)
    return largest + jnp.log(total), weights / total


def _cost_gradient(problem: LogProblem, spend: jax.Array) -> jax.Array:
    return (spend @ problem.powers) * problem.width


def _local(function: Callable[[jax.Array], jax.Array], problem: LogProblem, t: jax.Array) -> _Local:
    def gradient_first(x: jax.Array) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        value, gradient = jax.value_and_grad(function)(x)
        return gradient, (value, gradient)

    width = problem.width
    hessian, (value, gradient) = jax.jacfwd(gradient_first, has_aux=True)(problem.low + width * t)
    log_cost, spend = _log_cost(problem, t)
    cost_gradient = _cost_gradient(problem, spend)
    rows = problem.powers * width
    # Written as a product with a matrix that no draw changes: one matrix product for the whole batch.
    second_moment = spend @ (rows[:, :, None] * rows[:, None, :]).reshape(len(rows), -1)
    return _Local(
        value=value,
        gradient=gradient * width,
        hessian=hessian * width[:, None] * width[None, :],
        log_cost=log_cost,
        cost_gradient=cost_gradient,
        cost_hessian=second_moment.reshape(hessian.shape) - cost_gradient[:, None] * cost_gradient[None, :],
    )


def _direction(here: _Local, state: _State, free: jax.Array, slack: jax.Array) -> _Direction:
    """The Newton move on the free axes, with the budget as an equation where it binds.

    Solves [W g; g' 0] (move, multiplier) = (-grad, slack) through W + rho g g', which is positive definite at a
    minimum although W itself need not be.
    """
    mask = free.astype(here.gradient.dtype)
    gradient, normal = here.gradient * mask, here.cost_gradient * mask * state.binds
    normal_sq = jnp.sum(normal**2)
    first_guess = jnp.maximum(-jnp.sum(gradient * normal) / jnp.where(normal_sq > 0, normal_sq, 1.0), 0.0)
    weight = jnp.where(state.steps == 0, first_guess, state.multiplier)
    curvature = here.hessian + weight * here.cost_hessian
    reduced = curvature * mask[:, None] * mask[None, :]
    spread = jnp.max(jnp.abs(jnp.diagonal(reduced)))
    spread = jnp.where(spread > 0, spread, 1.0)
    rho = jnp.where(normal_sq > 0, STIFFNESS * spread / jnp.where(normal_sq > 0, normal_sq, 1.0), 0.0)
    held = jnp.where(free, 0.0, spread)
    matrix = reduced + rho * normal[:, None] * normal[None, :] + jnp.diag(held)
    (step, along), pivot = factorise.solve_positive(matrix, rho * slack * normal - gradient, normal)
    along_normal = jnp.sum(normal * along)
    has_surface = along_normal > 0
    per_normal = 1.0 / jnp.where(has_surface, along_normal, 1.0)
    multiplier = jnp.where(
        has_surface, (jnp.sum(normal * step) - slack) * per_normal, _multiplier_at_corner(here, state)
    )
    move = (step - jnp.where(has_surface, multiplier, 0.0) * along) * mask
    residual = here.gradient + multiplier * here.cost_gradient + jnp.sum(curvature * move, axis=1)
    return _Direction(
        move=move,
        multiplier=multiplier,
        residual=residual,
        tangent=jnp.where(has_surface, along * per_normal, 0.0),
        curvature=pivot / spread,
        # At an optimum that leaves budget unspent the gradient itself is zero and cannot serve as a scale.
        scale=jnp.maximum(jnp.max(jnp.abs(here.gradient)), jnp.max(jnp.abs(jnp.diagonal(here.hessian)))),
    )


def _multiplier_at_corner(here: _Local, state: _State) -> jax.Array:
    """The smallest multiplier that keeps every axis at its lower bound there; 0 unless the budget binds."""
    costs = state.at_low & (here.cost_gradient > 0)
    price = -here.gradient / jnp.where(costs, here.cost_gradient, 1.0)
    return jnp.where(state.binds, jnp.maximum(jnp.max(jnp.where(costs, price, 0.0)), 0.0), 0.0)


def _onto_budget(
    problem: LogProblem, log_budget: jax.Array, t: jax.Array, free: jax.Array, equal: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Moves `t` along the cost gradient to cost <= budget (to equality where `equal`); the point and its log cost."""
    for _ in range(3):
        log_cost, spend = _log_cost(problem, t)
        # What a step has brought to a bound stays there, so that the bound is found to bind.
        normal = jnp.where(free & (t > 0) & (t < 1), _cost_gradient(problem, spend), 0.0)
        normal_sq = jnp.sum(normal**2)
        gap = jnp.where(equal, log_budget - log_cost, jnp.minimum(log_budget - log_cost, 0.0))
        t = jnp.clip(t + normal * gap / jnp.where(normal_sq > 0, normal_sq, 1.0), 0.0, 1.0)
    return t, _log_cost(problem, t)[0]


def _step(
    function: Callable[[jax.Array], jax.Array], problem: LogProblem, log_budget: jax.Array, state: _State
) -> _State:
    here = _local(function, problem, state.t)
    free = ~(state.at_low | state.at_high) & (problem.width > 0)
    slack = log_budget - here.log_cost
    way = _direction(here, state, free, slack)
    length = jnp.max(jnp.abs(way.move))
    shrink = jnp.minimum(1.0, state.radius / jnp.maximum(length, 1e-300))
    wanted = state.t + shrink * way.move
    clipped, equal = jnp.clip(wanted, 0.0, 1.0), state.binds & free.any()
    trial, trial_cost = _onto_budget(problem, log_budget, clipped, free, equal)
    value = function(problem.low + problem.width * trial)
    # Rounding, and what the allowed overshoot of the budget is worth, must not reject a good step.
    allowance = 1e-13 * jnp.abs(here.value) + 4 * BUDGET_TOLERANCE * jnp.abs(way.multiplier)
    affordable = trial_cost <= log_budget + BUDGET_TOLERANCE
    accept = affordable & ((value <= here.value + allowance) | (jnp.isfinite(value) & (length < 1e-6)))
    t = jnp.where(accept, trial, state.t)

    tolerance = 1e-10 * way.scale
    at_low = jnp.where(state.at_low, way.residual >= -tolerance, free & (wanted <= 0) & (t <= 0))
    at_high = jnp.where(state.at_high, way.residual <= tolerance, free & (wanted >= 1) & (t >= 1))
    log_cost = jnp.where(accept, trial_cost, here.log_cost)
    unused = ~free.any() & (slack > BUDGET_TOLERANCE)
    binds = jnp.where(state.binds, (way.multiplier >= 0) & ~unused, log_cost > log_budget - BUDGET_TOLERANCE)
    unchanged = jnp.all(at_low == state.at_low) & jnp.all(at_high == state.at_high) & (binds == state.binds)
    # The slopes are those at the start of the last step, so it has to be as short as they are to be precise.
    arrived = accept & unchanged & (length < 1e-8)
    radius = jnp.where(accept, jnp.maximum(state.radius, 2.0 * shrink * length), 0.25 * shrink * length)
    return _State(
        t=t,
        multiplier=jnp.maximum(way.multiplier, 0.0),
        at_low=at_low,
        at_high=at_high,
        binds=binds,
        radius=jnp.minimum(radius, 1.0),
        tangent=way.tangent,
        curvature=way.curvature,
        done=arrived | (unchanged & (radius < 1e-12)),
        scale=way.scale,
        steps=state.steps + 1,
    )


def _certify(
    function: Callable[[jax.Array], jax.Array], problem: LogProblem, log_budget: jax.Array, state: _State
) -> Optimum:
    """Checks the first- and second-order conditions at the final point, independently of how it was reached."""
    moves = problem.width > 0
    value, gradient = jax.value_and_grad(function)(problem.low + problem.width * state.t)
    log_cost, spend = _log_cost(problem, state.t)
    scaled, normal = gradient * problem.width, _cost_gradient(problem, spend)
    free = ~(state.at_low | state.at_high) & moves
    inner = jnp.where(free & state.binds, normal, 0.0)
    normal_sq = jnp.sum(inner**2)
    multiplier = jnp.where(
        normal_sq > 0, -jnp.sum(scaled * inner) / jnp.where(normal_sq > 0, normal_sq, 1.0), state.multiplier
    )
    multiplier = jnp.where(state.binds, multiplier, 0.0)
    residual = scaled + multiplier * normal
    tolerance = OPTIMALITY_TOLERANCE * state.scale + jnp.finfo(value.dtype).tiny
    stationary = jnp.where(
        free,
        jnp.abs(residual) <= tolerance,
        jnp.where(state.at_low, residual >= -tolerance, jnp.where(state.at_high, residual <= tolerance, True)),
    )
    flat = state.curvature < FLAT_CURVATURE
    converged = (
        jnp.all(stationary)
        & jnp.isfinite(value)
        & (multiplier >= -tolerance)
        & (log_cost <= log_budget + 2 * BUDGET_TOLERANCE)
        & (~state.binds | (log_cost >= log_budget - 2 * BUDGET_TOLERANCE))
        & (state.curvature > -FLAT_CURVATURE)
    )
    slope = jnp.where(free & state.binds, state.tangent * problem.width, 0.0)
    return Optimum(
        log_x=problem.low + problem.width * state.t,
        response=value,
        gradient=gradient,
        slope=jnp.where(flat & free & state.binds, jnp.nan, slope),
        multiplier=multiplier,
        at_low=state.at_low & moves,
        at_high=state.at_high & moves,
        binds=state.binds,
        converged=converged,
        flat=flat & converged,
    )
