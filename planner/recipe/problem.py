"""What a recipe is optimised over: a posynomial cost, a box of axis values, and where to start the search."""

import dataclasses

import numpy as np
import scipy.optimize

from planner.errors import InputError

# The search starts from the best of this many points in each region of the affordable set.
POINTS_PER_START = 8
# Two numbers of limits, natural logs, that are the same up to rounding.
LIMIT_TOLERANCE = 1e-9
_PROJECTIONS = 60


@dataclasses.dataclass(frozen=True)
class Posynomial:
    """The cost sum_k coefficients[k] * prod_a x_a^powers[k, a] of one run, in units of the budget.

    `coefficients` is (K,), finite and not negative, at least one of them positive; `powers` is (K, A), any real
    numbers.  A coefficient of zero removes its term.  Raises `ValueError` on anything else.
    """

    coefficients: np.ndarray
    powers: np.ndarray

    def __post_init__(self) -> None:
        object.__setattr__(self, "coefficients", np.asarray(self.coefficients, dtype=np.float64))
        object.__setattr__(self, "powers", np.asarray(self.powers, dtype=np.float64))
        if self.coefficients.ndim != 1 or self.powers.ndim != 2 or len(self.coefficients) != len(self.powers):
            raise ValueError(
                f"cost: need coefficients (K,) and powers (K, A), got shapes {self.coefficients.shape}"
                f" and {self.powers.shape}"
            )
        good = np.isfinite(self.coefficients) & (self.coefficients >= 0)
        if not good.all() or not self.coefficients.any():
            raise ValueError(f"cost: coefficients must be finite, >= 0 and not all zero, got {self.coefficients}")
        if not np.isfinite(self.powers).all():
            raise ValueError(f"cost: powers must be finite, got {self.powers.tolist()}")

    @property
    def log_coefficients(self) -> np.ndarray:
        """(K,), minus infinity for a term that is switched off."""
        with np.errstate(divide="ignore"):
            return np.log(self.coefficients)

    def log_terms(self, log_x: np.ndarray) -> np.ndarray:
        """Log of every term at `log_x` (..., A), natural logs; (..., K)."""
        return self.log_coefficients + np.asarray(log_x) @ self.powers.T

    def log_cost(self, log_x: np.ndarray) -> np.ndarray:
        """Natural log of the cost at `log_x` (..., A); (...)."""
        return np.logaddexp.reduce(self.log_terms(log_x), axis=-1)

    def elasticity(self, log_x: np.ndarray) -> np.ndarray:
        """d log cost / d log x_a at `log_x` (..., A); (..., A)."""
        terms = self.log_terms(log_x)
        weights = np.exp(terms - terms.max(axis=-1, keepdims=True))
        return (weights / weights.sum(axis=-1, keepdims=True)) @ self.powers


@dataclasses.dataclass(frozen=True)
class Limits:
    """Bounds low <= powers @ log x <= high on products of powers of the axes, natural logs; equality where they agree.

    `powers` is (L, A), `low` and `high` are (L,), minus and plus infinity where a product is not bounded.
    """

    powers: np.ndarray
    low: np.ndarray
    high: np.ndarray

    def excess(self, log_x: np.ndarray) -> np.ndarray:
        """How far the products at `log_x` (..., A) lie above their bounds, below them if negative; (..., L)."""
        value = np.asarray(log_x) @ self.powers.T
        return value - np.clip(value, self.low, self.high)

    def hold(self, log_x: np.ndarray) -> np.ndarray:
        """Whether the points (..., A) keep to all limits, up to rounding; (...) bool."""
        return (np.abs(self.excess(log_x)) <= LIMIT_TOLERANCE).all(axis=-1)

    def room(self, origin: np.ndarray, direction: np.ndarray) -> np.ndarray:
        """The largest s in [0, 1] at which origin + s * direction has crossed no bound ahead of it; (...)."""
        value, rate = origin @ self.powers.T, direction @ self.powers.T
        # A direction along the surface of a limit has a rate of rounding noise, a point on it no room.
        moves = np.abs(rate) > 1e-7 * (1.0 + np.abs(direction).max(axis=-1, keepdims=True))
        ahead = np.where(rate > 0, self.high, self.low) - value
        ahead = np.where(np.abs(ahead) <= 10 * LIMIT_TOLERANCE, 0.0, ahead)
        step = np.where(moves, ahead / np.where(moves, rate, 1.0), 1.0)
        return np.clip(step, 0.0, 1.0).min(axis=-1)

    def nearest(self, points: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
        """Points (N, A) between `low` and `high` (A,) moved to near the limits, by projections in turn."""
        for _ in range(_PROJECTIONS):
            for powers, excess in zip(self.powers, self.excess(points).T, strict=True):
                normal = np.where(high > low, powers, 0.0)
                points = points - excess[:, None] * normal / max(float(normal @ normal), 1e-300)
            points = np.clip(points, low, high)
            if self.hold(points).all():
                break
        return points


@dataclasses.dataclass(frozen=True)
class Box:
    """Bounds of the axes, (A,) each, natural logs of raw units; an axis with low == high is held fixed.

    An axis that is not log-scaled (a mixture share) has its raw value as coordinate and False in `is_log`; its
    powers in the cost and in `limits` must be zero.  Raises `ValueError` on bounds that are not finite or the wrong
    way round.
    """

    low: np.ndarray
    high: np.ndarray
    is_log: np.ndarray = dataclasses.field(default_factory=lambda: np.ones((), bool))  # (A,) bool, default all
    limits: Limits | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "low", np.asarray(self.low, dtype=np.float64))
        object.__setattr__(self, "high", np.asarray(self.high, dtype=np.float64))
        if self.low.ndim != 1 or self.low.shape != self.high.shape:
            raise ValueError(f"box: need low (A,) and high (A,), got shapes {self.low.shape} and {self.high.shape}")
        if not (np.isfinite(self.low) & np.isfinite(self.high) & (self.low <= self.high)).all():
            raise ValueError(f"box: need finite low <= high on every axis, got low={self.low}, high={self.high}")
        object.__setattr__(self, "is_log", np.broadcast_to(np.asarray(self.is_log, dtype=bool), self.low.shape))

    @property
    def width(self) -> np.ndarray:
        return self.high - self.low

    def raw(self, coordinates: np.ndarray) -> np.ndarray:
        """Axis values in raw units from coordinates (..., A)."""
        return np.where(self.is_log, np.exp(np.where(self.is_log, coordinates, 0.0)), coordinates)

    def coordinates(self, raw: np.ndarray) -> np.ndarray:
        """Coordinates from axis values in raw units, (..., A)."""
        return np.where(self.is_log, np.log(np.where(self.is_log, raw, 1.0)), raw)


def infeasible_limits(box: Box) -> list[int]:
    """Positions of limits that no point of the box keeps to: one that cannot be kept, or a few that exclude each other.

    Empty where there is such a point.
    """
    if box.limits is None or _has_point(box, list(range(len(box.limits.powers)))):
        return []
    left = list(range(len(box.limits.powers)))
    # Leave out what is not needed for the contradiction.
    for each in list(left):
        fewer = [i for i in left if i != each]
        if fewer and not _has_point(box, fewer):
            left = fewer
    return left


def _has_point(box: Box, chosen: list[int]) -> bool:
    assert box.limits is not None
    powers, low, high = (leaf[chosen] for leaf in (box.limits.powers, box.limits.low, box.limits.high))
    rows, bounds = np.concatenate([powers, -powers]), np.concatenate([high, -low]) + LIMIT_TOLERANCE
    told = np.isfinite(bounds)
    sides = np.stack([box.low, box.high], axis=1)
    return bool(scipy.optimize.linprog(np.zeros(len(box.low)), rows[told], bounds[told], bounds=sides).status == 0)


def cheapest_point(cost: Posynomial, box: Box) -> np.ndarray:
    """The point of the box that costs least and keeps to its limits, (A,) natural logs; the middle along an axis that
    costs nothing.  Raises `InputError` where no point keeps to the limits.
    """
    free = dataclasses.replace(box, limits=None)
    start = _cheapest_of_box(cost, free)
    if box.limits is None or box.limits.hold(start):
        return start
    return _cheapest_within(cost, box, box.limits, start)


def _cheapest_within(cost: Posynomial, box: Box, limits: Limits, start: np.ndarray) -> np.ndarray:
    """The same by sequential quadratic programming in box coordinates: log cost is convex, limits are linear."""
    free = box.width > 0
    held, width = np.where(free, 0.0, box.low), box.width[free]
    # Limits on axes that are all held are met or not: no point can be moved.
    rows = np.flatnonzero((limits.powers[:, free] != 0).any(axis=1))
    slope = limits.powers[rows][:, free] * width
    offset = limits.powers[rows] @ np.where(free, box.low, held)
    low, high = limits.low[rows] - offset, limits.high[rows] - offset
    constraints = [scipy.optimize.LinearConstraint(slope[i], low[i], high[i]) for i in range(len(rows))]

    def point(t: np.ndarray) -> np.ndarray:
        x = box.low.copy()
        x[free] += width * t
        return x

    begin = limits.nearest(start[None], box.low, box.high)[0]
    found = begin
    if len(rows):
        got = scipy.optimize.minimize(
            lambda t: cost.log_cost(point(t)),
            np.clip((begin - box.low)[free] / width, 0.0, 1.0),
            jac=lambda t: cost.elasticity(point(t))[free] * width,
            bounds=[(0.0, 1.0)] * int(free.sum()),
            constraints=constraints,
            method="SLSQP",
            options={"ftol": 1e-14, "maxiter": 500},
        )
        found = limits.nearest(np.clip(point(got.x), box.low, box.high)[None], box.low, box.high)[0]
    tried = [x for x in (found, begin) if np.abs(limits.excess(x)).max() <= 1e-6]
    if not tried:
        names = ", ".join(f"limits[{i}]" for i in infeasible_limits(box)) or "limits"
        raise InputError(f"{names}: no point within the axes' ranges keeps to it; widen the limit or the axes")
    return min(tried, key=lambda x: float(cost.log_cost(x)))


def _cheapest_of_box(cost: Posynomial, box: Box) -> np.ndarray:
    powers = cost.powers[cost.coefficients > 0]
    rising, falling = (powers >= 0).all(axis=0), (powers <= 0).all(axis=0)
    middle = box.low + 0.5 * box.width
    start = np.where(rising & falling, middle, np.where(rising, box.low, np.where(falling, box.high, middle)))
    if (rising | falling).all():
        return start
    found = scipy.optimize.minimize(
        cost.log_cost, start, jac=cost.elasticity, bounds=np.stack([box.low, box.high], axis=1), method="L-BFGS-B"
    )
    return np.clip(found.x, box.low, box.high)


def largest_step(
    cost: Posynomial, log_budget: float, origin: np.ndarray, direction: np.ndarray, limits: Limits | None = None
) -> np.ndarray:
    """The largest s in [0, 1] with cost(origin + s * direction) <= budget, ahead of the next limit; (...).

    `origin` and `direction` broadcast to (..., A).  The log cost is convex in s, so from an affordable origin there
    is only one crossing, and Newton's method comes down to it from the dear side.  0 where the origin is too dear.
    """
    origin, direction = np.broadcast_arrays(origin, direction)
    if limits is not None:
        room = limits.room(origin, direction)
        return room * largest_step(cost, log_budget, origin, room[..., None] * direction)
    first = cost.log_terms(origin)
    rate = direction @ cost.powers.T
    step, at_zero = np.ones(origin.shape[:-1]), np.logaddexp.reduce(first, axis=-1)
    for _ in range(60):
        terms = first + step[..., None] * rate
        largest = terms.max(axis=-1, keepdims=True)
        weights = np.exp(terms - largest)
        total = weights.sum(axis=-1)
        over = largest[..., 0] + np.log(total) - log_budget
        dear = over > 1e-14 * np.abs(log_budget) + 1e-14
        if not dear.any():
            break
        slope = (weights * rate).sum(axis=-1) / total
        step = np.where(dear & (slope > 0), np.maximum(step - over / np.where(slope > 0, slope, 1.0), 0.0), step)
    # Newton ends a rounding error on the dear side; the chord to the origin cuts on the other.
    outside = (over > 0) & (at_zero < log_budget)
    chord = (log_budget - at_zero) / np.where(outside, log_budget + over - at_zero, 1.0)
    return np.where(outside, step * chord, np.where(over > 0, 0.0, step))


def start_points(cost: Posynomial, log_budget: float, box: Box, num_starts: int) -> np.ndarray:
    """Points to start the search from, one group per start; (num_starts, POINTS_PER_START, A) natural logs.

    Rays from the cheapest point through a low-discrepancy sequence (R. Kronecker's, with the generalised golden
    ratio) end where the budget or the box ends; every fourth is cut in half, for optima that leave budget
    unspent.  The points are then split into compact groups, so that each start explores a region of its own.
    """
    num_axes = len(box.low)
    golden = 2.0
    for _ in range(64):
        golden = (1.0 + golden) ** (1.0 / (num_axes + 1))
    index = np.arange(1, num_starts * POINTS_PER_START + 1)
    unit = np.mod(0.5 + index[:, None] * golden ** -np.arange(1.0, num_axes + 1), 1.0)

    origin = cheapest_point(cost, box)
    ends = box.low + unit * box.width
    direction = (ends if box.limits is None else box.limits.nearest(ends, box.low, box.high)) - origin
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(direction > 0, box.high - origin, origin - box.low) / np.abs(direction)
    reach = np.min(np.where(direction == 0, np.inf, room), axis=1)
    direction = direction * np.where(np.isfinite(reach), reach, 0.0)[:, None]
    step = largest_step(cost, log_budget, origin, direction, box.limits) * np.where(index % 4 == 0, 0.5, 1.0)
    points = np.clip(origin + step[:, None] * direction, box.low, box.high)
    return np.stack(_compact_groups(points, num_starts))


def _compact_groups(points: np.ndarray, num_groups: int) -> list[np.ndarray]:
    """Splits `points` into equal groups by cutting the widest axis again and again."""
    if num_groups == 1:
        return [points]
    order = np.argsort(points[:, np.argmax(np.ptp(points, axis=0))], kind="stable")
    left = num_groups // 2
    cut = left * len(points) // num_groups
    return _compact_groups(points[order[:cut]], left) + _compact_groups(points[order[cut:]], num_groups - left)
