"""Stand-ins for tests of the host side: a study, a policy and a backend whose every answer is known."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from planner import candidates
from planner.execution import Job, Report
from planner.records import DesignTable, Proposal, RunState, StudyState
from planner.spec import StudySpec
from planner.study import Study

# Four designs in each of two domains; N D is the price, so that the cheapest costs 1 and the dearest 8.
STUDY = """
[study]
name = "toy"

[response]
name = "loss"
lower = 0.0
expect = [1.0, 6.0]

[[axes]]
name = "N"
values = [1, 2]

[[axes]]
name = "D"
values = [1, 4]

[[domains]]
name = "web"

[[domains]]
name = "code"

[cost]
unit = "hour"
terms = [{ coefficient = 1, powers = { N = 1, D = 1 } }]

[budget]
total = 100
"""


def write_study(folder: Path, text: str = STUDY, **replacements: str) -> Path:
    """A study file in `folder`, with `old=new` replaced; keyword `total` sets the budget."""
    for key, value in replacements.items():
        text = text.replace("total = 100", f"{key} = {value}")
    path = folder / "toy.toml"
    path.write_text(text)
    return path


class Cheapest:
    """A policy: the cheapest candidates first."""

    def propose(self, spec: StudySpec, state: StudyState, table: DesignTable, num: int) -> Proposal:
        order = np.argsort(table.cost, kind="stable")[:num]
        return Proposal(
            designs=[candidates.design_at(spec, table, int(i)) for i in order],
            costs=[float(table.cost[i]) for i in order],
            reasons=[{"why": "it is cheap"} for _ in order],
        )


@dataclass
class Cluster:
    """What outlives every planner: which attempts were started, and how each run ends."""

    ends: Mapping[str, Sequence[RunState]] = field(default_factory=dict)  # axes key -> end of each attempt
    started: list[tuple[str, int]] = field(default_factory=list)
    looks: dict[str, int] = field(default_factory=dict)


@dataclass
class FakeBackend:
    """A backend on a cluster: a run is running at the first look and has ended at the second."""

    cluster: Cluster
    slots: int = 2
    simulated: bool = True
    jobs: dict[str, Job] = field(default_factory=dict)
    cancelled: list[str] = field(default_factory=list)
    response: Callable[[Job], float | None] = lambda job: 1.0 + 1.0 / job.design.axes["N"] + 1.0 / job.design.axes["D"]
    reports: dict[str, dict[str, Any]] = field(default_factory=dict)  # run_id -> fields of its final report

    def submit(self, job: Job) -> str:
        handle = f"{job.run_id}/{job.attempt}"
        self.jobs[handle] = job
        if (job.run_id, job.attempt) not in self.cluster.started:
            self.cluster.started.append((job.run_id, job.attempt))
        return handle

    def poll(self, handles: Sequence[str]) -> list[Report]:
        return [self._report(handle) for handle in handles]

    def cancel(self, handle: str) -> None:
        self.cancelled.append(handle)

    def _report(self, handle: str) -> Report:
        run_id, _, attempt = handle.partition("/")
        looks = self.cluster.looks[handle] = self.cluster.looks.get(handle, 0) + 1
        if looks < 2:
            return Report(run_id=run_id, handle=handle, state=RunState.RUNNING)
        job = self.jobs.get(handle)
        ends = self.cluster.ends.get(run_id, self.cluster.ends.get("*", ()))
        state = ends[min(int(attempt), len(ends) - 1)] if ends else RunState.COMPLETED
        fields: dict[str, Any] = {"state": state, "cost": None, "message": "" if state is RunState.COMPLETED else "oh"}
        if state is RunState.COMPLETED:
            told = {"response": self.response(job), "cost": job.options["predicted_cost"]} if job else {"response": 2.0}
            fields |= told
        return Report(run_id=run_id, handle=handle, **(fields | self.reports.get(run_id, {})))


def open_toy(path: Path) -> Study:
    """The study of `write_study` with the cheapest-first policy."""
    study = Study.open(path)
    study.policy = Cheapest()  # type: ignore[misc]
    return study
