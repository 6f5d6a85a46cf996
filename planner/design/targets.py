"""What a study wants to know, as linear functionals of responses at points.

Planning lowers the summed variance of these functionals.  A prediction target is the responses themselves.  A recipe
target is the contrasts between the allocations that may be the best: what is lost by choosing wrongly among them does
not depend on how well their common level is known.  An exponent is a contrast between the ends of its axis, the worth
of a source a contrast between runs with it and runs that are believed to be as good without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from planner import sources
from planner.limits import log_limits
from planner.recipe.problem import Box, Posynomial, start_points

if TYPE_CHECKING:
    from planner.inference.posterior import StudyPosterior
    from planner.records import DesignTable
    from planner.spec import StudySpec

_MAX_POINTS = 200
_ALLOCATION_STARTS = 32
_MAX_ALLOCATIONS = 12
_RATIOS = (0.5, 1.0, 2.0, 4.0, 8.0)  # units of a source per real one


class TargetPoints(NamedTuple):
    """Points whose responses the target is made of.  T points, R functionals."""

    domain: np.ndarray  # (T,)
    x: np.ndarray  # (T, A) raw axis values
    rows: np.ndarray | None  # (R, T) functionals; None: the responses themselves
    unit: np.ndarray | float = 1.0  # (R,) what each functional was divided by


def prediction_points(domain: np.ndarray, x: np.ndarray) -> TargetPoints:
    """Responses at points are the target; a long list is thinned evenly."""
    if len(domain) > _MAX_POINTS:
        kept = np.linspace(0, len(domain) - 1, _MAX_POINTS).round().astype(int)
        domain, x = domain[kept], x[kept]
    return TargetPoints(domain, x, None)


def reads_draws(spec: StudySpec) -> bool:
    """Whether the functionals of a study depend on draws of its posterior, or on the points alone."""
    return any(target.kind != "prediction" for target in spec.targets)


def target_points(spec: StudySpec, posterior: StudyPosterior, aims: DesignTable) -> TargetPoints:
    """The functionals of a study's targets under what is believed now.

    Args:
        aims: points of the prediction targets.
    """
    blocks = [prediction_points(aims.domain, aims.x)] if len(aims) else []
    for target in spec.targets:
        chosen = spec.domain_names if target.domain is None else [target.domain]
        for name in chosen:
            if target.kind == "recipe":
                blocks += [allocations(spec, posterior, name, budget) for budget in target.budgets]
            elif target.kind == "exponent" and target.axis is not None:
                blocks.append(_ends_of_axis(spec, name, target.axis))
            elif target.kind == "source" and target.axis is not None:
                blocks.append(_worth_of_source(spec, posterior, name, target.axis))
            elif target.kind == "threshold":
                blocks.append(_points(spec, name, target.points))
    blocks = [block for block in blocks if len(block.domain)]
    if len(blocks) == 1:
        return blocks[0]
    return _stack(posterior, blocks)


def _stack(posterior: StudyPosterior, blocks: list[TargetPoints]) -> TargetPoints:
    """All blocks side by side, each scaled to the same summed variance now, so that none drowns the others."""
    rows, units = np.zeros((0, 0)), []
    for block in blocks:
        functional = np.eye(len(block.domain)) if block.rows is None else block.rows
        draws = posterior.eta_draws(block.domain, block.x) @ functional.T
        units.append(np.full(len(functional), np.sqrt(max(float(draws.var(axis=0).sum()), 1e-300))))
        functional = functional / units[-1][0]
        rows = np.block(
            [
                [rows, np.zeros((len(rows), functional.shape[1]))],
                [np.zeros((len(functional), rows.shape[1])), functional],
            ]
        )
    domain, x = np.concatenate([b.domain for b in blocks]), np.concatenate([b.x for b in blocks])
    return TargetPoints(domain, x, rows, np.concatenate(units))


def allocations(spec: StudySpec, posterior: StudyPosterior, name: str, budget: float) -> TargetPoints:
    """Allocations that some draw holds to be the best for the budget, and the contrasts between them."""
    index = spec.domain_index(name)
    cost = Posynomial(*spec.posynomial(name))
    is_log = np.array([axis.is_log for axis in spec.axes])
    low, high = posterior.encoding.coordinates(np.stack([spec.low, spec.high]))
    # A recipe for a large budget lies above what one would pay for now.
    reach = np.where(is_log & (cost.powers > 0).any(axis=0), np.log(max(budget / _cost_at(cost, high), 1.0)), 0.0)
    box = Box(low=low, high=high + reach, is_log=is_log, limits=log_limits(spec))
    points = start_points(cost, float(np.log(budget)), box, _ALLOCATION_STARTS).reshape(-1, len(low))
    x = box.raw(points)
    best = posterior.eta_draws(np.full(len(x), index), x).argmin(axis=1)
    choices, counts = np.unique(best, return_counts=True)
    kept = np.argsort(-counts, kind="stable")[:_MAX_ALLOCATIONS]
    share = counts[kept] / counts[kept].sum()
    rows = np.sqrt(share)[:, None] * (np.eye(len(kept)) - share)
    return TargetPoints(np.full(len(kept), index), x[choices[kept]], rows)


def _cost_at(cost: Posynomial, coordinates: np.ndarray) -> float:
    return float(np.exp(cost.log_cost(coordinates)))


def _ends_of_axis(spec: StudySpec, name: str, axis: str) -> TargetPoints:
    """The fall of the response from the low to the high end of an axis, the others in the middle."""
    is_log = np.array([a.is_log for a in spec.axes])
    middle = np.where(is_log, np.sqrt(np.abs(spec.low * spec.high)), 0.5 * (spec.low + spec.high))
    middle[[a.source_of is not None for a in spec.axes]] = 0.0
    x = np.stack([middle, middle])
    position = spec.axis_names.index(axis)
    x[0, position], x[1, position] = spec.low[position], spec.high[position]
    return TargetPoints(np.full(2, spec.domain_index(name)), x, np.array([[1.0, -1.0]]))


def _worth_of_source(spec: StudySpec, posterior: StudyPosterior, name: str, axis: str) -> TargetPoints:
    """Runs with so many units of a source, less the run with the real units that they are believed to be worth.

    Such a difference is zero on average and moves with the discount alone: amplitudes and exponents cancel to first
    order.
    """
    index = spec.domain_index(name)
    x = np.repeat(sources.held_point(spec)[None], 2 * len(_RATIOS), axis=0)
    source = spec.axis_names.index(axis)
    target = spec.axis_names.index(spec.axes[source].source_of or "")
    added = np.median(sources.added_worth(posterior, index, axis, np.array(_RATIOS)), axis=0)
    x[: len(_RATIOS), source] = x[0, target] * np.array(_RATIOS)
    x[len(_RATIOS) :, target] *= 1.0 + np.maximum(added, -0.9)
    eye = np.eye(len(_RATIOS))
    return TargetPoints(np.full(len(x), index), x, np.hstack([eye, -eye]))


def _points(spec: StudySpec, name: str, points: Sequence[Mapping[str, Any]]) -> TargetPoints:
    x = [spec.point({k: v for k, v in p.items() if k != "domain"}) for p in points if p.get("domain", name) == name]
    return TargetPoints(np.full(len(x), spec.domain_index(name)), np.array(x).reshape(-1, len(spec.axis_names)), None)
