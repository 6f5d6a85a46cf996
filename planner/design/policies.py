"""Policies: rules that choose designs.  `open_policy` finds one by name."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from planner import candidates as candidate_tables
from planner import inference
from planner.design import seeding
from planner.design.explain import explain, words
from planner.design.finishing import Worth, worth_of_finishing
from planner.design.plan import Plan, plan_budget
from planner.design.stopping import StopRule, are_calibrated
from planner.design.surrogate import compress, make_surrogate
from planner.design.targets import TargetPoints, reads_draws, target_points
from planner.errors import InputError
from planner.inference import one_blas_thread
from planner.inference.posterior import StudyPosterior
from planner.records import Design, Policy, Proposal

if TYPE_CHECKING:
    from planner.records import CurvePoint, DesignTable, StudyState
    from planner.spec import StudySpec

_MAX_CANDIDATES = 3000
_DRAWS = 400
_ENOUGH = 0.5
_ANCHORS = 160  # points whose covariances with every other are kept exactly


@dataclasses.dataclass(frozen=True)
class Choice:
    """Candidates chosen for this turn, and why.  K chosen."""

    picks: np.ndarray  # (K,)
    plan: Plan | None
    kind: str  # "seed" or "plan"


@dataclasses.dataclass
class Planner:
    """Our policy: spread first runs, then the plan for the whole remaining budget, of which the first part is bought.

    Keeps the last posterior only to warm the next fit.  `worth` and `target_sd` are terms on which to stop before the
    budget is used, see `stopping.StopRule`.
    """

    seed: int = 0
    worth: float | None = None
    target_sd: float | None = None
    _posterior: StudyPosterior | None = None

    def __post_init__(self) -> None:
        self._stop_rule = StopRule(worth=self.worth, target_sd=self.target_sd)

    def propose(self, spec: StudySpec, state: StudyState, candidates: DesignTable, num: int) -> Proposal:
        """Up to `num` designs for what is left of the budget."""
        if not len(candidates):
            return Proposal(stop="no design is affordable with what is left of the budget")
        posterior = self._posterior = self._fit(spec, state)
        pending = _pending_rows(spec, state)
        targets = target_points(spec, posterior, candidate_tables.target_points(spec))
        choice = choose(
            [posterior],
            candidates,
            targets,
            total_budget=spec.budget.total,
            budget=state.remaining,
            pending=pending,
            num=num,
        )
        if choice.plan is not None:
            cost = float(candidates.cost[choice.plan.picks].sum())
            reason = self._stop_rule.why_stop(state, choice.plan, cost, targets.unit)
            if reason is not None:
                return Proposal(stop=reason)
        return _proposal(spec, candidates, choice, posterior)

    def worth_of_finishing(
        self, spec: StudySpec, state: StudyState, curves: Mapping[str, Sequence[CurvePoint]]
    ) -> dict[str, Worth]:
        """What finishing runs under way is worth beside what their remaining cost buys; see `design.finishing`."""
        if not are_calibrated(state):
            return {}
        posterior = self._posterior = self._posterior or self._fit(spec, state)
        targets = target_points(spec, posterior, candidate_tables.target_points(spec))
        return worth_of_finishing(spec, state, posterior, targets, curves)

    def _fit(self, spec: StudySpec, state: StudyState) -> StudyPosterior:
        return inference.fit_study(
            spec,
            state.outcomes(),
            candidate_tables.all_designs(spec),
            candidate_tables.target_points(spec),
            num_draws=_DRAWS if reads_draws(spec) else 0,
            seed=spec.seed,
            warm=self._posterior,
        )


def choose(
    posteriors: Sequence[StudyPosterior],
    candidates: DesignTable,
    targets: TargetPoints,
    *,
    total_budget: float,
    budget: float | np.ndarray,
    pending: np.ndarray,
    num: int,
    purse: np.ndarray | None = None,
    units: np.ndarray | None = None,
) -> Choice:
    """The candidates to buy now.

    Args:
        posteriors: one for each response of the study.
        candidates: affordable designs.
        pending: (R, 1 + A) domain index and raw axis values of runs under way.
        num: how many to choose at most.
        purse: which purse of `budget` pays each candidate, (C,).
        units: variance unit of each response.
    """
    encoding = posteriors[0].encoding
    scaled = encoding.coordinates(candidates.x) / encoding.spread
    num_bought = len(posteriors[0].runs) + len(pending)
    wanted = seeding.num_seed_runs(len(encoding.axes), len(encoding.domain_names))
    if num_bought < wanted:
        under_way = pending.copy()
        under_way[:, 1:] = encoding.coordinates(pending[:, 1:])
        bought = np.concatenate([posteriors[0].runs, under_way])
        bought[:, 1:] /= encoding.spread
        picks = seeding.seed_designs(
            scaled,
            candidates.domain,
            candidates.cost,
            bought,
            budget=total_budget,
            num=min(num, wanted - num_bought),
        )
        if len(picks):
            return Choice(picks, None, "seed")
    with one_blas_thread():
        kept = candidate_tables.spread_over_cost(candidates, _MAX_CANDIDATES)
        table = candidates.take(kept)
        surrogates, aims = [], []
        for posterior in posteriors:
            domain = np.concatenate([table.domain, pending[:, 0].astype(int), targets.domain])
            x = np.concatenate([table.x, pending[:, 1:], targets.x])
            points = make_surrogate(posterior, domain, x)
            points = compress(points, anchor=_anchors(len(table), len(domain) - len(targets.domain), len(domain)))
            surrogates.append(points.take(slice(0, len(table) + len(pending))))
            aims.append(points.take(slice(len(table) + len(pending), None)))
        cost = np.concatenate([table.cost, np.full(len(pending), np.inf)])
        payer = np.zeros(len(cost), dtype=int)
        payer[: len(table)] = 0 if purse is None else purse[kept]
        plan = plan_budget(
            surrogates,
            aims,
            cost,
            budget=budget,
            purse=payer,
            pending=np.arange(len(table), len(cost)),
            target_rows=targets.rows,
            units=units,
        )
        chosen = _first_of(plan, cost, num)
        first_gains = np.zeros(len(candidates))
        first_gains[kept] = plan.first_gains[: len(kept)]
        return Choice(kept[chosen], plan._replace(picks=kept[plan.picks], first_gains=first_gains), "plan")


def _anchors(num_candidates: int, first_target: int, num_points: int) -> np.ndarray:
    """Targets and candidates, evenly thinned: half of the anchors each, or more candidates where targets are few."""
    num_targets = min(num_points - first_target, _ANCHORS // 2)
    aims = np.linspace(first_target, num_points - 1, num_targets)
    sample = np.linspace(0, num_candidates - 1, min(num_candidates, _ANCHORS - num_targets))
    return np.unique(np.concatenate([aims, sample]).round().astype(int))


def _first_of(plan: Plan, cost: np.ndarray, num: int) -> np.ndarray:
    """The part of a plan to execute now: members that teach nearly as much as the best one, the cheapest of them first.

    Only a member whose own gain is at least half of the largest may come early: gain for cost alone would put the dear
    members off for ever, one cheap run after another.
    """
    left = list(plan.picks)
    chosen: list[int] = []
    while left and len(chosen) < num:
        gains = plan.first_gains[left]
        worth = np.where(gains >= _ENOUGH * gains.max(), gains / cost[left] ** 0.4, -1.0)
        chosen.append(left.pop(int(np.argmax(worth))))
    return np.array(chosen, dtype=int)


def _pending_rows(spec: StudySpec, state: StudyState) -> np.ndarray:
    index = {name: i for i, name in enumerate(spec.domain_names)}
    rows = [[index[r.design.domain], *(r.design.axes[a] for a in spec.axis_names)] for r in state.pending()]
    return np.array(rows, dtype=np.float64).reshape(-1, 1 + len(spec.axis_names))


def _proposal(spec: StudySpec, candidates: DesignTable, choice: Choice, posterior: StudyPosterior) -> Proposal:
    if not len(choice.picks):
        return Proposal(stop="no affordable design would teach anything about the targets")
    designs = [_design(spec, candidates, int(i)) for i in choice.picks]
    costs = [float(candidates.cost[i]) for i in choice.picks]
    beliefs = explain(posterior, candidates.domain[choice.picks], candidates.x[choice.picks])
    plan = choice.plan
    if plan is None:
        why = {"kind": "seed", "why": "first runs, spread over the box"}
        return Proposal(designs=designs, costs=costs, reasons=[why | belief for belief in beliefs])
    before = max(plan.variance_before, 1e-300)
    reasons = [
        {
            "kind": "plan",
            "why": f"expected to lower the targets' variance by {100 * plan.first_gains[i] / before:.1f} %"
            f" on its own; the plan for the whole budget by {100 * (1 - plan.variance_after / before):.1f} %"
            + words(belief),
            "expected_fall": float(plan.first_gains[i] / before),
            "plan_fall": float(1.0 - plan.variance_after / before),
        }
        | belief
        for i, belief in zip(choice.picks, beliefs, strict=True)
    ]
    rest = [
        {"domain": spec.domain_names[candidates.domain[i]], "cost": float(candidates.cost[i])}
        | dict(zip(spec.axis_names, map(float, candidates.x[i]), strict=True))
        for i in plan.picks
        if i not in set(choice.picks)
    ]
    return Proposal(designs=designs, costs=costs, reasons=reasons, plan=rest)


def _design(spec: StudySpec, candidates: DesignTable, index: int) -> Design:
    return Design(
        domain=spec.domain_names[candidates.domain[index]],
        axes=dict(zip(spec.axis_names, map(float, candidates.x[index]), strict=True)),
    )


_POLICIES: dict[str, Callable[..., Policy]] = {"planner": Planner}


def open_policy(name: str, **options: Any) -> Policy:
    """The policy of that name.

    Raises:
        InputError: unknown name or option.
    """
    if name not in _POLICIES:
        raise InputError(f"unknown policy {name!r}; known policies: {', '.join(sorted(_POLICIES))}")
    try:
        return _POLICIES[name](**options)
    except TypeError as error:
        raise InputError(f"policy {name!r}: {error}") from None
