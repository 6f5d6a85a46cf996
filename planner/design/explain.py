"""Why a design is proposed: what its run is predicted to show, and which laws it would tell apart."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.design.surrogate import Surrogate, law_means, make_surrogate

if TYPE_CHECKING:
    from planner.inference.posterior import StudyPosterior

_HALF_WIDTH = 1.6449  # standard deviations, of a 90 % interval
_LEAST_WEIGHT = 0.05
_LEAST_GAP = 0.5  # of the predicted standard deviation: a smaller disagreement is not worth a word


def explain(posterior: StudyPosterior, domain: np.ndarray, x: np.ndarray) -> list[dict[str, Any]]:
    """What is believed of runs at points before they are made, raw response units.

    Args:
        domain: domain indices, (P,).
        x: raw axis values, (P, A).

    Returns:
        For each point `predicted` (`median`, `q05`, `q95` of the response of a new run, under the averaged posterior as
        one Gaussian on the scale of the laws) and, where two laws that count disagree there, `settles` (`laws`, the two
        farthest apart, and `medians`, what each predicts).
    """
    points = make_surrogate(posterior, domain, x)
    spread = np.sqrt(_variance(points))
    names, means = law_means(posterior, domain, x, least_weight=_LEAST_WEIGHT)
    return [_one(posterior, points.mean[i], spread[i], names, means[:, i]) for i in range(len(domain))]


def words(explanation: Mapping[str, Any]) -> str:
    """The disagreement a run would settle, as a clause; empty if none."""
    settled = explanation.get("settles")
    if settled is None:
        return ""
    (first, second), (low, high) = settled["laws"], settled["medians"]
    return f"; {first} predicts {low:.4g} there and {second} {high:.4g}"


def _variance(points: Surrogate) -> np.ndarray:
    return (points.shared**2).sum(1) + (points.local**2).sum(1) + points.own_var + points.noise_var


def _one(posterior: StudyPosterior, mean: float, spread: float, names: list[str], means: np.ndarray) -> dict[str, Any]:
    scale = posterior.encoding.scale
    # The link may turn the order round: sort in raw units.
    quantiles = np.sort(scale.from_eta(mean + spread * np.array([-_HALF_WIDTH, 0.0, _HALF_WIDTH])))
    answer: dict[str, Any] = {"predicted": dict(zip(("q05", "median", "q95"), map(float, quantiles), strict=True))}
    low, high = int(np.argmin(means)), int(np.argmax(means))
    if means[high] - means[low] > _LEAST_GAP * spread:
        pair = scale.from_eta(means[[low, high]])
        answer["settles"] = {"laws": [names[low], names[high]], "medians": [float(v) for v in pair]}
    return answer
