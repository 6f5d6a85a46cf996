"""Moves a recipe onto the values that a run may take, without leaving the budget or the limits."""

import dataclasses
import itertools
from collections.abc import Callable, Sequence

import numpy as np

from planner.recipe import curves
from planner.recipe.curves import RecipePart
from planner.recipe.problem import Box, Posynomial, largest_step

# An axis whose neighbouring values differ by less than this part is treated as continuous and rounded last.
FINE_SPACING = 1e-3
MAX_ROUNDS = 30
# Below this number of points times draws, every allowed point is tried.
MAX_EVALUATIONS = 4_000_000
# Otherwise the points tried in one round, over all recipes that are rounded.
MAX_POINTS = 50_000

# Points (N, M, A), or (1, M, A) for all recipes, to responses (N, M), smaller is better.
Evaluate = Callable[[np.ndarray], np.ndarray]


@dataclasses.dataclass(frozen=True)
class AllowedValues:
    """The values of one axis in raw units: `values` sorted, or multiples of `step` counted from `origin`.

    Raises `ValueError` unless exactly one of `values` and `step` is given, values rise and the step is positive.
    """

    values: tuple[float, ...] | None = None
    step: float | None = None
    origin: float = 0.0

    def __post_init__(self) -> None:
        if (self.values is None) == (self.step is None):
            raise ValueError(f"allowed values: give either values or step, got {self.values} and {self.step}")
        if self.step is not None and not self.step > 0:
            raise ValueError(f"allowed values: step must be > 0, got {self.step}")
        if self.values is not None and (len(self.values) == 0 or (np.diff(self.values) <= 0).any()):
            raise ValueError(f"allowed values: need rising values, got {self.values}")

    def index_below(self, raw: np.ndarray) -> np.ndarray:
        """Index of the largest allowed value <= `raw`, forgiving the rounding of exp(log(x)); may be out of range."""
        raw = np.asarray(raw, dtype=np.float64)
        raw = raw + 1e-9 * np.abs(raw)
        if self.step is not None:
            return np.floor((raw - self.origin) / self.step)
        return np.searchsorted(np.asarray(self.values), raw, side="right") - 1.0

    def value(self, index: np.ndarray) -> np.ndarray:
        """The allowed value with this index, raw units."""
        if self.step is not None:
            return self.origin + index * self.step
        return np.asarray(self.values)[np.clip(index, 0, len(self.values or ()) - 1).astype(int)]


class _Lattice:
    """The allowed points of a box; the coordinates of free axes pass through unchanged."""

    def __init__(self, allowed: Sequence[AllowedValues | None], box: Box, centre: np.ndarray) -> None:
        if len(allowed) != len(box.low):
            raise ValueError(f"allowed values are given for {len(allowed)} axes, the box has {len(box.low)}")
        self.allowed, self.box = allowed, box
        low, high = box.raw(box.low), box.raw(box.high)
        self.first, self.last = np.zeros(len(low)), np.zeros(len(low))
        self.coarse = np.zeros(len(low), bool)
        self.spacing = np.zeros(len(low))  # gap between neighbours near the centre, in coordinates
        for a, grid in enumerate(allowed):
            if grid is None:
                continue
            # Ceiling of the lower bound: the largest value below it, plus one unless that is the bound itself.
            below = grid.index_below(low[a])
            on_bound = grid.value(below) >= low[a] * (1 - 1e-9) if below >= 0 or grid.step is not None else False
            self.first[a], self.last[a] = below + (not on_bound), grid.index_below(high[a])
            if self.first[a] > self.last[a]:
                raise ValueError(f"axis number {a} has no allowed value between {low[a]:g} and {high[a]:g}")
            here = self.coordinates(a, self.index(a, centre[a]) + np.array([0.0, 1.0]))
            self.spacing[a] = here[1] - here[0]
            self.coarse[a] = self.spacing[a] > FINE_SPACING or self.first[a] == self.last[a]

    def index(self, axis: int, coordinate: np.ndarray) -> np.ndarray:
        """Index of the allowed value at or below a coordinate, within the box."""
        grid = self.allowed[axis]
        assert grid is not None
        raw = np.exp(coordinate) if self.box.is_log[axis] else coordinate
        return np.clip(grid.index_below(raw), self.first[axis], self.last[axis])

    def coordinates(self, axis: int, index: np.ndarray) -> np.ndarray:
        grid = self.allowed[axis]
        assert grid is not None
        raw = grid.value(np.clip(index, self.first[axis], self.last[axis]))
        return np.log(raw) if self.box.is_log[axis] else raw

    def shifted(self, points: np.ndarray, moves: np.ndarray) -> np.ndarray:
        """Points (N, A), moved onto the lattice below and then by whole steps `moves` (M, A); (N, M, A)."""
        result = np.repeat(points[:, None, :], len(moves), axis=1)
        for a in np.flatnonzero(self.coarse).tolist():
            result[:, :, a] = self.coordinates(a, self.index(a, points[:, a])[:, None] + moves[:, a])
        return result

    def all_points(self, cost: Posynomial, log_budget: float, most: int) -> np.ndarray | None:
        """Every affordable point, (M, A); None if there are more than `most` points or an axis is continuous."""
        moving = self.box.width > 0
        if any(grid is None for grid, moves in zip(self.allowed, moving, strict=True) if moves):
            return None
        if np.prod(self.last - self.first + 1) > most:
            return None
        values = [
            self.coordinates(a, np.arange(self.first[a], self.last[a] + 1)) if self.allowed[a] else self.box.low[[a]]
            for a in range(len(moving))
        ]
        points = np.stack([axis.ravel() for axis in np.meshgrid(*values, indexing="ij")], axis=1)
        return points[_fits(points, cost, log_budget, self.box)]

    def spend_rest(
        self, points: np.ndarray, cost: Posynomial, log_budget: float, axes: Sequence[int] | None = None
    ) -> np.ndarray:
        """Adds, for each of `axes` (default: all that move), the points with that axis at the most that fits."""
        tried = [points]
        for a in np.flatnonzero(self.box.width > 0).tolist() if axes is None else axes:
            lowest, along = points.copy(), np.zeros(points.shape[-1])
            lowest[..., a], along[a] = self.box.low[a], self.box.width[a]
            lowest[..., a] += largest_step(cost, log_budget, lowest, along, self.box.limits) * along[a]
            if self.coarse[a]:
                lowest[..., a] = self.coordinates(a, self.index(a, lowest[..., a]))
            tried.append(lowest)
        return np.concatenate(tried, axis=1)


def coarse_axes(allowed: Sequence[AllowedValues | None], box: Box, centre: np.ndarray) -> np.ndarray:
    """Which axes have so few allowed values near `centre` (A,) that they cannot be treated as continuous; (A,) bool."""
    return _Lattice(allowed, box, centre).coarse


def round_points(
    evaluate: Evaluate,
    log_x: np.ndarray,
    cost: Posynomial,
    log_budget: float,
    box: Box,
    allowed: Sequence[AllowedValues | None],
    num_draws: int,
) -> np.ndarray:
    """Allowed, affordable points with a low response near the optima `log_x` (N, A); (N, A), NaN where there are none.

    Exact where all allowed points can be tried, see `MAX_EVALUATIONS`; `num_draws` is how many draws one point is
    evaluated for.  Otherwise tries the two neighbours on every axis in all combinations, then a window around the
    best so far until nothing in it is better, every point also with the rest of the budget spent on one axis.
    """
    lattice = _Lattice(allowed, box, np.median(log_x, axis=0))
    everything = lattice.all_points(cost, log_budget, MAX_EVALUATIONS // num_draws)
    if everything is not None:
        nothing = np.full_like(log_x, np.nan)
        if len(everything) == 0:
            return nothing
        return _keep_best(evaluate, nothing, np.full(len(log_x), np.inf), everything[None], cost, log_budget, box)[0]
    coarse, num_axes = np.flatnonzero(lattice.coarse & (lattice.first < lattice.last)), log_x.shape[1]
    best, value = np.full_like(log_x, np.nan), np.full(len(log_x), np.inf)
    cheapest = np.where((cost.powers >= 0).all(axis=0), box.low, box.high)
    window = _window(coarse, num_axes, (0, 1))
    for start in (log_x, np.where(lattice.coarse, cheapest, log_x)):
        points = lattice.spend_rest(lattice.shifted(start, window), cost, log_budget)
        best, value = _keep_best(evaluate, best, value, points, cost, log_budget, box)
    window = _window_of_size(coarse, num_axes, MAX_POINTS // (len(log_x) * (1 + num_axes)))
    for _ in range(MAX_ROUNDS):
        base = np.where(np.isfinite(best), best, log_x)
        points = lattice.spend_rest(lattice.shifted(base, window), cost, log_budget)
        best, lower = _keep_best(evaluate, best, value, points, cost, log_budget, box)
        if not (lower < value).any():
            break
        value = lower
    base = np.where(np.isfinite(best), best, log_x)
    rounded = _round_fine(evaluate, lattice, base, cost, log_budget)
    return np.where(np.isfinite(best), rounded, np.nan)


def _window(axes: np.ndarray, num_axes: int, steps: Sequence[int]) -> np.ndarray:
    """All combinations of `steps` along `axes`; (M, A)."""
    moves = np.zeros((len(steps) ** len(axes), num_axes))
    moves[:, axes] = list(itertools.product(steps, repeat=len(axes)))
    return moves


def _window_of_size(axes: np.ndarray, num_axes: int, most: int) -> np.ndarray:
    """The widest symmetric window of at most `most` points; at least one step along any one or two axes; (M, A)."""
    widths = [w for w in range(1, 8) if (2 * w + 1) ** len(axes) <= most]
    if widths:
        return _window(axes, num_axes, range(-widths[-1], widths[-1] + 1))
    pairs = itertools.combinations(axes, min(2, len(axes)))
    return np.unique(np.concatenate([_window(np.array(pair), num_axes, (-1, 0, 1)) for pair in pairs]), axis=0)


def _fits(points: np.ndarray, cost: Posynomial, log_budget: float, box: Box) -> np.ndarray:
    """Which points (..., A) are affordable and keep to the limits of the box, (...) bool."""
    # Sums of rounded numbers may exceed the budget in the last digit.
    affordable = cost.log_cost(points) <= log_budget + 1e-12
    return affordable if box.limits is None else affordable & box.limits.hold(points)


def _keep_best(
    evaluate: Evaluate,
    best: np.ndarray,
    value: np.ndarray,
    points: np.ndarray,
    cost: Posynomial,
    log_budget: float,
    box: Box,
) -> tuple[np.ndarray, np.ndarray]:
    """The lowest affordable of `points`, (N, M, A) or (1, M, A), where it is lower than `value` (N,)."""
    found = evaluate(points)
    found = np.where(np.isfinite(found) & _fits(points, cost, log_budget, box), found, np.inf)
    choice = np.argmin(found, axis=1)
    rows = np.arange(len(value))
    chosen = points[0, choice] if len(points) == 1 else points[rows, choice]
    lower = found[rows, choice] < value
    return np.where(lower[:, None], chosen, best), np.where(lower, found[rows, choice], value)


def _round_fine(
    evaluate: Evaluate, lattice: _Lattice, points: np.ndarray, cost: Posynomial, log_budget: float
) -> np.ndarray:
    """Rounds the axes with many values, the widest spaced first, to the better neighbour that fits.

    What rounding saves is spent on one of the axes that are not rounded yet.
    """
    missing = np.zeros((len(points), 1), bool)
    rest = [a for a in np.argsort(-lattice.spacing, kind="stable").tolist() if not lattice.coarse[a]]
    for a in [a for a in rest if lattice.allowed[a] is not None]:
        rest.remove(a)
        both = np.repeat(points[:, None, :], 2, axis=1)
        both[:, :, a] = lattice.coordinates(a, lattice.index(a, points[:, a])[:, None] + np.array([0.0, 1.0]))
        tried = lattice.spend_rest(both, cost, log_budget, rest)
        nothing = np.full_like(points, np.nan)
        rounded, value = _keep_best(
            evaluate, nothing, np.full(len(points), np.inf), tried, cost, log_budget, lattice.box
        )
        fits = np.isfinite(value)[:, None]
        missing |= ~fits
        points = np.where(fits, rounded, both[:, 0])
    return np.where(missing, np.nan, points)


def round_each_draw(
    laws: Sequence[RecipePart],
    log_x: np.ndarray,
    cost: Posynomial,
    log_budget: float,
    box: Box,
    allowed: Sequence[AllowedValues | None],
) -> np.ndarray:
    """The recipe of every draw, (S, A), on the allowed values; rows follow the order of `laws`."""
    ends = np.cumsum([law.num_draws for law in laws])[:-1]

    def evaluate(points: np.ndarray) -> np.ndarray:
        if len(points) == 1:
            return np.concatenate([curves.responses(law, points[0]) for law in laws])
        pairs = zip(laws, np.split(points, ends), strict=True)
        return np.concatenate([curves.responses(law, own) for law, own in pairs])

    return round_points(evaluate, log_x, cost, log_budget, box, allowed, len(log_x))


def round_average(
    laws: Sequence[RecipePart],
    counted: np.ndarray,
    log_x: np.ndarray,
    cost: Posynomial,
    log_budget: float,
    box: Box,
    allowed: Sequence[AllowedValues | None],
) -> tuple[np.ndarray, float]:
    """One recipe (A,) on the allowed values with a low average response over the `counted` draws, and that average."""

    def evaluate(points: np.ndarray) -> np.ndarray:
        return np.concatenate([curves.responses(law, points[0]) for law in laws])[counted].mean(axis=0)[None]

    rounded = round_points(evaluate, log_x[None], cost, log_budget, box, allowed, len(counted))[0]
    return rounded, float(evaluate(rounded[None, None])[0, 0])
