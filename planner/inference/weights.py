"""Weights of the laws: how much each is believed when they are averaged."""

from collections.abc import Sequence

import numpy as np

from planner.inference.laplace import LawFit

_RUNGS_A_DECADE = 2.0


def num_rungs(log_cost: np.ndarray) -> int:
    """Distinct scale rungs among runs: half-decades of cost."""
    return len(np.unique(np.round(log_cost / np.log(10.0) * _RUNGS_A_DECADE)))


def temper(log_cost: np.ndarray) -> float:
    """Share of their number that runs count for when laws are compared: distinct rungs over runs, at most 1."""
    return min(1.0, num_rungs(log_cost) / max(len(log_cost), 1))


def tempered_evidence(fits: Sequence[LawFit], log_cost: np.ndarray) -> np.ndarray:
    """Weights (laws,) from marginal likelihoods, tempered to as many observations as there are scale rungs.

    Forty cheap runs that confirm one another say little about extrapolation; their joint evidence counts as that of
    the distinct rungs they cover.  No law falls below 1 / (4 K).
    """
    evidence = np.array([fit.log_evidence for fit in fits])
    evidence = np.where(np.isfinite(evidence), evidence, -np.inf)
    if not np.isfinite(evidence).any():
        return np.full(len(fits), 1.0 / len(fits))
    weight = np.exp(temper(log_cost) * (evidence - evidence.max()))
    floor = 0.25 / len(fits)
    weight = np.maximum(weight / weight.sum(), floor)
    return weight / weight.sum()
