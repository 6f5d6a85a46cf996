"""Whether a posterior may be used at all: the rules of the audit that need no further fits."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from planner import verdict
from planner.answers import FAR

if TYPE_CHECKING:
    from planner.inference import StudyPosterior
    from planner.inference.diagnostics import Runs
    from planner.questions.answer import Answer
    from planner.records import Outcome
    from planner.spec import StudySpec

# Parameters that decide what lies beyond the runs.
DECISIVE = ("floor", "log_exponent", "slope")


def completed(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Those with a response."""
    return [o for o in outcomes if o.is_measured]


def runs_of(spec: StudySpec, outcomes: Sequence[Outcome], posterior: StudyPosterior) -> Runs:
    """Completed runs as arrays, for `planner.inference.diagnostics`."""
    from planner import encoding
    from planner.inference.diagnostics import Runs

    moments = np.array([encoding.response_moments(o, spec) for o in outcomes]).reshape(-1, 2)
    x = [[o.design.axes[name] for name in spec.axis_names] for o in outcomes]
    scale = posterior.encoding.scale
    return Runs(
        domain=np.array([spec.domain_index(o.design.domain) for o in outcomes], dtype=np.int64),
        x=np.array(x, dtype=np.float64).reshape(-1, len(spec.axis_names)),
        eta=scale.to_eta(moments[:, 0]),
        known_sd=moments[:, 1] * scale.slope(moments[:, 0]),
    )


def moved(posterior: StudyPosterior, runs: Runs) -> float:
    """Largest spread of an axis over the runs, in spreads of the designs."""
    if len(runs.eta) < 2:
        return 0.0
    coordinates = posterior.encoding.coordinates(runs.x)
    return float((coordinates.std(axis=0) / posterior.encoding.spread).max())


def failures(spec: StudySpec, outcomes: Sequence[Outcome], posterior: StudyPosterior) -> list[str]:
    """Why no answer of this posterior is to be used: no law follows the runs.  Empty if there is no such reason.

    `planner audit` also predicts the dearest runs from cheaper ones, which takes fits of its own.
    """
    from planner.inference import diagnostics

    runs = runs_of(spec, completed(outcomes), posterior)
    checks = dict(zip(posterior.law_names, diagnostics.law_checks(posterior, runs), strict=True))
    findings = verdict.Findings(
        num_runs=len(runs.eta),
        moved=moved(posterior, runs),
        laws=checks,
        surprises={},
        spread=0.0,
        covered=None,
        multipliers={},
        repeats=None,
        repeat_ids=[],
        prior_driven=[],
        far=[],
        notes=[],
    )
    return verdict.judge(findings)[1]


def judged(answer: Answer, reasons: Sequence[str], posterior: StudyPosterior) -> Answer:
    """The answer with `trusted` and `reasons`, and with what is known of the posterior among its notes."""
    verdict_of = {"trusted": not reasons, "reasons": list(reasons)}
    notes = [*answer.notes, *of_posterior(posterior)]
    return dataclasses.replace(answer, values={**answer.values, **verdict_of}, notes=list(dict.fromkeys(notes)))


def cautions(posterior: StudyPosterior, domain: int, x: np.ndarray, name: str) -> list[str]:
    """What to know before using an answer that rests on the point `x` (A,), raw units, of a domain."""
    notes = of_posterior(posterior)
    with_runs = {int(i) for i in posterior.runs[:, 0]}
    if not with_runs:
        return notes
    if domain not in with_runs:
        notes.append(f"prior-driven: no runs in domain {name}, what is said of it comes from the others")
    else:
        distance = float(posterior.distance(np.array([domain]), x[None])[0])
        if distance > FAR:
            notes.append(
                f"edge of the data: the recipe lies {distance:.1f} spreads of the designs from the nearest run"
            )
    return notes


def of_posterior(posterior: StudyPosterior) -> list[str]:
    """What the runs did not teach, wherever the answer lies."""
    from planner.inference import diagnostics

    if not len(posterior.runs):
        return ["prior only: no run has finished"]
    leading = posterior.law_names[int(np.argmax(posterior.weights))]
    driven = [
        row.parameter
        for row in diagnostics.contractions(posterior)
        if row.law == leading and row.contraction < verdict.MIN_CONTRACTION and row.parameter.startswith(DECISIVE)
    ]
    return [f"prior-driven: the runs hardly moved {', '.join(driven)}"] if driven else []
