"""What a study wants to know, as linear functionals of responses at points."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from planner.inference.posterior import StudyPosterior
    from planner.records import DesignTable
    from planner.spec import StudySpec

_MAX_POINTS = 200


class TargetPoints(NamedTuple):
    """Points whose responses the target is made of.  T points, R functionals."""

    domain: np.ndarray  # (T,)
    x: np.ndarray  # (T, A) raw axis values
    rows: np.ndarray | None  # (R, T) functionals; None: the responses themselves


def prediction_points(domain: np.ndarray, x: np.ndarray) -> TargetPoints:
    """Responses at points are the target; a long list is thinned evenly."""
    if len(domain) > _MAX_POINTS:
        kept = np.linspace(0, len(domain) - 1, _MAX_POINTS).round().astype(int)
        domain, x = domain[kept], x[kept]
    return TargetPoints(domain, x, None)


def target_points(spec: StudySpec, posterior: StudyPosterior, aims: DesignTable) -> TargetPoints:
    """The functionals of a study's targets under what is believed now."""
    return prediction_points(aims.domain, aims.x)
