"""Posterior draws as tables: the response at points, with intervals and what to think of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from planner import sources
from planner.errors import InputError
from planner.spec.checks import near

if TYPE_CHECKING:
    from planner.inference import StudyPosterior
    from planner.spec import StudySpec

# Beyond this distance from the nearest run, in standard deviations of the designs, an answer is an extrapolation.
FAR = 2.0
QUANTILES: Mapping[str, float] = {"median": 0.5, "q05": 0.05, "q25": 0.25, "q75": 0.75, "q95": 0.95}


def read_points(spec: StudySpec, points: Any, domain: str | None) -> tuple[np.ndarray, np.ndarray]:
    """Points to be predicted as domain indices (P,) and raw axis values (P, A).

    `points` is a mapping of axis values, a sequence of such, or a DataFrame; an entry "domain" names the domain of one
    point, `domain` that of all others.  A point without any domain stands for every domain of the study.

    Raises `InputError` for unknown, missing or impossible axes and domains.
    """
    rows = _rows(points)
    if not rows:
        raise InputError("no point was given: name a value for every axis, such as {'N': 1e9, 'D': 2e10}")
    names = spec.domain_names
    index: list[int] = []
    x: list[np.ndarray] = []
    for number, row in enumerate(rows, start=1):
        values = {str(key): value for key, value in row.items() if key != "domain"}
        asked = row.get("domain", domain)
        try:
            point = spec.point(_numbers(values, spec.axis_names))
            chosen = range(len(names)) if asked is None else [spec.domain_index(str(asked))]
        except InputError as error:
            raise InputError(f"point {number}: {error}" if len(rows) > 1 else str(error)) from None
        index += chosen
        x += [point] * len(chosen)
    return np.array(index, dtype=np.int64), np.array(x)


def _rows(points: Any) -> list[Mapping[str, Any]]:
    if hasattr(points, "to_dict") and hasattr(points, "columns"):
        return list(points.to_dict(orient="records"))
    return [points] if isinstance(points, Mapping) else list(points)


def _numbers(values: Mapping[str, Any], known: Sequence[str]) -> dict[str, float]:
    numbers = {}
    for name, value in values.items():
        try:
            numbers[name] = float(value)
        except (TypeError, ValueError, OverflowError):
            hint = "" if name in known else f" ({near(name, known)})"
            raise InputError(f"axis {name!r}: {value!r} is not a number{hint}") from None
    return numbers


def prediction_columns(
    spec: StudySpec, posterior: StudyPosterior, index: np.ndarray, x: np.ndarray
) -> dict[str, Sequence[Any]]:
    """Columns with one entry a point: axes, domain, median and quantiles of the mean response, `pred_` those of a new
    run, distance, and `flags`, a list of words.

    Args:
        index: domain of each point, (P,).
        x: axis values in raw units, (P, A).
    """
    mean = posterior.mean_draws(index, x)
    new_run = posterior.response_draws(index, x)
    distance = posterior.distance(index, x)
    columns: dict[str, Sequence[Any]] = {name: x[:, a].tolist() for a, name in enumerate(spec.axis_names)}
    columns["domain"] = [spec.domain_names[i] for i in index]
    for prefix, draws in (("", mean), ("pred_", new_run)):
        levels = np.quantile(draws, list(QUANTILES.values()), axis=0)
        columns |= {prefix + name: row.tolist() for name, row in zip(QUANTILES, levels, strict=True)}
    columns["distance"] = distance.tolist()
    with_runs = {int(i) for i in posterior.runs[:, 0]}
    columns["flags"] = [
        flags_of(int(i), float(far), with_runs) + [f"more of {name} than it bears" for name in collapsed]
        for i, far, collapsed in zip(index, distance, sources.collapsed(spec, posterior, index, x), strict=True)
    ]
    return columns


def prediction(spec: StudySpec, posterior: StudyPosterior, index: np.ndarray, x: np.ndarray) -> dict[str, Any]:
    """`prediction_columns` as "columns", with the weights of the "laws" and the "notes" of the posterior."""
    return {
        "columns": prediction_columns(spec, posterior, index, x),
        "laws": dict(zip(posterior.law_names, posterior.weights.tolist(), strict=True)),
        "notes": list(posterior.notes),
    }


def flags_of(domain: int, distance: float, with_runs: set[int]) -> list[str]:
    """What to know before trusting an answer; empty when the answer rests on runs nearby."""
    if not with_runs:
        return ["prior only"]
    if domain not in with_runs:
        return ["no runs in this domain"]
    return ["far from all runs"] if distance > FAR else []
