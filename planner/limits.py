"""`[[limits]]` of a study as the search for recipes and the designs of a box need them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from planner import space_filling
from planner.errors import InputError

if TYPE_CHECKING:
    from planner.recipe.problem import Box, Limits
    from planner.spec import Axis, StudySpec


def log_limits(spec: StudySpec) -> Limits | None:
    """`[[limits]]` in natural logs, None where there are none.

    Raises `InputError` for a limit on an axis with a linear scale, which is no sum of logs.
    """
    from planner.recipe.problem import Limits

    if not spec.limits:
        return None
    powers, low, high = spec.limit_arrays()
    for axis, own in zip(spec.axes, powers.T, strict=True):
        if not axis.is_log and own.any():
            i = int(np.flatnonzero(own)[0])
            raise InputError(f"no recipe: limits[{i}] bounds axis {axis.name!r}, which has a linear scale")
    with np.errstate(divide="ignore"):
        return Limits(powers, np.log(low), np.log(high))


def require_feasible(spec: StudySpec, box: Box) -> None:
    """Raises `InputError` naming the limits that no point of the box keeps to."""
    from planner.recipe.problem import infeasible_limits

    excluded = infeasible_limits(box)
    if not excluded:
        return
    words = " and ".join(f"limits[{i}] ({spec.limits[i].words()})" for i in excluded)
    rule = "cannot be kept" if len(excluded) == 1 else "cannot be kept together"
    raise InputError(f"{words}: {rule} within the ranges of the axes; widen a limit, or the axes it bounds")


def designs_within(spec: StudySpec, x: np.ndarray) -> np.ndarray:
    """The points (C, A) of a box that keep to `[[limits]]`; where they are few, others moved onto the limits as well.

    Raises `InputError` naming the limits that no point of the declared ranges keeps to.
    """
    inside = x[spec.within_limits(x)]
    if not spec.limits or 4 * len(inside) >= len(x) or not all(axis.is_log for axis in spec.axes):
        return inside
    from planner.recipe.problem import Box

    low, high, limits = np.log(spec.low), np.log(spec.high), log_limits(spec)
    require_feasible(spec, Box(low=low, high=high, limits=limits))
    assert limits is not None
    near = np.exp(limits.nearest(np.log(np.maximum(x, spec.low)), low, high))
    moved = _solved(spec, np.column_stack([_snapped(a, v) for a, v in zip(spec.axes, near.T, strict=True)]))
    return space_filling.unique_rows(np.concatenate([inside, moved[spec.within_limits(moved)]]))


def _snapped(axis: Axis, values: np.ndarray) -> np.ndarray:
    if axis.source_of is not None:
        values = np.where(values < axis.low * 0.5, 0.0, np.maximum(values, axis.low))
    return space_filling.snap_axis(axis, space_filling.round_significant(values) if _is_free(axis) else values)


def _is_free(axis: Axis) -> bool:
    return axis.values is None and axis.step is None and not axis.integer and not axis.is_fixed


def _solved(spec: StudySpec, x: np.ndarray) -> np.ndarray:
    """Points (C, A) with one axis of any value put where each limit that is an equation wants it."""
    powers, low, high = spec.limit_arrays()
    taken: set[int] = set()
    x = x.copy()
    for own, bound in zip(powers[low == high], low[low == high], strict=True):
        free = [a for a in np.flatnonzero(own) if _is_free(spec.axes[a]) and a not in taken]
        if free:
            a = int(free[-1])
            taken.add(a)
            others = np.prod(np.where(np.arange(len(own)) == a, 1.0, x) ** own, axis=1)
            wanted = (bound / others) ** (1.0 / own[a])
            fits = (wanted >= spec.axes[a].low * (1 - 1e-12)) & (wanted <= spec.axes[a].high * (1 + 1e-12))
            x[fits, a] = wanted[fits]
    return x
