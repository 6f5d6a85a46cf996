"""Where a run under way will end, from its curve.

A power of the share of the run, eta(f) = a + b (f^-c - 1), averaged over exponents c as the points support them, as in
parametric ensembles (Domhan et al. 2015) with the decaying powers that fit loss curves best (Mohr et al. 2022, LCDB).
Such a fit knows nothing of what comes after the curve: the fall at the end of a learning-rate schedule, a plateau that
ends.  How far it is off is learned from the study's finished runs, cut at the same share; without any it is taken to be
off by `_USUAL_MISS` times what the run gained in the last doubling, less towards the end.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

_EXPONENTS = np.array([0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 1.0, 1.5])
_LEAST_POINTS = 5
_LEAST_SHARE = 0.15  # of a run, before anything is said about its end
_USUAL_MISS, _MISS_RUNS = 1.5, 2.0  # and how many finished runs that is worth


class Curve(NamedTuple):
    """A run's points: shares of its whole cost in (0, 1], (n,), values on the scale of the laws, (n,), and its end."""

    share: np.ndarray
    eta: np.ndarray
    final: float | None = None  # None: not known yet


class Ending(NamedTuple):
    """The final response on the scale of the laws: mean and standard deviation, from `num_known` finished runs."""

    mean: float
    sd: float
    num_known: int


def predict_end(curve: Curve, finished: Sequence[Curve] = ()) -> Ending | None:
    """What the run will end with; None while there is too little of it."""
    fitted = _fit(curve)
    if fitted is None:
        return None
    mean, sd, gain = fitted
    misses = []
    for other in finished:
        cut = _fit(_cut(other, float(curve.share[-1])))
        if cut is not None and other.final is not None:
            misses.append((other.final - cut[0]) / cut[2])
    known = np.array(misses)
    bias = known.sum() / (_MISS_RUNS + len(known))
    square = _MISS_RUNS * _USUAL_MISS**2 + ((known - bias) ** 2).sum()
    # The bias is estimated too; few runs say little of a spread.
    spread = square / (_MISS_RUNS + len(known)) * (1.0 + 1.0 / (_MISS_RUNS + len(known)))
    return Ending(mean + bias * gain, float(np.sqrt(sd**2 + spread * gain**2)), len(known))


def _cut(curve: Curve, share: float) -> Curve:
    kept = curve.share <= share * (1.0 + 1e-9)
    return Curve(curve.share[kept], curve.eta[kept], curve.final)


def _fit(curve: Curve) -> tuple[float, float, float] | None:
    """Mean and standard deviation of the end by powers alone, and the unit of misses: what the run gained in the
    last doubling, times the root of the share that is left.
    """
    share, eta = curve.share, curve.eta
    if len(share) < _LEAST_POINTS or share[-1] < _LEAST_SHARE or share[-1] < 2.0 * share[0]:
        return None
    # Early points say least of the end, and neighbours share their noise: two count as one.
    weight = share / share.sum()
    num_apart = 0.5 * len(share)
    ends, variances, scores = [], [], []
    for exponent in _EXPONENTS:
        features = np.column_stack([np.ones_like(share), share**-exponent - 1.0])
        gram = (features * weight[:, None]).T @ features + 1e-12 * np.eye(2)
        inverse = np.linalg.inv(gram)
        coefficient = inverse @ (features * weight[:, None]).T @ eta
        residual = float((weight * (eta - features @ coefficient) ** 2).sum()) * len(share) / max(len(share) - 2, 1)
        residual = max(residual, 1e-12 * float(np.ptp(eta)) ** 2 + 1e-300)
        ends.append(float(coefficient[0]))
        variances.append(residual * (1.0 + float(inverse[0, 0]) / num_apart))
        scores.append(-0.5 * num_apart * np.log(residual))
    chance = np.exp(np.array(scores) - max(scores))
    chance /= chance.sum()
    mean = float(chance @ ends)
    variance = float(chance @ (np.array(variances) + (np.array(ends) - mean) ** 2))
    half = float(np.interp(np.log(share[-1] / 2.0), np.log(share), eta))
    noise = float(np.sqrt(min(variances)))
    gain = max(abs(half - float(eta[-1])), noise, 1e-12)
    return mean, float(np.sqrt(variance)), gain * float(np.sqrt(max(1.0 - share[-1], 0.0))) + 1e-12
