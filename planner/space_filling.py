"""Designs that fill the box of a study: corners, levels, the edge of what is affordable, an even fill of the rest."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

import numpy as np

from planner.spec import Axis

# Designs are read by people: 3.16e7 rather than 31622776.60168379.
SIGNIFICANT_DIGITS = 3
SHARE_STEP = 1e-3
# Part of the cube in which nothing is bought of a source, which keeps the real axes measured for themselves.
NONE_SHARE = 0.25
MAX_CORNER_AXES = 8
MAX_TRIED = 2**15

CostOf = Callable[[np.ndarray], np.ndarray]  # (C, A) raw units -> (C,)


def fill_box(axes: Sequence[Axis], *, size: int, seed: int, cost_of: CostOf, limit: float) -> np.ndarray:
    """About `size` distinct allowed points, (C, A) in raw units, most of which cost at most `limit`.

    All combinations when every axis is discrete and they are at most `size`.  Otherwise, in this order until `size`
    is reached: the corners of the box; geometric levels up to the dearest affordable value of each axis; points just
    below `limit`; an even fill of the affordable part and, one in eight, of the whole box.
    """
    every = _all_combinations(axes, size)
    if every is not None:
        return every
    space = _Space(axes)
    ceiling = _affordable_ceiling(space, cost_of, limit)
    rng = np.random.default_rng(seed)
    whole = space.points(_even_fill(space.num_dims, max(64, size), rng))
    # The affordable part can be a thin corner of the box even below the ceiling of every axis.
    below = space.points(_even_fill(space.num_dims, min(MAX_TRIED, 16 * size), rng) * ceiling)
    below = below[cost_of(below) <= limit]
    parts = [
        space.points(_corners(space)),
        space.points(_levels(space, size // 3) * ceiling),
        _edge(space, cost_of, limit, count=size // 8, rng=rng),
        whole[: size // 8],
        below,
        whole,
    ]
    return unique_rows(np.concatenate([space.snap(part) for part in parts]))[:size]


def unique_rows(x: np.ndarray) -> np.ndarray:
    """Distinct rows in order of first appearance, (C, A)."""
    _, first = np.unique(x, axis=0, return_index=True)
    return x[np.sort(first)]


def round_significant(x: np.ndarray, digits: int = SIGNIFICANT_DIGITS) -> np.ndarray:
    """Numbers (C,) to so many significant digits: the double that everybody else writes for 3.16e7."""
    return np.array([float(f"{value:.{digits - 1}e}") for value in x.tolist()], dtype=np.float64)


def snap_axis(axis: Axis, values: np.ndarray) -> np.ndarray:
    """The nearest allowed values of one axis within its bounds; nearest in the log on a log axis.

    Nothing of a source stays nothing.
    """
    if axis.source_of is not None:
        some = _snap_some(axis, np.where(values > 0, values, axis.low))
        return np.where(values > 0, some, 0.0)
    return _snap_some(axis, values)


def _snap_some(axis: Axis, values: np.ndarray) -> np.ndarray:
    if axis.values is not None:
        allowed = np.array(axis.values)
        scale = np.log if axis.is_log else np.asarray
        with np.errstate(divide="ignore"):
            distance = np.abs(scale(values)[..., None] - scale(allowed))
        return allowed[np.argmin(distance, axis=-1)]
    if axis.step is not None:
        count = np.clip(np.round((values - axis.low) / axis.step), 0, np.round((axis.high - axis.low) / axis.step))
        # One multiplication per value, so that equal counts are equal doubles.
        return np.minimum(axis.low + count * axis.step, axis.high)
    if axis.integer:
        return np.clip(np.round(values), axis.low, axis.high)
    return np.clip(values, axis.low, axis.high)


def spread_shares(weights: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """Shares (C, G) that sum to 1 within `low` and `high` (G,), what exceeds `low` split by `weights` (C, G) >= 0."""
    room = np.broadcast_to(high - low, weights.shape)
    free = 1.0 - low.sum()
    shares = np.zeros(weights.shape)
    for _ in range(weights.shape[1] + 1):
        # What the full shares refuse is split among the others, first by weight, then evenly where no weight is left.
        open_share = room - shares > 1e-15
        wanted = np.where(open_share, weights, 0.0)
        # Weights so small that their sum cannot be divided by count as none.
        stuck = wanted.sum(axis=1) < 1e-200
        wanted[stuck] = open_share[stuck]
        total = np.maximum(wanted.sum(axis=1, keepdims=True), 1e-300)
        left = free - shares.sum(axis=1, keepdims=True)
        shares = np.minimum(shares + left * wanted / total, room)
    return low + shares


class _Space:
    """The box seen as a unit cube; the shares of a simplex group take one dimension each and are normalised."""

    def __init__(self, axes: Sequence[Axis]) -> None:
        self.axes = axes
        self.num_dims = len(axes)
        self.groups: dict[str, list[int]] = {}
        for index, axis in enumerate(axes):
            if axis.simplex is not None:
                self.groups.setdefault(axis.simplex, []).append(index)
        self.free = [index for index, axis in enumerate(axes) if axis.simplex is None]

    def points(self, u: np.ndarray) -> np.ndarray:
        """Unit-cube points (C, A) in raw units, logs for log axes, Dirichlet(1) shares for simplex groups."""
        x = np.empty(u.shape)
        for index in self.free:
            axis = self.axes[index]
            if axis.source_of is not None:
                some = np.clip((u[:, index] - NONE_SHARE) / (1.0 - NONE_SHARE), 0.0, 1.0)
                bought = axis.low * (axis.high / axis.low) ** some
                x[:, index] = np.where(u[:, index] < NONE_SHARE, 0.0, bought)
            elif axis.is_log:
                x[:, index] = axis.low * (axis.high / axis.low) ** u[:, index]
            else:
                x[:, index] = axis.low + u[:, index] * (axis.high - axis.low)
        for members in self.groups.values():
            low = np.array([self.axes[index].low for index in members])
            high = np.array([self.axes[index].high for index in members])
            # Normalised exponentials of uniform numbers are uniform on the simplex.
            weights = -np.log1p(-np.clip(u[:, members], 0.0, 1.0 - 1e-12))
            x[:, members] = spread_shares(weights, low, high)
        return x

    def snap(self, x: np.ndarray) -> np.ndarray:
        """The allowed points next to `x`, (C, A)."""
        x = x.copy()
        for index in self.free:
            axis = self.axes[index]
            values = x[:, index]
            if axis.is_log and axis.values is None and axis.step is None:
                rounded = round_significant(values)
                # The ends are allowed values themselves, however many digits they have.
                rounded = np.where(values > axis.high * (1 - 1e-9), axis.high, rounded)
                near_low = (values < axis.low * (1 + 1e-9)) & ((values > 0) | (axis.source_of is None))
                values = np.where(near_low, axis.low, rounded)
            x[:, index] = snap_axis(axis, values)
        for members in self.groups.values():
            x[:, members] = self._snap_shares(members, x[:, members])
        return x

    def _snap_shares(self, members: Sequence[int], shares: np.ndarray) -> np.ndarray:
        """Shares in multiples of the group's step above `low` that still sum to 1, largest remainders rounded up."""
        axes = [self.axes[index] for index in members]
        low = np.array([axis.low for axis in axes])
        high = np.array([axis.high for axis in axes])
        step = axes[0].step or SHARE_STEP
        units = (shares - low) / step
        whole = np.floor(units + 1e-9)
        missing = np.round((1.0 - low.sum()) / step - whole.sum(axis=1))
        rank = np.argsort(np.argsort(whole - units, axis=1), axis=1)
        snapped = np.clip(low + (whole + (rank < missing[:, None])) * step, low, high)
        # Bounds between two steps leave a remainder; the share with most room takes it.
        rest = 1.0 - snapped.sum(axis=1)
        room = np.where(rest[:, None] > 0, high - snapped, snapped - low)
        snapped[np.arange(len(snapped)), np.argmax(room, axis=1)] += rest
        return np.round(snapped, 12)


def _all_combinations(axes: Sequence[Axis], size: int) -> np.ndarray | None:
    """Every point of a discrete box, None when an axis is continuous or there are more than `size`."""
    options: list[np.ndarray] = []
    count = 1.0
    for axis in axes:
        if axis.simplex is not None:
            return None
        if axis.values is not None:
            options.append(np.array(axis.values))
        elif axis.is_fixed:
            options.append(np.array([axis.low]))
        elif axis.step is not None or axis.integer:
            step = axis.step or 1.0
            steps = np.round((axis.high - axis.low) / step)
            if steps >= size:
                return None
            options.append(np.minimum(axis.low + np.arange(steps + 1) * step, axis.high))
        else:
            return None
        if axis.source_of is not None:
            options[-1] = np.append(0.0, options[-1])
        count *= len(options[-1])
        if count > size:
            return None
    return np.stack(np.meshgrid(*options, indexing="ij"), axis=-1).reshape(-1, len(axes))


def _even_fill(num_dims: int, count: int, rng: np.random.Generator) -> np.ndarray:
    """`count` points of a Kronecker sequence in the unit cube, shifted at random modulo 1, (count, A).

    Steps are powers of the generalised golden ratio, the root of g^(A+1) = g + 1.  As even as a Sobol sequence at
    these sizes, for any count, without the second that importing scipy.stats takes.
    """
    ratio = 2.0
    for _ in range(64):
        ratio = (1.0 + ratio) ** (1.0 / (num_dims + 1))
    steps = ratio ** -np.arange(1.0, num_dims + 1)
    return (rng.random(num_dims) + np.arange(count)[:, None] * steps) % 1.0


def _corners(space: _Space) -> np.ndarray:
    """Corners of the cube for the free axes times the near-vertices and the centre of the simplex groups, (C, A).

    Beyond eight free axes: both ends of each axis with the others low, and with the others high.
    """
    free = [index for index in space.free if not space.axes[index].is_fixed]
    if len(free) <= MAX_CORNER_AXES:
        ends = np.array(list(itertools.product((0.0, 1.0), repeat=len(free)))).reshape(2 ** len(free), len(free))
    else:
        eye = np.eye(len(free))
        ends = np.concatenate([np.zeros((1, len(free))), np.ones((1, len(free))), eye, 1.0 - eye])
    corners = np.zeros((len(ends), space.num_dims))
    corners[:, free] = ends
    for members in space.groups.values():
        shares = np.concatenate(
            [np.eye(len(members)), 0.05 + 0.9 * np.eye(len(members)), np.full((1, len(members)), 0.5)]
        )
        corners = np.repeat(corners, len(shares), axis=0)
        corners[:, members] = np.tile(shares, (len(corners) // len(shares), 1))
    return corners


def _levels(space: _Space, count: int) -> np.ndarray:
    """A full grid of at most `count` points over the free axes, even in the cube; simplex groups at the centre."""
    free = [index for index in space.free if not space.axes[index].is_fixed]
    num = int(max(count, 1) ** (1.0 / max(len(free), 1)) + 1e-9)
    if num < 2 or not free:
        return np.full((1, space.num_dims), 0.5)
    grid = np.stack(np.meshgrid(*[np.linspace(0.0, 1.0, num)] * len(free), indexing="ij"), axis=-1)
    levels = np.full((num ** len(free), space.num_dims), 0.5)
    levels[:, free] = grid.reshape(-1, len(free))
    return levels


def _affordable_ceiling(space: _Space, cost_of: CostOf, limit: float) -> np.ndarray:
    """For each dimension the largest cube coordinate affordable with the others at 0; 1 where nothing is, (A,)."""
    ceiling = np.ones(space.num_dims)
    coordinates = np.linspace(0.0, 1.0, 129)
    for index in space.free:
        line = np.zeros((len(coordinates), space.num_dims))
        line[:, index] = coordinates
        affordable = np.flatnonzero(cost_of(space.points(line)) <= limit)
        if len(affordable):
            ceiling[index] = max(coordinates[affordable[-1]], coordinates[1])
    return ceiling


def _edge(space: _Space, cost_of: CostOf, limit: float, *, count: int, rng: np.random.Generator) -> np.ndarray:
    """Points that cost just under `limit`, where runs tell most about larger scales; none when all are affordable."""
    u = _even_fill(space.num_dims, 4 * max(count, 1), rng)
    u = u[cost_of(space.points(u)) > limit][:count]
    fixed = [index for members in space.groups.values() for index in members]

    def shrunk(factor: np.ndarray) -> np.ndarray:
        scaled = u * factor[:, None]
        scaled[:, fixed] = u[:, fixed]
        return space.points(scaled)

    inner, outer = np.zeros(len(u)), np.ones(len(u))
    for _ in range(40):
        middle = (inner + outer) / 2
        # Snapping rounds to nearest, which may cost up to a per cent more.
        fits = cost_of(shrunk(middle)) <= 0.99 * limit
        inner, outer = np.where(fits, middle, inner), np.where(fits, outer, middle)
    return shrunk(inner)
