"""What finished runs say of the posterior that was made from them: residuals, misfit, surprises, contraction.

Everything is computed from draws, so that a posterior read from its file is checked like a new one.  Responses are on
the scale on which laws are written (link applied, smaller is better).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.special import ndtr, ndtri

from planner.inference import discrepancy
from planner.inference.data import LOG_DOMAIN_PRIOR, swell
from planner.inference.noise import student_weights

if TYPE_CHECKING:
    from planner.inference.posterior import StudyPosterior

_ENOUGH_SINGLE = 8  # runs whose residuals tell the noise
_TAIL = 0.01  # beyond these quantiles draws are too few to rank a response among them


class Runs(NamedTuple):
    """Finished runs.  R runs, A axes."""

    domain: np.ndarray  # (R,) index
    x: np.ndarray  # (R, A) raw units
    eta: np.ndarray  # (R,)
    known_sd: np.ndarray  # (R,) standard errors that came with the runs, 0 if unknown

    def take(self, rows: Sequence[int] | np.ndarray) -> Runs:
        """Some of the runs."""
        return Runs(*(column[np.asarray(rows, dtype=int)] for column in self))


class LawCheck(NamedTuple):
    """How one law shares the responses with the discrepancy and the noise; deviations within domains."""

    weight: float
    explained: float  # spread of the law's mean over the runs
    discrepancy: float  # spread of what was added to it
    noise: float  # median noise of a run
    residual: float  # spread of the responses about the law alone
    turning: float  # chance that residuals of a law that fits change sign as seldom along some axis


class Repeats(NamedTuple):
    """Sets of two or more runs with equal inputs."""

    groups: list[np.ndarray]  # rows of each set, the one that spans most first
    spread: float  # pooled standard deviation within the sets
    degrees: int  # of freedom behind it
    range: float  # largest difference within a set
    known: float  # standard error that came with these runs, 0 if unknown
    elsewhere: float  # robust spread of the residuals of all other runs, 0 where they are too few


# ---- surprise -------------------------------------------------------------------------------------------------------


def normal_scores(draws: np.ndarray, observed: np.ndarray) -> np.ndarray:
    """Surprise (R,) of responses (R,) under predictive draws (S, R): standard normal if the predictions are right.

    The normal quantile of the share of draws below the response.  Beyond the 1 % and 99 % quantiles, where a share says
    little, the distance from the median in units of that quantile.
    """
    level = ((draws < observed).sum(0) + 0.5 * (draws == observed).sum(0) + 0.5) / (len(draws) + 1.0)
    low, median, high = np.quantile(draws, [_TAIL, 0.5, 1.0 - _TAIL], axis=0)
    far = -float(ndtri(_TAIL))
    smallest = np.finfo(float).tiny
    above = far * (observed - median) / np.maximum(high - median, smallest)
    below = -far * (median - observed) / np.maximum(median - low, smallest)
    return np.where(observed > high, above, np.where(observed < low, below, ndtri(level)))


def predictive_draws(posterior: StudyPosterior, runs: Runs) -> np.ndarray:
    """Draws (S, R) of responses of new runs at the inputs of `runs`, each with the standard error that it came with."""
    draws = posterior.encoding.scale.to_eta(posterior.response_draws(runs.domain, runs.x))
    return draws + runs.known_sd * np.random.default_rng(len(runs.eta)).standard_normal(draws.shape)


# ---- misfit ---------------------------------------------------------------------------------------------------------


def within_domains(values: np.ndarray, domain: np.ndarray) -> np.ndarray:
    """Values (..., R) less their mean in each domain: a difference of level between domains is no effect of an axis."""
    centred = np.array(values, dtype=float)
    for g in np.unique(domain):
        mine = domain == g
        centred[..., mine] -= centred[..., mine].mean(axis=-1, keepdims=True)
    return centred


def spread_within(values: np.ndarray, domain: np.ndarray) -> np.ndarray:
    """Root mean square of `within_domains`, (...); 0 without runs."""
    if not len(domain):
        return np.zeros(np.shape(values)[:-1])
    return np.sqrt((within_domains(values, domain) ** 2).mean(axis=-1))


def law_checks(posterior: StudyPosterior, runs: Runs) -> list[LawCheck]:
    """One check a law, in the order of the posterior; all zero for a law without draws and where there are no runs."""
    if not len(runs.eta):
        return [LawCheck(float(weight), 0.0, 0.0, 0.0, 0.0, 1.0) for weight in posterior.weights]
    coordinates = posterior.encoding.coordinates(runs.x)
    phi, _ = discrepancy.features(posterior.basis, coordinates)
    height = posterior.heights.at(runs.domain, coordinates)
    checks = []
    for part, weight in zip(posterior.parts, posterior.weights, strict=True):
        if not len(part.theta):
            checks.append(LawCheck(float(weight), 0.0, 0.0, 0.0, 0.0, 1.0))
            continue
        # Means over draws: in single draws law and discrepancy undo each other.
        law = part.law.value_at(part.theta[:, runs.domain], coordinates).mean(axis=0)
        swollen, bend = swell(part.growth, height)
        added = (bend * np.einsum("spm,pm->sp", part.weights[:, runs.domain], phi)).mean(axis=0)
        residual = runs.eta - law
        turning = [sign_run_level(residual, along, runs.domain) for along in coordinates.T]
        checks.append(
            LawCheck(
                weight=float(weight),
                explained=float(spread_within(law, runs.domain)),
                discrepancy=float(spread_within(added, runs.domain)),
                noise=float(np.median(part.noise_sd[:, None] * swollen)),
                residual=float(spread_within(residual, runs.domain)),
                turning=min(1.0, min(turning) * len(turning)),
            )
        )
    return checks


def sign_run_level(residual: np.ndarray, along: np.ndarray, domain: np.ndarray) -> float:
    """Chance that independent residuals (R,) change sign as seldom, in the order of `along` within each domain.

    The runs test of Wald and Wolfowitz 1940, normal approximation with a continuity correction, one-sided: a curve
    that the law cannot follow leaves long stretches of one sign.  Signs are about the domain's median.
    """
    changes, expected, variance = 0.0, 0.0, 0.0
    for g in np.unique(domain):
        mine = np.flatnonzero(domain == g)
        ordered = residual[mine[np.argsort(along[mine], kind="stable")]]
        signs = np.sign(ordered - np.median(ordered))
        signs = signs[signs != 0]
        num, positive = float(len(signs)), float((signs > 0).sum())
        product = 2.0 * positive * (num - positive)
        if num < 2 or product == 0:
            continue
        changes += (signs[1:] != signs[:-1]).sum()
        expected += product / num
        variance += product * (product - num) / (num**2 * (num - 1.0))
    if variance == 0:
        return 1.0
    return float(ndtr((changes + 0.5 - expected) / np.sqrt(variance)))


def noise_multipliers(posterior: StudyPosterior, runs: Runs) -> tuple[np.ndarray, np.ndarray]:
    """Residuals (R,) in units of the noise, and the expected precision multipliers (R,) of Student-t noise.

    A multiplier far below one marks an outlier: the runs near it, through law and discrepancy, do not believe it.
    """
    residual = runs.eta - posterior.eta_draws(runs.domain, runs.x)
    noise_sd, curve_sd = posterior.noise_scales(runs.domain, runs.x)
    variance = noise_sd**2 + curve_sd**2 + runs.known_sd**2
    standardised = np.median(residual, axis=0) / np.sqrt(np.median(variance, axis=0))
    return standardised, student_weights(residual**2, variance).mean(axis=0)


def repeats(runs: Runs, coordinates: np.ndarray, residual: np.ndarray) -> Repeats | None:
    """Runs with equal inputs, and how far their responses lie apart; None if there are none.

    Args:
        coordinates: of the runs, (R, A).
        residual: of the runs about the posterior mean, (R,), to judge the noise where inputs are not repeated.
    """
    keys: dict[tuple[object, ...], list[int]] = {}
    for row, (g, at) in enumerate(zip(runs.domain, coordinates, strict=True)):
        keys.setdefault((int(g), *np.round(at, 9).tolist()), []).append(row)
    groups = [np.array(rows) for rows in keys.values() if len(rows) > 1]
    if not groups:
        return None
    single = [rows[0] for rows in keys.values() if len(rows) == 1]
    groups.sort(key=lambda rows: -float(np.ptp(runs.eta[rows])))
    degrees = sum(len(rows) - 1 for rows in groups)
    squares = sum(float(((runs.eta[rows] - runs.eta[rows].mean()) ** 2).sum()) for rows in groups)
    return Repeats(
        groups=groups,
        spread=float(np.sqrt(squares / degrees)),
        degrees=degrees,
        range=float(np.ptp(runs.eta[groups[0]])),
        known=float(np.sqrt((runs.known_sd[np.concatenate(groups)] ** 2).mean())),
        elsewhere=float(1.4826 * np.median(np.abs(residual[single]))) if len(single) >= _ENOUGH_SINGLE else 0.0,
    )


# ---- what the data decided ------------------------------------------------------------------------------------------


class Contraction(NamedTuple):
    """A law parameter before and after the runs, over the domains that have runs."""

    law: str
    parameter: str
    prior_mean: float
    prior_sd: float
    mean: float
    sd: float

    @property
    def contraction(self) -> float:
        """1 - sd after / sd before: 0 where the runs said nothing, 1 where they said all."""
        return 1.0 - self.sd / self.prior_sd


def contractions(posterior: StudyPosterior, *, min_draws: int = 20) -> list[Contraction]:
    """Prior and posterior of the parameters of every law that has draws enough to tell a spread."""
    design = posterior.encoding.design
    with_runs = np.unique(posterior.runs[:, 0]).astype(int)
    domains = with_runs if len(with_runs) else np.arange(len(design))
    rows = []
    for part in posterior.parts:
        if len(part.theta) < min_draws:
            continue
        variance = part.law.prior_sd**2
        if len(design) > 1:
            # Levels of factors and the domain itself each lie so far apart; the population column does not.
            mean_square = np.exp(2.0 * (LOG_DOMAIN_PRIOR[0] + LOG_DOMAIN_PRIOR[1] ** 2))
            levels = (design[domains][:, 1:] ** 2).sum(axis=1).mean()
            variance = variance + part.law.domain_sd**2 * mean_square * (1.0 + levels)
        mean = part.theta[:, domains].mean(axis=(0, 1))
        sd = np.sqrt(part.theta[:, domains].var(axis=0).mean(axis=0))
        names = [parameter.name for parameter in part.law.law.parameters(part.law.context)]
        columns = zip(names, part.law.prior_mean, np.sqrt(variance), mean, sd, strict=True)
        rows += [Contraction(part.law.law.name, name, *map(float, numbers)) for name, *numbers in columns]
    return rows
