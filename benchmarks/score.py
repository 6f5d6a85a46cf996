"""Scores of predictions at hidden targets."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Scores(NamedTuple):
    """All NaN-free; higher is better but for the coverages, which should equal their level."""

    r2: float  # ScaleBench: all groups and outputs in one, clipped to [-1, 1]
    r2_sld: float  # SLDBench v1: 1 - mean over outputs of MSE / variance, floored at -1
    r2_group: float  # median over groups of three or more targets, and outputs
    coverage_50: float
    coverage_90: float
    log_score: float  # mean log predictive density of standardised responses


FAILED = Scores(-1.0, -1.0, -1.0, 0.0, 0.0, float("-inf"))


def r_squared(truth: np.ndarray, prediction: np.ndarray) -> float:
    """1 - SSE / SST, not clipped; NaN without spread."""
    total = float(((truth - truth.mean()) ** 2).sum())
    if total <= 0.0:
        return float("nan")
    return 1.0 - float(((truth - prediction) ** 2).sum()) / total


def score(truth: np.ndarray, draws: np.ndarray, point: np.ndarray, domain: np.ndarray) -> Scores:
    """Scores of one problem.

    Args:
        truth: hidden responses (T, Y), NaN where not recorded.
        draws: predictive draws of the responses, noise included, (S, T, Y).
        point: point predictions (T, Y).
        domain: group of each target (T,).
    """
    known = np.isfinite(truth)
    if not np.isfinite(point[known]).all():
        return FAILED
    by_output = []
    by_group = []
    for y in range(truth.shape[1]):
        at = known[:, y]
        by_output.append(r_squared(truth[at, y], point[at, y]))
        for g in np.unique(domain):
            members = at & (domain == g)
            if members.sum() >= 3:
                by_group.append(r_squared(truth[members, y], point[members, y]))
    low_90, low_50, high_50, high_90 = np.quantile(draws, [0.05, 0.25, 0.75, 0.95], axis=0)
    return Scores(
        r2=float(np.clip(r_squared(truth[known], point[known]), -1.0, 1.0)),
        r2_sld=float(max(np.nanmean(by_output), -1.0)),
        r2_group=float(np.nanmedian(by_group)) if by_group else float("nan"),
        coverage_50=float(((truth >= low_50) & (truth <= high_50))[known].mean()),
        coverage_90=float(((truth >= low_90) & (truth <= high_90))[known].mean()),
        log_score=_log_score(truth, draws, known),
    )


def _log_score(truth: np.ndarray, draws: np.ndarray, known: np.ndarray) -> float:
    """Log density of a Gaussian kernel estimate over the draws, responses standardised by output."""
    unit = np.nanstd(truth, axis=0)
    unit = np.where(unit > 0, unit, 1.0)
    spread = draws.std(axis=0)
    width = 1.06 * np.minimum(spread, _iqr(draws) / 1.34 + 1e-12) * len(draws) ** -0.2
    width = np.maximum(width, 1e-3 * unit)
    z = (truth - draws) / width
    log_density = np.logaddexp.reduce(-0.5 * z**2, axis=0) - np.log(len(draws) * np.sqrt(2 * np.pi)) - np.log(width)
    return float((log_density + np.log(unit))[known].mean())


def _iqr(draws: np.ndarray) -> np.ndarray:
    low, high = np.quantile(draws, [0.25, 0.75], axis=0)
    return high - low
