"""The verdict of an audit: rules on plain numbers, so that each can be read, tested and argued with.

**no law fits**: answers must not be used.  Either of

1. the dearest runs were missed: the median of their |z| exceeds `MAX_MEDIAN_SURPRISE`;
2. the laws that fit hold less than `MIN_FITTING_WEIGHT` of the weight.  A law fits when, compared with the spread that
   it explains, the discrepancy added to it spreads less than `MAX_DISCREPANCY`, the responses about it less than
   `MAX_RESIDUAL`, and its residuals do not turn along an axis (runs test below `TURNING_LEVEL` while they spread more
   than `MIN_TURNING`).  Asked only of `MIN_RUNS` runs or more that moved some axis by `MIN_MOVE` of the spread of the
   designs: fewer cannot tell.

**trust with care**: there are reasons, listed, of `cautions`.  **trust**: there are none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from planner.inference.diagnostics import LawCheck, Repeats

TRUST, CARE, NO_LAW = "trust", "trust with care", "no law fits"

MAX_MEDIAN_SURPRISE = 3.0
MIN_FITTING_WEIGHT = 0.2
MAX_DISCREPANCY = 0.3
MAX_RESIDUAL = 0.8
TURNING_LEVEL, MIN_TURNING = 1e-3, 0.2
MIN_RUNS, MIN_MOVE = 8, 0.3

# What deserves a word, short of a failure.
SURPRISING, SURPRISING_RUN = 1.8, 4.0
SOUND_WEIGHT = 0.7
MIN_COVERED = 0.6  # of runs in domains left out, by intervals meant to hold .9
OUTLIER = 0.2  # expected precision multiplier: 4.6 noise deviations off
MAX_OUTLIERS = 0.1  # of the runs
MIN_CONTRACTION = 0.2
# Equal inputs whose responses differ by a tenth of all responses' spread, and twice as much as noise elsewhere.
MAX_REPEAT_SPREAD, MAX_REPEAT_RATIO, MIN_REPEAT_DEGREES = 0.1, 2.0, 3


@dataclass(frozen=True, kw_only=True)
class Findings:
    """What the rules read; runs are named by their ids."""

    num_runs: int
    moved: float  # largest spread of an axis over the runs, in spreads of the designs
    laws: Mapping[str, LawCheck]
    surprises: Mapping[str, float]  # z of the dearest runs
    spread: float  # of the responses
    covered: float | None  # share of runs inside 90 % intervals when their domain was left out
    multipliers: Mapping[str, float]
    repeats: Repeats | None
    repeat_ids: Sequence[str]  # of the set of equal inputs whose responses lie farthest apart
    prior_driven: Sequence[str]  # exponents and floor of the leading law
    far: Sequence[str]  # targets
    notes: Sequence[str]  # of the posterior


def judge(findings: Findings) -> tuple[str, list[str], list[str]]:
    """The verdict, why no law fits, and what to know before trusting an answer."""
    failures, reasons = list(_failures(findings)), list(cautions(findings))
    return NO_LAW if failures else CARE if reasons else TRUST, failures, reasons


def law_fits(check: LawCheck) -> bool:
    """Whether a law by itself follows the runs; one that explains nothing does not."""
    if not check.explained > 0:
        return False
    turns = check.turning < TURNING_LEVEL and check.residual > MIN_TURNING * check.explained
    fits = check.discrepancy < MAX_DISCREPANCY * check.explained and check.residual < MAX_RESIDUAL * check.explained
    return fits and not turns


def fitting_weight(laws: Mapping[str, LawCheck]) -> float:
    """Weight of the laws that fit."""
    return float(sum(check.weight for check in laws.values() if law_fits(check)))


def can_tell_misfit(findings: Findings) -> bool:
    """Whether the runs are many and spread enough for a law to fail on them."""
    return findings.num_runs >= MIN_RUNS and findings.moved >= MIN_MOVE


def _failures(findings: Findings) -> Iterator[str]:
    median = median_surprise(findings.surprises)
    if median > MAX_MEDIAN_SURPRISE:
        yield f"the dearest runs were missed when predicted from cheaper ones: median |z| {median:.1f}"
    if not can_tell_misfit(findings):
        return
    weight = fitting_weight(findings.laws)
    if weight < MIN_FITTING_WEIGHT:
        name, leading = max(findings.laws.items(), key=lambda item: item[1].weight)
        yield f"laws that fit hold {100 * weight:.0f} % of the weight; the leading one, {name}, {_misfit(leading)}"


def _misfit(check: LawCheck) -> str:
    if not check.explained > 0:
        return "explains nothing"
    parts = []
    if check.residual >= MAX_RESIDUAL * check.explained:
        parts.append(f"leaves residuals of {check.residual / check.explained:.2g} times the spread that it explains")
    if check.discrepancy >= MAX_DISCREPANCY * check.explained:
        parts.append(f"needs a discrepancy of {check.discrepancy / check.explained:.2g} times what it explains")
    if check.turning < TURNING_LEVEL:
        parts.append(f"leaves residuals that turn along an axis (level {check.turning:.1g})")
    return " and ".join(parts) or "fits but is not believed"


def median_surprise(surprises: Mapping[str, float]) -> float:
    """Median |z|, 0 without any."""
    return float(np.median(np.abs(list(surprises.values())))) if surprises else 0.0


def cautions(findings: Findings) -> Iterator[str]:
    """What to know before trusting an answer, each beginning with the kind of the caution."""
    yield from (note for note in findings.notes if not note.startswith("one domain"))
    yield from _surprises(findings)
    weight = fitting_weight(findings.laws)
    if can_tell_misfit(findings) and MIN_FITTING_WEIGHT <= weight < SOUND_WEIGHT:
        unfit = [name for name, check in findings.laws.items() if not law_fits(check)]
        yield f"misfit: laws with {100 * (1 - weight):.0f} % of the weight do not follow the runs ({', '.join(unfit)})"
    if findings.covered is not None and findings.covered < MIN_COVERED:
        yield (
            f"domains differ: predicted from the others, 90 % intervals held {100 * findings.covered:.0f} % of a"
            " domain's runs; domains without runs are not to be trusted"
        )
    yield from _repeats(findings)
    outliers = {run: value for run, value in findings.multipliers.items() if value < OUTLIER}
    if len(outliers) > max(1.0, MAX_OUTLIERS * findings.num_runs):
        yield f"outliers: {len(outliers)} of {findings.num_runs} runs lie far off ({_some(list(outliers))})"
    if findings.prior_driven:
        yield f"prior-driven: the runs hardly moved {', '.join(findings.prior_driven)}"
    if findings.far:
        yield f"far targets: more than two spreads of the designs from every run: {_some(findings.far)}"


def _surprises(findings: Findings) -> Iterator[str]:
    median = median_surprise(findings.surprises)
    if len(findings.surprises) > 2 and SURPRISING < median <= MAX_MEDIAN_SURPRISE:
        yield f"surprised: the dearest runs were predicted poorly from cheaper ones, median |z| {median:.1f}"
    wild = [f"{run} (z {z:.1f})" for run, z in findings.surprises.items() if abs(z) > SURPRISING_RUN]
    if wild and median <= MAX_MEDIAN_SURPRISE:
        yield f"surprised: among the dearest runs {_some(wild)}"


def hidden_axis_suspected(findings: Findings) -> bool:
    """Whether runs of equal inputs differ by far more than noise: what is no axis moved, or seeds are that noisy."""
    found = findings.repeats
    if found is None or found.degrees < MIN_REPEAT_DEGREES or not found.spread > MAX_REPEAT_SPREAD * findings.spread:
        return False
    return not found.spread < MAX_REPEAT_RATIO * max(found.known, found.elsewhere)


def _repeats(findings: Findings) -> Iterator[str]:
    if hidden_axis_suspected(findings):
        assert findings.repeats is not None
        found = findings.repeats
        yield (
            f"hidden_axis_suspected: {sum(map(len, found.groups))} runs share all inputs with another, and their"
            f" responses spread by {found.spread:.3g}, {100 * found.spread / findings.spread:.0f} % of what all runs"
            f" spread (by up to {found.range:.3g}: {_some(findings.repeat_ids)}); something that is no axis moved"
        )


def _some(names: Sequence[str], most: int = 4) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more
