"""From what is known to runs that are paid for: candidates, the policy's proposal, the reservation."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from planner.errors import InputError, NothingAffordable, PlannerError

if TYPE_CHECKING:
    from planner.ledger import Ledger
    from planner.records import Policy, Proposal, RunRecord, StudyState
    from planner.spec import StudySpec

# Another planner may buy the same designs between our proposal and our reservation: propose again from what is left.
MAX_ROUNDS = 5


@dataclass(frozen=True)
class Stop:
    """Why nothing more is bought: a code for programs and a sentence for people."""

    reason: str
    message: str

    @property
    def is_exhausted(self) -> bool:
        """Whether it is money or designs that ran out."""
        return self.reason.startswith(("budget_", "pool_", "per_run_max"))

    def as_error(self) -> PlannerError:
        """The error for a caller that asked for runs and gets none."""
        return NothingAffordable(f"nothing can be bought: {self.message}")


@dataclass(frozen=True, kw_only=True)
class Purchase:
    """Runs whose predicted cost is reserved now; `plan` is the policy's for the rest; `stop` when fewer than asked."""

    granted: Sequence[RunRecord] = ()
    plan: Sequence[Mapping[str, Any]] = ()
    stop: Stop | None = None


def buy(spec: StudySpec, ledger: Ledger, policy: Policy, num: int, *, tag: Mapping[str, Any]) -> Purchase:
    """Reserves up to `num` runs that the policy wants; `tag` is added to the reason that is recorded with each.

    Raises `InputError` when a policy proposes what cannot be meant, and whatever the policy raises; what was reserved
    before stays reserved.
    """
    from planner import candidates, continuing

    granted: dict[str, RunRecord] = {}
    plan: Sequence[Mapping[str, Any]] = ()
    stop: Stop | None = None
    for _ in range(MAX_ROUNDS):
        state = ledger.state()
        table = candidates.candidate_designs(spec, state)
        if not len(table):
            stop = Stop(*_why_nothing(spec, state))
            break
        proposal = policy.propose(spec, readable(spec, state), table, num - len(granted))
        _require_sane(proposal)
        proposal = continuing.with_parents(spec, state, candidates.all_designs(spec), proposal)
        plan = proposal.plan
        if not proposal.designs:
            stop = Stop("policy_stop", proposal.stop or "the policy proposes nothing more")
            break
        reasons = [dict(reason) | dict(tag) for reason in proposal.reasons] or [dict(tag) for _ in proposal.designs]
        reservation = ledger.reserve(list(zip(proposal.designs, proposal.costs, strict=True)), reasons)
        granted |= {run.run_id: run for run in reservation.granted}
        if len(granted) >= num or not (reservation.existing or reservation.refused):
            break
        if reservation.refused and not reservation.granted:
            stop = Stop("budget_reserved", str(reservation.refused[0].error))
    if len(granted) < num and stop is None:
        stop = Stop("policy_waits", "the policy wants no more runs before some have ended")
    return Purchase(granted=list(granted.values()), plan=plan, stop=stop)


def readable(spec: StudySpec, state: StudyState) -> StudyState:
    """The state with only those runs that the study file still describes: its domains, a value for each of its axes.

    Money spent on the others stays spent.
    """
    names, axes = set(spec.domain_names), set(spec.axis_names)
    runs = {
        run_id: run
        for run_id, run in state.runs.items()
        if run.design.domain in names and axes <= run.design.axes.keys()
    }
    return state if len(runs) == len(state.runs) else replace(state, runs=runs)


def _why_nothing(spec: StudySpec, state: StudyState) -> tuple[str, str]:
    from planner import candidates

    return candidates.explain_empty(spec, state)


def _require_sane(proposal: Proposal) -> None:
    num = len(proposal.designs)
    if len(proposal.costs) != num or (proposal.reasons and len(proposal.reasons) != num):
        raise InputError(
            f"the policy proposed {num} designs with {len(proposal.costs)} costs and {len(proposal.reasons)} reasons:"
            " it must give one cost each, and one reason each or none"
        )
    for design, cost in zip(proposal.designs, proposal.costs, strict=True):
        if not (math.isfinite(cost) and cost > 0):
            raise InputError(f"the policy predicts cost {cost!r} for {design}: it must be finite and greater than 0")
