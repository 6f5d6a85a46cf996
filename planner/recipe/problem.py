"""What a recipe is optimised over: a posynomial cost, a box of axis values, and where to start the search."""

import dataclasses

import numpy as np
import scipy.optimize

# The search starts from the best of this many points in each region of the affordable set.
POINTS_PER_START = 8


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
class Box:
    """Bounds of the axes, (A,) each, natural logs of raw units; an axis with low == high is held fixed.

    An axis that is not log-scaled (a mixture share) has its raw value as coordinate and False in `is_log`; its
    powers in the cost must be zero.  Raises `ValueError` on bounds that are not finite or the wrong way round.
    """

    low: np.ndarray
    high: np.ndarray
    is_log: np.ndarray = dataclasses.field(default_factory=lambda: np.ones((), bool))  # (A,) bool, default all

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


def cheapest_point(cost: Posynomial, box: Box) -> np.ndarray:
    """The point of the box that costs least, (A,) natural logs; the middle along an axis that costs nothing."""
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


def largest_step(cost: Posynomial, log_budget: float, origin: np.ndarray, direction: np.ndarray) -> np.ndarray:
    """The largest s in [0, 1] with cost(origin + s * direction) <= budget; (...).

    `origin` and `direction` broadcast to (..., A).  The log cost is convex in s, so from an affordable origin there
    is only one crossing, and Newton's method comes down to it from the dear side.  0 where the origin is too dear.
    """
    origin, direction = np.broadcast_arrays(origin, direction)
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
    direction = box.low + unit * box.width - origin
    with np.errstate(divide="ignore", invalid="ignore"):
        room = np.where(direction > 0, box.high - origin, origin - box.low) / np.abs(direction)
    reach = np.min(np.where(direction == 0, np.inf, room), axis=1)
    direction = direction * np.where(np.isfinite(reach), reach, 0.0)[:, None]
    step = largest_step(cost, log_budget, origin, direction) * np.where(index % 4 == 0, 0.5, 1.0)
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
