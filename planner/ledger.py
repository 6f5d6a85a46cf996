"""The ledger of a study: what was bought, what became of it, what is left.

Every verb is one transaction on the append-only store: it reads what others wrote, decides, and appends events.  The
state is the replay of the events and nothing else.  All verbs are idempotent.
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner import telling
from planner.errors import BudgetExceeded, InputError, StoreDamaged
from planner.events import DATA_STATES, Replayer, replay
from planner.records import STATE_RULES, CurvePoint, Design, Event, RunRecord, RunState, StudyState, run_id_of
from planner.telling import Attached, Attachment, Refusal, Reservation, Turn

if TYPE_CHECKING:
    from types import TracebackType

    from planner.store import Reader, Store

__all__ = ["Attached", "Attachment", "Ledger", "Refusal", "Reservation", "replay"]


class Ledger:
    """The events of one study.  Use `Ledger.open`; usable from several threads, and as a context manager."""

    def __init__(self, store: Store, *, study_name: str, total: float, clock: Callable[[], float]) -> None:
        self.study_name = study_name
        self.total = total
        self.warnings: list[str] = []
        self._store = store
        self._clock = clock
        self._lock = threading.RLock()
        self._replayer = Replayer()
        self._open_turn: Turn | None = None  # of `together`

    @classmethod
    def open(
        cls,
        location: str | Path,
        *,
        study_name: str,
        total: float = math.inf,
        spec_digest: str = "",
        planner_version: str = "",
        busy_timeout: float = 30.0,
        read_only: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> Ledger:
        """The ledger at a file name or database URL (":memory:" for none); made if it does not exist.

        `total` is the budget in the study's cost unit.  A `read_only` ledger never writes or waits and is empty while
        there is no file, or no table on a server.  `Ledger.warnings` tells what the caller should show.  Raises
        `StoreError` and its kinds, and `InputError` when the store belongs to another study.
        """
        from planner.store import Store  # the database library takes longer to import than all the rest

        store = Store(location, busy_timeout=busy_timeout, read_only=read_only)
        ledger = cls(store, study_name=study_name, total=total, clock=clock)
        try:
            ledger.open_study(spec_digest=spec_digest, planner_version=planner_version)
        except BaseException:
            store.close()
            raise
        return ledger

    @property
    def path(self) -> Path | None:
        """The file, None for a server or memory."""
        return self._store.path

    @property
    def url(self) -> str:
        """The address, without a password."""
        return self._store.url.render_as_string(hide_password=True)

    @property
    def location(self) -> str:
        """What another process opens the same ledger by, with any password; ":memory:" for none."""
        return self._store.location

    def close(self) -> None:
        """Ends the connections."""
        self._store.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open_study(self, *, spec_digest: str = "", planner_version: str = "") -> list[str]:
        """Records the study in a new store, or a changed study file in an old one; returns (new) warnings."""
        with self._reading() as reader:
            meta = reader.meta()
        known = meta.get("study_name")
        if known is not None and known != self.study_name:
            raise InputError(
                f"the store {self._store.name} belongs to study {known!r}, not {self.study_name!r}:"
                " give the study its old name back, or another file or database in [store] url"
            )
        warnings = []
        old_digest = meta.get("spec_digest", "")
        if known is not None and spec_digest and old_digest != spec_digest:
            warnings.append(
                "the study file has changed since it was last used (axes, response, cost or the like);"
                " runs recorded before are kept and read under the new file"
            )
        if not self._store.read_only and (known is None or warnings):
            with self._turn() as turn:
                turn.record_study(spec_digest, planner_version, self.total)
        self.warnings += warnings
        return warnings

    def events(self, after: int = 0) -> list[Event]:
        """Events with `seq` above `after`, in order."""
        with self._lock, self._store.reading() as reader:
            return reader.events(after)

    def state(self, total: float | None = None) -> StudyState:
        """The replay of all events up to now.  Reads only what is new since the last call; never waits for a writer."""
        with self._reading():
            return self._replayer.snapshot(self.total if total is None else total)

    @property
    def runs(self) -> Mapping[str, RunRecord]:
        """All runs as this ledger last saw them, its own verbs included; `state` looks what others wrote."""
        with self._lock:
            return dict(self._replayer.runs)

    def run(self, run_id: str) -> RunRecord:
        """One run.  Raises `UnknownRun`, naming ids like it."""
        with self._reading():
            return telling.find(self._replayer.runs, run_id)

    def reserve(
        self,
        designs: Sequence[tuple[Design, float]],
        reasons: Sequence[Mapping[str, Any]] = (),
        total: float | None = None,
        *,
        allow_partial: bool = True,
    ) -> Reservation:
        """Buys designs, given with their predicted costs, in order, as long as the budget allows.

        The budget is checked under the write lock: spent + reserved + new <= total, however many planners ask at once.
        A design that does not fit is refused and the next one is tried.  A design bought before is returned as
        existing; when its run ended in a state that may be proposed again, a new attempt is bought.

        Raises `InputError` for a cost that is not a number from zero up, and `BudgetExceeded` when one does not fit and
        `allow_partial` is False; then nothing is reserved.
        """
        if reasons and len(reasons) != len(designs):
            raise InputError(f"{len(designs)} designs were given with {len(reasons)} reasons: give one each, or none")
        limit = self._limit(total)
        wanted = [
            (design, telling.cost_told(cost, f"predicted cost of design {i} of domain {design.domain!r}"))
            for i, (design, cost) in enumerate(designs)
        ]
        granted: dict[str, None] = {}
        existing: dict[str, None] = {}
        refused = []
        with self._turn() as turn:
            purse = turn.purse(limit)
            for i, (design, cost) in enumerate(wanted):
                run_id = run_id_of(self.study_name, design)
                run = turn.runs.get(run_id)
                if run is not None and not STATE_RULES[run.state].may_propose_again:
                    if run_id not in granted:
                        existing[run_id] = None
                    continue
                try:
                    purse.take(run_id, cost)
                except BudgetExceeded as error:
                    if not allow_partial:
                        raise
                    refused.append(Refusal(design=design, run_id=run_id, predicted_cost=cost, error=error))
                else:
                    turn.propose(run_id, design, cost, reasons[i] if reasons else {})
                    granted[run_id] = None
            return Reservation(
                granted=[turn.runs[run_id] for run_id in granted],
                existing=[turn.runs[run_id] for run_id in existing],
                refused=refused,
            )

    def retry(self, run_id: str, total: float | None = None) -> RunRecord:
        """Buys another attempt of a run whose state is retried; a preempted run keeps its reservation.

        Raises `BudgetExceeded`, and `InputError` when the state of the run is not retried.  A run that is already
        proposed is returned as it is.
        """
        limit = self._limit(total)
        with self._turn() as turn:
            run = turn.find(run_id)
            rule = STATE_RULES[run.state]
            if run.state is RunState.PROPOSED:
                return run
            if not rule.retried:
                raise InputError(f"run {run_id} is {run.state}, which is not retried")
            if rule.final:
                turn.purse(limit).take(run_id, run.predicted_cost)
            return turn.propose(run_id, run.design, run.predicted_cost, run.reason)

    def submitted(self, run_id: str, handle: str, *, backend: str = "", attempt: int | None = None) -> RunRecord:
        """Records that a backend took the run under `handle`."""
        with self._turn() as turn:
            run = turn.find(run_id)
            if run.handle == handle and run.state not in (RunState.PROPOSED, RunState.PREEMPTED):
                return run
            return turn.append("submitted", run_id, {"handle": handle, "backend": backend, "attempt": attempt})

    def running(self, run_id: str) -> RunRecord:
        """Records that the run has started; news that is late is dropped."""
        with self._turn() as turn:
            run = turn.find(run_id)
            if STATE_RULES[run.state].final or run.state is RunState.RUNNING:
                return run
            return turn.append("running", run_id, {})

    def progress(
        self,
        run_id: str,
        *,
        value: float | None = None,
        step: float | None = None,
        cost: float | None = None,
        points: Iterable[CurvePoint] = (),
    ) -> RunRecord:
        """Records how far a run is; `cost` is what it has cost so far.  Never raises on values.

        Of `points` of its curve, those that are worth keeping (`records.thin_curve`) and not recorded are added.
        """
        with self._turn() as turn:
            run = turn.find(run_id)
            body = turn.as_read({"value": value, "step": step, "cost": cost})
            new = run.new_points(points)
            if STATE_RULES[run.state].final or (run.progress == body and not new):
                return run
            return turn.append("progress", run_id, body | ({"points": new} if new else {}))

    def stop_early(self, run_id: str, why: str, numbers: Mapping[str, Any]) -> RunRecord:
        """Records that the run is to be stopped before its end, which is before its backend is asked to do so."""
        with self._turn() as turn:
            run = turn.find(run_id)
            if STATE_RULES[run.state].final or run.early_stop:
                return run
            return turn.append("progress", run_id, {**run.progress, "early_stop": {"why": why, **numbers}})

    def complete(
        self,
        run_id: str,
        response: float | None,
        *,
        cost: float | None = None,
        se: float | None = None,
        successes: float | None = None,
        trials: float | None = None,
        curve: str | None = None,
        message: str = "",
    ) -> RunRecord:
        """Records the result of a run, in raw units.  A response that is not finite means that it diverged.

        Without a response, successes / trials is taken.  Without a cost the predicted one is charged.  A result that
        comes after the run was given up (cancelled, lost, ...) is still data.  Raises `ConflictingResult` when another
        result is already recorded.
        """
        result = telling.result_told(f"run {run_id}", response, se, successes, trials, curve)
        told = telling.cost_of_run(cost, run_id)
        with self._turn() as turn:
            run = turn.find(run_id)
            if run.state in DATA_STATES:
                telling.require_agreement(run, result, told)
                return run
            return turn.end(run, telling.state_of(result), told, message, result)

    def diverge(self, run_id: str, *, cost: float | None = None, message: str = "") -> RunRecord:
        """Records that the run diverged: an observation with a cost and no response."""
        return self.complete(run_id, math.nan, cost=cost, message=message)

    def fail(self, run_id: str, *, cost: float | None = None, message: str = "") -> RunRecord:
        """Records that the machine or the program failed."""
        return self._end(run_id, RunState.FAILED, cost, message)

    def out_of_memory(self, run_id: str, *, cost: float | None = None, message: str = "") -> RunRecord:
        """Records that the run did not fit into memory."""
        return self._end(run_id, RunState.OUT_OF_MEMORY, cost, message)

    def time_out(self, run_id: str, *, cost: float | None = None, message: str = "") -> RunRecord:
        """Records that the run hit its time limit."""
        return self._end(run_id, RunState.TIMED_OUT, cost, message)

    def lose(self, run_id: str, *, cost: float | None = None, message: str = "") -> RunRecord:
        """Records that nobody knows what became of the run."""
        return self._end(run_id, RunState.LOST, cost, message)

    def preempt(self, run_id: str, *, cost: float | None = None, message: str = "") -> RunRecord:
        """Records that the run was interrupted and wants to go on; its reservation stays."""
        return self._end(run_id, RunState.PREEMPTED, cost, message)

    def cancel(self, run_id: str, *, cost: float | None = None, message: str = "") -> RunRecord:
        """Records that the run was given up; a run that has ended is left as it is."""
        return self._end(run_id, RunState.CANCELLED, cost, message)

    def _end(self, run_id: str, kind: RunState, cost: float | None, message: str) -> RunRecord:
        """An end without data.  A cost that nobody tells is what was reported so far, else what was predicted."""
        told = telling.cost_of_run(cost, run_id)
        with self._turn() as turn:
            run = turn.find(run_id)
            known = run.cost if STATE_RULES[run.state].final else run.cost_so_far
            if run.state in (kind, RunState.CANCELLED) and told in (None, known):
                return run
            # A cancelled run dies in its own way and a lost one turns up: that is news, not a contradiction.
            if STATE_RULES[run.state].final and run.state not in (RunState.CANCELLED, RunState.LOST):
                if kind is RunState.CANCELLED:
                    return run
                raise telling.conflict(run, f"{kind} at a cost of {told}")
            return turn.end(run, kind, told, message, {})

    def amend(
        self,
        run_id: str,
        response: float | None = None,
        *,
        cost: float | None = None,
        se: float | None = None,
        successes: float | None = None,
        trials: float | None = None,
        curve: str | None = None,
        message: str = "",
    ) -> RunRecord:
        """Corrects a result; what is not given stays as it is.  The old result remains in the events.

        A run without a result is completed.
        """
        told = telling.cost_of_run(cost, run_id)
        with self._turn() as turn:
            run = turn.find(run_id)
            if run.state not in DATA_STATES:
                result = telling.result_told(f"run {run_id}", response, se, successes, trials, curve)
                return turn.end(run, telling.state_of(result), told, message, result)
            result = telling.result_amended(run, response, se, successes, trials, curve)
            old = {name: getattr(run, name) for name in ("state", *result, "cost")}
            new = {**result, "cost": run.cost if told is None else told}
            if old == {"state": telling.state_of(result), **turn.as_read(new, flags=False)}:
                return run
            return turn.append("amended", run_id, {**new, "message": message, "old": old})

    def attach(self, attachment: Attachment) -> Attached:
        """Records one result obtained elsewhere; see `attach_many`."""
        return self.attach_many([attachment])[0]

    def attach_many(self, attachments: Iterable[Attachment]) -> list[Attached]:
        """Records results obtained elsewhere, all or none.

        The same design (seed included) with the same result is one observation, whoever bought it.  The same design
        with another result becomes a replicate under the next free seed.  Raises `InputError` for a value that cannot
        be meant; the message counts rows from 1.
        """
        rows = []
        for i, given in enumerate(attachments, start=1):
            what = f"attached row {i} ({given.source})" if given.source else f"attached row {i}"
            result = telling.result_told(what, given.response, given.se, given.successes, given.trials, given.curve)
            rows.append((given, result, telling.cost_told(given.cost, f"cost of {what}")))
        with self._turn() as turn:
            return [turn.attach(given, result, cost) for given, result, cost in rows]

    def note(self, text: str, run_id: str | None = None) -> None:
        """Records something worth knowing that changes nothing."""
        with self._turn() as turn:
            if run_id is not None:
                turn.find(run_id)
            turn.append_event("note", run_id, {"text": text})

    @contextlib.contextmanager
    def together(self) -> Iterator[None]:
        """One transaction for all verbs of the block: what they recorded is acknowledged when it ends.

        Others wait meanwhile: what is slow, or does not come from here, stays outside.
        """
        with self._turn() as turn:
            self._open_turn = turn
            try:
                yield
            finally:
                self._open_turn = None

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Reader]:
        with self._lock:
            if self._open_turn is not None:
                yield self._open_turn.reader
                return
            with self._store.reading() as reader:
                self._catch_up(reader)
                yield reader

    @contextlib.contextmanager
    def _turn(self) -> Iterator[Turn]:
        """One transaction as the only writer, on the state as of now."""
        with self._lock:
            if self._open_turn is not None:
                yield self._open_turn
                return
            turn: Turn | None = None
            try:
                with self._store.writing() as writer:
                    self._catch_up(writer)
                    turn = Turn(writer, self._replayer, self.study_name, self._clock)
                    yield turn
            except BaseException:
                if turn is not None and turn.num_appended:
                    self._replayer = Replayer()  # it holds events that were rolled back
                raise

    def _catch_up(self, reader: Reader) -> None:
        known = self._replayer.num_events
        # The last known event is read again: were it gone, its number would be given out twice.
        new = reader.each_event(after=max(0, known - 1))
        if known and getattr(next(new, None), "seq", None) != known:
            raise StoreDamaged(
                f"{self._store.name} no longer holds event {known}, which was read from it before:"
                " it was exchanged for an older one. Put the newer one back, or start this program again."
            )
        for event in new:
            self._replayer.apply(event)

    def _limit(self, total: float | None) -> float:
        limit = self.total if total is None else total
        if not limit > 0:  # also refuses NaN
            raise InputError(f"the budget is {limit!r}: total in [budget] must be a number above zero")
        return limit
