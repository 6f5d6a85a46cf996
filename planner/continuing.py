"""Going on with a finished run: from its checkpoint to a longer schedule, at the cost of the difference.

A study allows it by naming the axis that is the length of the schedule:

    [backend]
    resume = "D"                          # the run's last checkpoint is a run on its way (constant learning rate)
    resume = { axis = "D", from = 0.8 }   # runs keep a checkpoint of where the last fifth, the decay, began

The design is that of a run made from scratch, with the seed of its parent, and so is its `run_id`: what differs is
where it begins, which stands in its reason, and what it costs.  Parent and child are checkpoints of one training run,
and share its effect on the response in the likelihood (`StudyState.outcomes`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from planner import space_filling
from planner.errors import InputError
from planner.execution import Continues
from planner.hearing import NOT_AGAIN
from planner.records import Design, DesignTable, RunState
from planner.spec.poolfile import design_keys

if TYPE_CHECKING:
    from pathlib import Path

    from planner.records import Proposal, RunRecord, StudyState
    from planner.spec import StudySpec

OPTION = "resume"
# How much longer a schedule may become at once, where the pool does not say.
FACTORS = (1.5, 2.0, 3.0, 4.0, 6.0, 8.0)


class Resume(NamedTuple):
    """The axis that is the length of the schedule, and the share of a run's schedule at which its checkpoint is."""

    axis: str
    share: float


@dataclass(frozen=True, kw_only=True)
class Offers:
    """What may be gone on with: a table of designs at the cost of the difference, and the parent of each."""

    table: DesignTable
    parents: tuple[RunRecord, ...]


def resume_of(spec: StudySpec) -> Resume | None:
    """What `[backend] resume` says; None where it is not there.  Raises `InputError` for what cannot be meant."""
    value = spec.backend.options.get(OPTION)
    if value is None or value is False:
        return None
    told = {"axis": value} if isinstance(value, str) else value
    if not isinstance(told, Mapping) or not set(told) <= {"axis", "from"} or "axis" not in told:
        raise InputError(f'backend.{OPTION} is {value!r}: write "D", or {{ axis = "D", from = 0.8 }}')
    axis, share = told["axis"], told.get("from", 1.0)
    scaled = [each.name for each in spec.axes if each.is_log and each.simplex is None]
    if axis not in scaled:
        raise InputError(f"backend.{OPTION}: {axis!r} is no axis of a length; axes: {', '.join(scaled)}")
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1:
        raise InputError(
            f"backend.{OPTION}: from is {share!r}; it must be a share of the schedule, above 0 and up to 1"
        )
    if spec.backend.kind == "replay":
        raise InputError(f"backend.{OPTION}: recorded runs cannot be gone on with; remove it, or take another kind")
    return Resume(axis, float(share))


def offers(spec: StudySpec, state: StudyState, designs: DesignTable) -> Offers | None:
    """All ways to go on with a completed run of this study at its declared cost; None where the study allows none.

    With a pool those to its rows, else to `FACTORS` times the length.  Runs made elsewhere have no checkpoint here, and
    a run whose checkpoint was found missing once is not offered again.
    """
    resume = resume_of(spec)
    if resume is None:
        return None
    found: dict[bytes, tuple[RunRecord, int, np.ndarray]] = {}
    position = spec.axis_names.index(resume.axis)
    for parent in _parents(spec, state):
        index = spec.domain_index(parent.design.domain)
        x = np.array([parent.design.axes[name] for name in spec.axis_names], dtype=np.float64)
        for longer in _longer(spec, designs, index, x, position):
            key = design_keys(np.array([index]), longer[None])[0].tobytes()
            known = found.get(key)
            # The longest of several parents leaves the least to do.
            if known is None or known[0].design.axes[resume.axis] < x[position]:
                found[key] = (parent, index, longer)
    if not found:
        return None
    parents, domains, points = zip(*found.values(), strict=True)
    end = np.array(points)
    begin = end.copy()
    begin[:, position] = [resume.share * parent.design.axes[resume.axis] for parent in parents]
    domain = np.array(domains, dtype=np.int64)
    cost = spec.costs(domain, end) - spec.costs(domain, begin)
    good = np.flatnonzero(np.isfinite(cost) & (cost > 0))
    row = np.full(len(good), -1, dtype=np.int64)
    table = DesignTable(domain=domain[good], x=end[good], cost=cost[good], row=row)
    return Offers(table=table, parents=tuple(parents[i] for i in good))


def merged(designs: DesignTable, more: DesignTable) -> DesignTable:
    """`designs` with those of `more`, which replace them where they are the same and cheaper."""
    known = {key.tobytes(): i for i, key in enumerate(design_keys(designs.domain, designs.x))}
    cost = designs.cost.copy()
    new = []
    for i, key in enumerate(design_keys(more.domain, more.x)):
        at = known.get(key.tobytes())
        if at is None:
            new.append(i)
        else:
            cost[at] = min(cost[at], more.cost[i])
    added = more.take(np.array(new, dtype=np.int64))
    return DesignTable(
        domain=np.concatenate([designs.domain, added.domain]),
        x=np.concatenate([designs.x, added.x]),
        cost=np.concatenate([cost, added.cost]),
        row=np.concatenate([designs.row, added.row]),
    )


def with_parents(spec: StudySpec, state: StudyState, designs: DesignTable, proposal: Proposal) -> Proposal:
    """The proposal with a parent in the reason, and its seed, wherever a design can go on from one."""
    found = offers(spec, state, designs)
    resume = resume_of(spec)
    if found is None or resume is None or not proposal.designs:
        return proposal
    names = spec.axis_names
    ways = {
        Design(domain=parent.design.domain, axes=dict(zip(names, x.tolist(), strict=True))).key(): parent
        for parent, x in zip(found.parents, found.table.x, strict=True)
    }
    chosen, reasons = [], []
    for i, design in enumerate(proposal.designs):
        reason: dict[str, Any] = dict(proposal.reasons[i]) if proposal.reasons else {}
        parent = ways.get(replace(design, seed=0).key())
        if parent is not None:
            design = replace(design, seed=parent.design.seed)
            begins = resume.share * parent.design.axes[resume.axis]
            reason |= {"continues": {"run_id": parent.run_id, "axis": resume.axis, "from": begins}}
            words = f"goes on with run {parent.run_id} from {resume.axis}={begins:.4g}"
            reason["why"] = f"{reason['why']}; {words}" if reason.get("why") else words
        chosen.append(design)
        reasons.append(reason)
    return replace(proposal, designs=chosen, reasons=reasons)


def job_part(state: StudyState, run: RunRecord, folder: Path) -> Continues | None:
    """What a job is told of the run that it goes on with; `folder` holds the job folders.  None: it begins anew."""
    told = run.reason.get("continues")
    parent = state.runs.get(run.parent or "")
    if parent is None or not isinstance(told, Mapping):
        return None
    return Continues(
        run_id=parent.run_id,
        folder=folder / parent.run_id,
        axis=str(told["axis"]),
        begins=float(told["from"]),
        axes=dict(parent.design.axes),
    )


def _parents(spec: StudySpec, state: StudyState) -> list[RunRecord]:
    """Completed runs of this study that may have a checkpoint."""
    refused = {
        run.parent for run in state.runs.values() if run.state is RunState.FAILED and NOT_AGAIN in run.message
    } - {None}
    names, axes = set(spec.domain_names), set(spec.axis_names)
    return [
        run
        for run in state.runs.values()
        if run.state is RunState.COMPLETED
        and not run.external
        and run.run_id not in refused
        and run.design.domain in names
        and axes <= run.design.axes.keys()
    ]


def _longer(spec: StudySpec, designs: DesignTable, domain: int, x: np.ndarray, position: int) -> np.ndarray:
    """The designs that only go on longer than `x`, (K, A)."""
    if spec.pool is not None and spec.pool.file is not None:
        same = np.delete(designs.x, position, axis=1) == np.delete(x, position)
        longer = (designs.domain == domain) & same.all(axis=1) & (designs.x[:, position] > x[position])
        return designs.x[longer]
    axis = spec.axes[position]
    lengths = np.array(axis.values) if axis.values is not None else x[position] * np.array(FACTORS)
    lengths = np.unique(space_filling.snap_axis(axis, lengths))
    lengths = lengths[(lengths > x[position]) & (lengths <= axis.high * (1.0 + 1e-12)) & np.isfinite(lengths)]
    points = np.tile(x, (len(lengths), 1))
    points[:, position] = lengths
    return points
