"""From finished runs to a posterior: `fit_study` is the way in."""

from __future__ import annotations

import concurrent.futures
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from planner import encoding as encodings
from planner import laws
from planner.errors import InputError, UnreliableFit
from planner.inference import prequential
from planner.inference import weights as law_weights
from planner.inference.data import BoundLaw, FitData, bind, of_one_size
from planner.inference.draws import LawDraws, draw, join
from planner.inference.heights import Heights
from planner.inference.laplace import LawFit, fit_law
from planner.inference.posterior import StudyPosterior, from_arrays
from planner.inference.refinement import refine
from planner.inference.threads import one_blas_thread

if TYPE_CHECKING:
    from planner.records import DesignTable, Outcome
    from planner.spec import StudySpec

__all__ = ["Prepared", "StudyPosterior", "draw", "fit_study", "from_arrays", "one_blas_thread", "prepare"]

_ENGINES = ("laplace", "refined", "nuts")
_MAX_REFINED_RUNS = 400  # beyond, the linearised posterior is nearly exact and sweeps are dear
_WORKERS = 2


class Prepared(NamedTuple):
    """A study's runs as arrays and its laws with their priors, ready for any engine."""

    encoding: encodings.Encoding
    data: FitData
    basis: encodings.discrepancy.Basis
    heights: Heights
    bound: Sequence[BoundLaw]
    log_cost: np.ndarray  # (R,)
    runs: np.ndarray  # (R, 1 + A)


def prepare(spec: StudySpec, outcomes: Sequence[Outcome], designs: DesignTable, targets: DesignTable) -> Prepared:
    """Encodes what is known of a study and selects its laws."""
    encoding = encodings.make_encoding(spec, designs)
    data, basis, heights = encodings.encode(spec, encoding, outcomes, designs, targets)
    completed = [o for o in outcomes if o.is_measured]
    domain, slot = np.nonzero(data.is_real)
    runs = np.column_stack([domain, data.coordinates[domain, slot]])
    log_cost = np.log(np.maximum([o.cost for o in completed], 1e-300)) if completed else np.zeros(0)
    chosen = laws.select(encoding.axes, spec.laws.use, is_score=spec.response.is_score)
    bound = [bind(law, data.context) for law in chosen]
    if not bound:
        raise InputError("no registered law suits these axes; name laws under [laws] use = [...]")
    return Prepared(encoding, data, basis, heights, bound, log_cost, runs)


def fit_study(
    spec: StudySpec,
    outcomes: Sequence[Outcome],
    designs: DesignTable,
    targets: DesignTable,
    *,
    engine: str = "laplace",
    num_draws: int = 1000,
    seed: int = 0,
    look_ahead: bool = False,
    warm: StudyPosterior | None = None,
) -> StudyPosterior:
    """The posterior of a study given its finished runs.

    Args:
        outcomes: completed and diverged runs; only completed ones enter the likelihood.
        designs: all designs of the study, for the scale of its axes.
        targets: points to be predicted, so that the discrepancy can represent them.
        engine: "laplace" (fast, for planning), "refined" (the same, its draws moved on the exact density; seconds, for
            answers) or "nuts" (reference, minutes).
        look_ahead: whether laws are also weighed by how they predicted dearer runs before these were used, and errors
            that grow with height averaged with errors of one size (seven more fits of each law: for answers).
        warm: an earlier posterior, of nearly the same runs, whose fits say where to look first.

    Raises:
        InputError: an unknown engine or law.
        UnreliableFit: NUTS did not converge.
    """
    if engine not in _ENGINES:
        raise InputError(f"unknown engine {engine!r}; known engines: {', '.join(_ENGINES)}")
    ready = prepare(spec, outcomes, designs, targets)
    starts = {fit.law.law.name: fit for fit in warm.fits} if warm else {}

    # Where errors grow with height, intervals are right when few runs were bought and too narrow when the whole pool
    # was; where they are of one size, the other way round.  Answers believe both alike; plans only the better guide.
    errors = [ready.data, of_one_size(ready.data)] if look_ahead and len(ready.runs) else [ready.data]
    shares = _split(np.full(len(errors), 1.0 / len(errors)), num_draws)
    averages: list[_Average] = []
    # Laws are the unit of parallel work: threads inside products of matrices this small only get in their way.
    with one_blas_thread(), concurrent.futures.ThreadPoolExecutor(_WORKERS) as pool:
        for data, share in zip(errors, shares, strict=True):
            average = _average(
                ready._replace(data=data), pool, starts, int(share), engine=engine, seed=seed, look_ahead=look_ahead
            )
            averages.append(average)
            starts = starts | {fit.law.law.name: fit for fit in average.fits}
    first = averages[0]
    names = [fit.law.law.name for fit in first.fits]
    weights = np.mean([[each.weights.get(name, 0.0) for name in names] for each in averages], axis=0)
    return StudyPosterior(
        encoding=ready.encoding,
        basis=ready.basis,
        heights=ready.heights,
        parts=[join([each.parts[name] for each in averages if name in each.parts]) for name in names],
        weights=weights / weights.sum(),
        runs=ready.runs,
        notes=_notes(spec, ready) + first.dropped,
        temper=law_weights.temper(ready.log_cost),
        flags={"num_runs": len(ready.runs), "engine": engine, "prior_only": len(ready.runs) == 0},
        fits=first.fits,
    )


class _Average(NamedTuple):
    """All laws under one model of the errors."""

    fits: list[LawFit]
    dropped: list[str]  # what to say of laws that could not be fitted
    weights: dict[str, float]  # by law
    parts: dict[str, LawDraws]


def _average(
    ready: Prepared,
    pool: concurrent.futures.Executor,
    starts: Mapping[str, LawFit],
    num_draws: int,
    *,
    engine: str,
    seed: int,
    look_ahead: bool,
) -> _Average:
    def one(law: BoundLaw) -> LawFit | UnreliableFit:
        try:
            return fit_law(law, ready.data, seed=seed, warm=starts.get(law.law.name))
        except UnreliableFit as error:
            return error

    fits, dropped = _usable(list(pool.map(one, ready.bound)))
    by_cost = np.sort(ready.log_cost)

    def ahead_of(fit: LawFit) -> float:
        try:
            return prequential.log_score(fit.law, ready.data, by_cost, seed=seed, warm=fit)
        except UnreliableFit:
            return float("-inf")

    ahead = np.array(list(pool.map(ahead_of, fits))) if look_ahead else None
    weights = law_weights.weigh(np.array([fit.log_evidence for fit in fits]), by_cost, ahead)

    def draws_of(item: tuple[LawFit, int]) -> LawDraws:
        return _draws(item[0], ready.data, item[1], engine=engine, seed=seed)

    parts = list(pool.map(draws_of, zip(fits, _split(weights, num_draws), strict=True)))
    names = [fit.law.law.name for fit in fits]
    return _Average(
        fits, dropped, dict(zip(names, weights.tolist(), strict=True)), dict(zip(names, parts, strict=True))
    )


def _usable(results: Sequence[LawFit | UnreliableFit]) -> tuple[list[LawFit], list[str]]:
    """Laws that could be fitted, and what to say of the others; one that cannot must not stop a study.

    Raises:
        UnreliableFit: no law could be fitted.
    """
    fits = [result for result in results if not isinstance(result, UnreliableFit)]
    errors = [result for result in results if isinstance(result, UnreliableFit)]
    if not fits:
        raise UnreliableFit("; ".join(map(str, errors)))
    return fits, [f"left out of the average: {error}" for error in errors]


def _draws(fit: LawFit, data: FitData, num_draws: int, *, engine: str, seed: int) -> LawDraws:
    if engine == "refined" and num_draws > 0 and data.is_real.sum() <= _MAX_REFINED_RUNS:
        return refine(fit, data, num_draws, seed=seed)
    if engine != "nuts" or num_draws == 0:
        return draw(fit, data, num_draws, np.random.default_rng(seed))
    from planner.inference import nuts  # compiled code of minutes: only where asked for

    return nuts.draw(fit, data, num_draws, seed=seed)


def _split(weights: np.ndarray, num_draws: int) -> np.ndarray:
    """Whole numbers in proportion to weights that sum to `num_draws` (largest remainders)."""
    exact = weights * num_draws
    counts = np.floor(exact).astype(int)
    counts[np.argsort(counts - exact, kind="stable")[: num_draws - counts.sum()]] += 1
    return counts


def _notes(spec: StudySpec, ready: Prepared) -> list[str]:
    notes = []
    num_runs = ready.data.is_real.sum(axis=1)
    if num_runs.sum() == 0:
        notes.append("prior only: no run has finished, so every answer rests on the priors of the laws")
    if len(num_runs) == 1:
        notes.append("one domain: no sharing possible")
    elif num_runs.sum() > 0:
        empty = [name for name, n in zip(ready.encoding.domain_names, num_runs, strict=True) if n == 0]
        if empty:
            notes.append(f"no finished run in {', '.join(empty)}: answers there come from the other domains")
    most = max(law.num_parameters for law in ready.bound)
    if 0 < num_runs.sum() < most + 2:
        notes.append(f"few runs: {int(num_runs.sum())} runs for laws of up to {most} parameters, priors weigh heavily")
    return notes + _axis_notes(ready)


def _axis_notes(ready: Prepared) -> list[str]:
    """Axes that the runs cannot tell apart, or never moved."""
    notes: list[str] = []
    x = ready.runs[:, 1:]
    if len(x) < 2:
        return notes
    names = [axis.name for axis in ready.encoding.axes]
    moved = x.std(axis=0) > 1e-6 * ready.encoding.spread
    notes += [f"axis {n} never moved: its exponent is the prior's" for n, m in zip(names, moved, strict=True) if not m]
    if len(x) > 3 and moved.sum() > 1:
        correlation = np.corrcoef(x[:, moved].T)
        kept = [n for n, m in zip(names, moved, strict=True) if m]
        for i in range(len(kept)):
            for j in range(i):
                if abs(correlation[i, j]) > 0.98:
                    notes.append(
                        f"collinear: axes {kept[j]} and {kept[i]} moved together, their effects are confounded"
                    )
    return notes
