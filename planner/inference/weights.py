"""Weights of the laws: how much each is believed when they are averaged."""

import numpy as np

_RUNGS_A_DECADE = 2.0
_TEMPER = 0.75
_FLOOR = 0.25  # of an equal share


def num_rungs(log_cost: np.ndarray) -> int:
    """Distinct scale rungs among runs: half-decades of cost."""
    return len(np.unique(np.round(log_cost / np.log(10.0) * _RUNGS_A_DECADE)))


def temper(log_cost: np.ndarray) -> float:
    """Share of their number that runs count for when laws are compared: (distinct rungs / runs)^0.75, at most 1."""
    return min(1.0, num_rungs(log_cost) / max(len(log_cost), 1)) ** _TEMPER


def weigh(log_evidence: np.ndarray, log_cost: np.ndarray, ahead: np.ndarray | None = None) -> np.ndarray:
    """Weights (laws,) from marginal likelihoods, tempered as if fewer runs had been seen, and from predictions.

    Forty cheap runs that confirm one another say little about extrapolation, so their joint evidence counts as that of
    few more than the distinct rungs they cover.  `python -m benchmarks weights` compares this with evidence as it is,
    uniform weights, the median of the laws, stacking and predictions alone, on recorded runs.  No law falls below a
    quarter of an equal share.

    Args:
        log_evidence: of each law, (laws,); not finite where there is none.
        log_cost: of the runs, (R,).
        ahead: log predictive density of dearer runs before they were used, (laws,), `prequential.log_score`.
    """
    usable = np.isfinite(log_evidence)
    if not usable.any():
        return np.full(len(log_evidence), 1.0 / len(log_evidence))
    score = temper(log_cost) * np.where(usable, log_evidence, 0.0)
    if ahead is not None:
        score = score + np.where(np.isfinite(ahead), ahead, np.min(ahead, where=np.isfinite(ahead), initial=0.0))
    return floored(np.where(usable, score, -np.inf))


def floored(log_weight: np.ndarray) -> np.ndarray:
    """Weights (laws,) from their logarithms, one of them finite; none below a quarter of an equal share."""
    weight = np.exp(log_weight - log_weight.max())
    weight = np.maximum(weight / weight.sum(), _FLOOR / len(weight))
    return weight / weight.sum()
