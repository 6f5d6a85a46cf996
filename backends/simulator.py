"""Runs that only pretend: responses come from a hidden truth, and time is simulated too.

Options: `truth` (a name of `backends.truths.TRUTHS`) and any constant of that truth; `seed`; `slots` (8);
`noise_df` (degrees of freedom of Student-t noise; default: Gaussian); `cost_noise` (sd of the log of the real cost over
the predicted one); `roles` (study axis -> role, for axes whose name does not say it); `sources` (axes that are other
ways to buy one, see `backends.truths.sources`); `seconds_per_cost` (duration of a run; deadlines hold only if given) or
`realtime_seconds` (every run takes so long on the real clock); `failures` (a list of tables, see `Failure`);
`curve_points` (how many points of its curve a run reports; 0).

What a run answers depends on `seed` and its run_id only, and a handle holds all there is to know of a job: a new
simulator given an old handle reports the same.  The predicted cost is taken from `job.options["predicted_cost"]`;
without it no cost is reported.
"""

import dataclasses
import hashlib
import json
import time
from collections import deque
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from backends import FOREIGN, simulated_curves
from backends.truths import TRUTHS, Truth
from backends.truths.domains import Mean
from backends.truths.sources import check_sources, with_worth
from planner.execution import BackendError, Job, Report
from planner.records import RunState

# Names under which studies commonly write an axis.
ALIASES = {
    "n": "parameters",
    "params": "parameters",
    "d": "tokens",
    "unique": "unique_tokens",
    "c": "compute",
    "lr": "learning_rate",
    "batch": "batch_size",
    "envs": "environments",
    "e": "experts",
}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    truth: str = "chinchilla"
    seed: int = 0
    slots: int = 8
    noise_df: float | None = None
    cost_noise: float = 0.0
    roles: Mapping[str, str] = dataclasses.field(default_factory=dict)
    sources: Mapping[str, Mapping[str, Any]] = dataclasses.field(default_factory=dict)
    seconds_per_cost: float | None = None
    realtime_seconds: float | None = None
    failures: Sequence[Mapping[str, Any]] = ()
    curve_points: int = 0


@dataclasses.dataclass(frozen=True, kw_only=True)
class Failure:
    """Runs in this region (all limits of `above` exceeded, all of `below` undercut) end in `state`."""

    state: RunState
    probability: float = 1.0
    above: Mapping[str, float] = dataclasses.field(default_factory=dict)  # study axis -> limit, raw units
    below: Mapping[str, float] = dataclasses.field(default_factory=dict)
    domains: Sequence[str] | None = None
    last_attempt: int | None = None  # later attempts go well
    cost_fraction: float = 0.5  # of the whole cost, when it happens

    def meets(self, work: Mapping[str, Any], chance: float) -> bool:
        axes = work["axes"]
        return (
            chance < self.probability
            and all(axes.get(name, -np.inf) > limit for name, limit in self.above.items())
            and all(axes.get(name, np.inf) < limit for name, limit in self.below.items())
            and (self.domains is None or work["domain"] in self.domains)
            and (self.last_attempt is None or work["attempt"] <= self.last_attempt)
        )


@dataclasses.dataclass(eq=False)
class _Run:
    work: Mapping[str, Any]  # what the handle holds
    report: Report  # how it will end, or ended
    seconds: float
    ends_at: float | None = None  # simulated time; None while it waits for a slot
    ended: bool = False


class Simulator:
    """Backend "simulator"; see the module."""

    simulated = True

    def __init__(self, options: Mapping[str, Any], study_dir: Path) -> None:
        self.settings, self.truth, self.failures = _settings(options)
        self.slots = self.settings.slots
        if self.settings.realtime_seconds is not None:
            # Time goes on while the planner thinks, as with real runs.
            self.simulated, self.ready = False, self.slots
        self.clock = 0.0  # seconds
        self._opened_at = time.monotonic()
        self._runs: dict[str, _Run] = {}  # by handle
        self._newest: dict[str, _Run] = {}  # by run_id
        self._active: list[_Run] = []
        self._waiting: deque[_Run] = deque()

    # ---- the three verbs ----

    def submit(self, job: Job) -> str:
        alive = self._newest.get(job.run_id)
        if alive is not None and not alive.ended:
            return alive.report.handle
        work = {
            "run_id": job.run_id,
            "attempt": job.attempt,
            "domain": job.design.domain,
            "axes": dict(job.design.axes),
            "cost": job.options.get("predicted_cost"),
            "deadline": job.deadline_seconds,
        }
        handle = json.dumps(work, separators=(",", ":"))
        self._run_of(handle)
        return handle

    def poll(self, handles: Sequence[str]) -> list[Report]:
        """Reports; simulated time first moves on to the end of the next run."""
        runs = [self._run_of(handle) for handle in handles]
        if self.settings.realtime_seconds is None:
            self._run_until(min((self._next_news(run) for run in self._active), default=self.clock))
        else:
            self._run_until(time.monotonic() - self._opened_at)
        return [
            _unknown_report(handle) if run is None else self._report(run)
            for handle, run in zip(handles, runs, strict=True)
        ]

    def cancel(self, handle: str) -> None:
        run = self._run_of(handle)
        if run is None or run.ended:
            return
        left = run.seconds if run.ends_at is None else run.ends_at - self.clock
        done = 1.0 - left / run.seconds if run.seconds > 0 else 0.0
        cost = None if run.report.cost is None else run.report.cost * done
        points = self._report(run).points
        run.report = Report(
            run_id=run.report.run_id,
            handle=handle,
            state=RunState.CANCELLED,
            cost=cost,
            message="cancelled",
            points=points,
        )
        run.ended = True
        (self._waiting if run in self._waiting else self._active).remove(run)
        self._start_waiting()

    def truth_mean(self, domain: str, axes: Mapping[str, Any]) -> Mean:
        """The true mean response at `axes` (names of the study, raw units; arrays broadcast): for demos and scores."""
        return self.truth.mean(domain, self._by_role(axes))

    # ---- time ----

    def _run_of(self, handle: str) -> _Run | None:
        """The run of a handle; one that is not known yet starts now."""
        if handle in self._runs:
            return self._runs[handle]
        try:
            run = self._foreseen(handle, json.loads(handle))
        except (ValueError, KeyError, TypeError):
            return None
        self._runs[handle] = self._newest[run.report.run_id] = run
        self._waiting.append(run)
        self._start_waiting()
        return run

    def _start_waiting(self) -> None:
        while self._waiting and len(self._active) < self.slots:
            run = self._waiting.popleft()
            run.ends_at = self.clock + run.seconds
            self._active.append(run)

    def _share(self, run: _Run) -> float:
        """How much of its way a run has gone."""
        if run.ended or run.ends_at is None or run.seconds <= 0:
            return float(run.ended)
        return min(1.0, max(0.0, 1.0 - (run.ends_at - self.clock) / run.seconds))

    def _next_news(self, run: _Run) -> float:
        """When a run that is under way ends or reports its next point."""
        end, num = run.ends_at or 0.0, self.settings.curve_points
        if not num:
            return end
        shares = simulated_curves.shares(num)
        later = shares[shares > self._share(run) * (1.0 + 1e-6)]
        return end - (1.0 - float(later[0])) * run.seconds if len(later) else end

    def _report(self, run: _Run) -> Report:
        """What is told of a run now."""
        if not self.settings.curve_points or run.report.state is RunState.CANCELLED:
            return run.report if run.ended else _unfinished_report(run)
        points = simulated_curves.curve(
            _generator(self.settings.seed, run.work["run_id"], "curve"),
            run.report.response,
            run.report.cost,
            self._share(run),
            self.settings.curve_points,
            falls=self.truth.response == "loss",
            diverges=run.report.state is RunState.DIVERGED,
        )
        if run.ended:
            return dataclasses.replace(run.report, points=points)
        last = points[-1] if points else None
        return dataclasses.replace(
            _unfinished_report(run),
            points=points,
            cost=None if last is None else last.cost,
            progress=None if last is None else {"step": last.step, "value": last.value},
        )

    def _run_until(self, limit: float) -> None:
        """Moves the clock to `limit`; what waits starts at the moment a slot becomes free, not at the next poll."""
        while self._active:
            run = min(self._active, key=lambda each: each.ends_at or 0.0)
            if run.ends_at is None or run.ends_at > limit:
                break
            self.clock = max(self.clock, run.ends_at)
            run.ended = True
            self._active.remove(run)
            self._start_waiting()
        self.clock = max(self.clock, limit)

    # ---- answers ----

    def _foreseen(self, handle: str, work: Mapping[str, Any]) -> _Run:
        rng = _generator(self.settings.seed, work["run_id"])
        # Every draw is made whatever happens, so that a failed attempt does not change the answer of the next.
        hidden = {name: self.truth.axes[name] * np.exp(0.7 * rng.standard_normal()) for name in self.truth.drawn}
        cost_factor = np.exp(self.settings.cost_noise * rng.standard_normal())
        mean = float(self.truth.mean(work["domain"], hidden | self._by_role(work["axes"])))
        measured = _measure(self.truth, mean, self.settings.noise_df, rng)
        cost = None if work["cost"] is None else float(work["cost"] * cost_factor)
        seconds, limit = self._seconds(cost), work["deadline"]
        state, share, message = RunState.COMPLETED, 1.0, ""
        chances = _generator(self.settings.seed, work["run_id"], work["attempt"])
        for failure in self.failures:
            if failure.meets(work, chances.random()) and state is RunState.COMPLETED:
                state, share, message = failure.state, failure.cost_fraction, f"simulated: {failure.state}"
        if limit is not None and self.settings.seconds_per_cost is not None and seconds * share > limit:
            state, share, message = (
                RunState.TIMED_OUT,
                limit / seconds,
                f"simulated: {seconds:g} s, allowed {limit:g} s",
            )
        if state is RunState.COMPLETED and not np.isfinite(mean):
            state, message = RunState.DIVERGED, "simulated: the truth is not finite here"
        report = Report(
            run_id=work["run_id"],
            handle=handle,
            state=state,
            cost=None if cost is None else cost * share,
            message=message,
        )
        if state is RunState.COMPLETED:
            report = dataclasses.replace(report, **measured)
        return _Run(work=work, report=report, seconds=seconds * share)

    def _seconds(self, cost: float | None) -> float:
        if self.settings.realtime_seconds is not None:
            return self.settings.realtime_seconds
        # Without a rate only the order matters: dearer runs end later.
        return (1.0 if cost is None else cost) * (self.settings.seconds_per_cost or 1.0)

    def _by_role(self, axes: Mapping[str, Any]) -> dict[str, Any]:
        """Axis values by the truth's roles: by declared role, else by name, else in order; others have no effect."""
        axes = with_worth(self.settings.sources, axes)
        roles = dict.fromkeys(axes, "")
        for name in axes:
            role = self.settings.roles.get(name) or ALIASES.get(name.lower(), name.lower())
            if role in self.truth.axes or name in self.settings.roles:
                roles[name] = role
        free = [role for role in self.truth.axes if role not in roles.values() and role not in self.truth.drawn]
        for name in [name for name, role in roles.items() if not role][: len(free)]:
            roles[name] = free.pop(0)
        chosen = [role for role in roles.values() if role in self.truth.axes]
        if len(set(chosen)) < len(chosen):
            raise BackendError(f"two axes have the same role: {roles}. Set backend.roles")
        return {role: axes[name] for name, role in roles.items() if role in self.truth.axes}


def _generator(*content: Any) -> np.random.Generator:
    digest = hashlib.sha256("\n".join(map(str, content)).encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:16], "big"))


def _measure(truth: Truth, mean: float, noise_df: float | None, rng: np.random.Generator) -> dict[str, Any]:
    """One noisy measurement, as fields of a report."""
    noise = truth.noise * (rng.standard_normal() if noise_df is None else rng.standard_t(noise_df))
    if truth.response == "loss":
        return {"response": mean + noise}
    share = min(1.0, max(0.0, mean)) if np.isfinite(mean) else 0.0
    trials = getattr(truth, "trials", 0) if truth.response == "success" else 0
    if trials:
        successes = float(rng.binomial(trials, share))
        return {"response": successes / trials, "successes": successes, "trials": float(trials)}
    return {"response": min(1.0, max(0.0, share + noise))}


def _unfinished_report(run: _Run) -> Report:
    state = RunState.SUBMITTED if run.ends_at is None else RunState.RUNNING
    return Report(run_id=run.report.run_id, handle=run.report.handle, state=state)


def _unknown_report(handle: str) -> Report:
    return Report(run_id="", handle=handle, state=RunState.LOST, message=f"not a handle of a simulator: {handle!r}")


# ---- options --------------------------------------------------------------------------------------------------------


def _settings(options: Mapping[str, Any]) -> tuple[Settings, Truth, list[Failure]]:
    own = {field.name for field in dataclasses.fields(Settings)}
    settings = Settings(**{name: value for name, value in options.items() if name in own})
    if settings.truth not in TRUTHS:
        raise BackendError(f"backend.truth is {settings.truth!r}, which is unknown. Known: {', '.join(TRUTHS)}")
    truth_class = TRUTHS[settings.truth]
    constants = {name: value for name, value in options.items() if name not in own | FOREIGN}
    known = {field.name: field.default for field in dataclasses.fields(truth_class)}
    unknown = sorted(set(constants) - set(known))
    if unknown:
        raise BackendError(
            f"backend.{unknown[0]} is unknown to the simulator. Its options: {', '.join(sorted(own))};"
            f" constants of truth {settings.truth!r}: {', '.join(sorted(known))}"
        )
    _check_numbers(settings, constants)
    try:
        check_sources(settings.sources)
        return settings, truth_class(**constants), [_failure(each) for each in settings.failures]
    except ValueError as error:
        raise BackendError(f"backend: {error}") from error


def _check_numbers(settings: Settings, constants: Mapping[str, Any]) -> None:
    if isinstance(settings.slots, bool) or not isinstance(settings.slots, int) or settings.slots < 1:
        raise BackendError(f"backend.slots is {settings.slots!r}; it must be a whole number, at least 1")
    if isinstance(settings.curve_points, bool) or settings.curve_points not in range(1001):
        raise BackendError(f"backend.curve_points is {settings.curve_points!r}; it must be a whole number up to 1000")
    numbers = {name: getattr(settings, name) for name in ("noise_df", "seconds_per_cost", "realtime_seconds")}
    for name, value in (
        {k: v for k, v in numbers.items() if v is not None} | {"cost_noise": settings.cost_noise}
    ).items():
        if not _is_number(value) or value < 0 or (value == 0 and name in ("noise_df", "seconds_per_cost")):
            raise BackendError(f"backend.{name} is {value!r}; it must be a positive number")
    for name, value in constants.items():
        if not isinstance(value, Mapping) and not _is_number(value):
            raise BackendError(f"backend.{name} is {value!r}; a constant of a truth must be a finite number")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and bool(np.isfinite(value))


def _failure(table: Mapping[str, Any]) -> Failure:
    ends = [RunState.DIVERGED, RunState.FAILED, RunState.OUT_OF_MEMORY, RunState.TIMED_OUT, RunState.PREEMPTED]
    ends += [RunState.CANCELLED, RunState.LOST]
    known = {field.name for field in dataclasses.fields(Failure)}
    if table.get("state") not in ends or not set(table) <= known:
        raise BackendError(
            f"backend.failures: {dict(table)!r}; state must be one of {', '.join(ends)},"
            f" and the other keys among {', '.join(sorted(known - {'state'}))}"
        )
    return Failure(**{**table, "state": RunState(table["state"])})
