"""Whether a run under way is worth finishing.

The final response y of a run at x moves the estimate of a target psi by K (y - mu), K = cov(psi, y) / var(y).  The
expected fall of the target's squared error by finishing is E[K^2 (y - mu)^2] under what is believed of y: before the
run, K^2 var(y), the gain by which the run was bought; with its curve, which predicts m and v, K^2 ((m - mu)^2 + v).  A
run that will end as expected has taught what it can, one that will surprise is worth more than ever.  It is stopped
when that is less than `MARGIN` of what its remaining cost lowers the variance of the targets by elsewhere, added to the
plan for what is left of the budget.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from planner import candidates as candidate_tables
from planner.design import stopping
from planner.design.extrapolation import Curve, Ending, predict_end
from planner.design.plan import conditioned, plan_budget, worth_of_more
from planner.design.surrogate import Surrogate, compress, make_surrogate
from planner.inference import one_blas_thread
from planner.records import RunState

if TYPE_CHECKING:
    from planner.design.targets import TargetPoints
    from planner.encoding import Encoding
    from planner.inference.posterior import StudyPosterior
    from planner.records import CurvePoint, RunRecord, StudyState
    from planner.spec import StudySpec

MARGIN = 0.5
_NEARLY_DONE = 0.9  # of a run: nothing to be saved any more
_MAX_CANDIDATES = 400
_ANCHORS = 160
_NINETY = 1.645
_AGREE = 3.0  # standard deviations: beyond, the curve is believed and not the laws


class Worth(NamedTuple):
    """Of finishing one run, in units of the targets' variance, and of its remaining cost elsewhere."""

    finishing: float
    elsewhere: float
    before: float  # variance of the targets now
    predicted: tuple[float, float]  # 90 % interval of the response by the curve
    expected: float  # median response by the posterior
    cost_left: float

    @property
    def is_worth(self) -> bool:
        return not self.finishing < MARGIN * self.elsewhere


def worth_of_finishing(
    spec: StudySpec,
    state: StudyState,
    posterior: StudyPosterior,
    targets: TargetPoints,
    curves: Mapping[str, Sequence[CurvePoint]],
) -> dict[str, Worth]:
    """For each of the runs under way in `curves` of which it can be told.

    Of none while the planner's predictions do not hold (`stopping.are_calibrated`).
    """
    if not stopping.are_calibrated(state):
        return {}
    finished = [
        curve
        for run in state.runs.values()
        if run.state is RunState.COMPLETED and run.cost and run.points()
        if (curve := curve_of(run, run.points(), run.cost, posterior.encoding)) is not None
    ]
    judged = []
    for run_id, points in curves.items():
        run = state.runs[run_id]
        whole = max(run.predicted_cost, 1.02 * (run.cost_so_far or 0.0))
        curve = curve_of(run, points, whole, posterior.encoding)
        ending = None if curve is None or curve.share[-1] > _NEARLY_DONE else predict_end(curve, finished)
        if curve is not None and ending is not None:
            judged.append((run, ending, whole * (1.0 - float(curve.share[-1]))))
    if not judged:
        return {}
    with one_blas_thread():
        return _worths(spec, state, posterior, targets, judged)


def curve_of(run: RunRecord, points: Sequence[CurvePoint], whole: float, encoding: Encoding) -> Curve | None:
    """The points with a value and a cost as shares of a whole cost; None without any."""
    kept = [(p.cost / whole, p.value) for p in points if p.value is not None and p.cost is not None and p.cost > 0]
    kept = [(share, value) for share, value in kept if share <= 1.0 + 1e-6]
    if not kept:
        return None
    share, value = np.array(kept, dtype=np.float64).T
    final = None if run.response is None else float(encoding.scale.to_eta(np.array([run.response]))[0])
    return Curve(share, encoding.scale.to_eta(value), final)


def _worths(
    spec: StudySpec,
    state: StudyState,
    posterior: StudyPosterior,
    targets: TargetPoints,
    judged: Sequence[tuple[RunRecord, Ending, float]],
) -> dict[str, Worth]:
    """Each of the runs, with the cost that it still needs, beside one plan for what is left of the budget."""
    # What runs that are being stopped will give back is spent already.
    pending = state.pending()
    back = sum(each.reserved - (each.cost_so_far or 0.0) for each in pending if each.early_stop)
    most = max(left for _, _, left in judged)
    freed = replace(state, reserved=max(0.0, state.reserved - back - most))
    table = candidate_tables.candidate_designs(spec, freed)
    if not len(table):
        return {}  # unspent budget has no value of its own: they are finished
    table = table.take(candidate_tables.spread_over_cost(table, _MAX_CANDIDATES))
    going_on = [each for each in pending if not each.early_stop]
    domain = np.array([spec.domain_index(each.design.domain) for each in going_on])
    x = np.array([[each.design.axes[name] for name in spec.axis_names] for each in going_on])
    points, aims = _points(posterior, targets, table.domain, table.x, domain, x)
    cost = np.concatenate([table.cost, np.full(len(going_on), np.inf)])
    here = len(table) + np.arange(len(going_on))
    budget = max(0.0, freed.remaining - most)
    rows = targets.rows
    plan = plan_budget([points], [aims], cost, budget=budget, pending=here, target_rows=rows)
    budget -= float(cost[plan.picks].sum())
    budgets = [budget + left for _, _, left in judged]
    elsewhere = worth_of_more(points, aims, cost, plan=plan, pending=here, budgets=budgets, target_rows=rows)
    # Now, before the runs under way and the plan are known, where all of them count most.
    before = float(conditioned(points, aims, rows, here[:0])[2])
    told = {}
    for (run, ending, left), other in zip(judged, elsewhere, strict=True):
        this = len(table) + [each.run_id for each in going_on].index(run.run_id)
        cross, own, _ = conditioned(points, aims, rows, here[here != this])
        spread, expected = float(own[this] + points.noise_var[this]), float(points.mean[this])
        mean, variance = _combined(expected, spread, ending)
        finishing = float((cross[this] ** 2).sum()) / spread**2 * ((mean - expected) ** 2 + variance)
        edges = expected, ending.mean - _NINETY * ending.sd, ending.mean + _NINETY * ending.sd
        middle, *interval = map(float, posterior.encoding.scale.from_eta(np.array(edges)))
        told[run.run_id] = Worth(finishing, other, before, (min(interval), max(interval)), middle, left)
    return told


def _points(
    posterior: StudyPosterior,
    targets: TargetPoints,
    domain: np.ndarray,
    x: np.ndarray,
    run_domain: np.ndarray,
    run_x: np.ndarray,
) -> tuple[Surrogate, Surrogate]:
    """Features of candidates followed by runs, and of the targets."""
    domains = np.concatenate([domain, run_domain, targets.domain]).astype(int)
    points = make_surrogate(posterior, domains, np.concatenate([x, run_x, targets.x]))
    first = len(domain) + len(run_domain)
    some = np.linspace(0, len(domain) - 1, min(len(domain), _ANCHORS)).round().astype(int)
    points = compress(points, anchor=np.concatenate([some, np.arange(len(domain), len(domains))]))
    return points.take(slice(0, first)), points.take(slice(first, None))


def _combined(expected: float, spread: float, ending: Ending) -> tuple[float, float]:
    """Mean and variance of the final response by the laws (`expected`, variance `spread`) and the curve together."""
    of_curve = ending.sd**2
    if abs(ending.mean - expected) > _AGREE * np.sqrt(spread + of_curve):
        return ending.mean, of_curve
    variance = 1.0 / (1.0 / max(spread, 1e-300) + 1.0 / max(of_curve, 1e-300))
    return float(variance * (expected / max(spread, 1e-300) + ending.mean / max(of_curve, 1e-300))), variance
