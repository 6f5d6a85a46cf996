"""Events as strict JSON, and their replay to the state of a study.

Pure: no clock, no files.  What is written never holds a bare NaN; what is read may.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from pydantic_core import from_json

from planner.errors import StoreDamaged
from planner.records import Design, Event, RunRecord, RunState, StudyState, total_of

MAX_TEXT = 20_000  # characters kept of one text: a log tail must not bloat the store
MAX_DEPTH = 20
DATA_STATES = (RunState.COMPLETED, RunState.DIVERGED)
_STATES = {state.value: state for state in RunState}
_DECODER = json.JSONDecoder(parse_constant=lambda name: None)
OPENING_KINDS = ("study_opened", "note")
_RETRY_COUNTED = (
    RunState.FAILED,
    RunState.OUT_OF_MEMORY,
    RunState.TIMED_OUT,
    RunState.PREEMPTED,
    RunState.LOST,
)


def is_finite(value: float) -> bool:
    """False for NaN and infinities, and at the limit of float64, where some trackers store infinity."""
    return abs(value) < sys.float_info.max


def number_or_none(value: object) -> float | None:
    """The number in a body that was read, None if there is none or it is not finite."""
    if value is None or isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if is_finite(number) else None


def clean_text(value: object) -> str:
    """`value` as text that every encoder accepts, cut to `MAX_TEXT`; never raises."""
    try:
        text = value if isinstance(value, str) else str(value)
    except Exception:
        # Somebody's __str__ failed while a failure is being recorded; the record matters more.
        text = f"<{type(value).__name__} that cannot be printed>"
    text = text.encode("utf-8", "backslashreplace").decode("utf-8")
    if len(text) <= MAX_TEXT:
        return text
    # Still within the limit with its note, so that it is not cut again when it is copied.
    return f"{text[: MAX_TEXT - 100]} [cut: {len(text)} characters]"


def encode_body(body: Mapping[str, Any]) -> str:
    """`body` as one strict JSON object; never raises on values.

    Non-finite numbers become null, and `nonfinite` maps their dotted path to what they were.
    """
    flags: dict[str, str] = {}
    cleaned = _clean(body, "", flags, 0)
    if flags:
        cleaned["nonfinite"] = flags
    return json.dumps(cleaned, allow_nan=False, separators=(",", ":"))


def decode_body(text: str) -> dict[str, Any]:
    """The body back, reading a bare NaN or Infinity as null.  Raises `ValueError` for anything but a JSON object."""
    try:
        body, end = from_json(text, allow_inf_nan=False), len(text)  # in half the time, but strict
    except ValueError:
        body, end = _DECODER.raw_decode(text)
    if not isinstance(body, dict) or end != len(text):
        raise ValueError(f"need a JSON object, got {text[:80]!r}")
    return body


def _clean(value: Any, path: str, flags: dict[str, str], depth: int) -> Any:
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return clean_text(value)
    if isinstance(value, int) and abs(value) < 2**63:
        return int(value)
    if isinstance(value, int | float):
        return _clean_number(value, path, flags)
    if depth >= MAX_DEPTH:
        return clean_text(value)
    if isinstance(value, Mapping):
        return {
            clean_text(key): _clean(item, f"{path}.{clean_text(key)}".lstrip("."), flags, depth + 1)
            for key, item in value.items()
        }
    if isinstance(value, list | tuple | set | frozenset):
        return [_clean(item, f"{path}[{i}]", flags, depth + 1) for i, item in enumerate(value)]
    to_list = getattr(value, "tolist", None)  # numpy scalars and arrays, without importing numpy
    if callable(to_list):
        return _clean(to_list(), path, flags, depth + 1)
    return clean_text(value)


def _clean_number(value: int | float, path: str, flags: dict[str, str]) -> float | None:
    try:
        number = float(value)
    except OverflowError:
        number = math.copysign(math.inf, value > 0 or -1)
    if is_finite(number):
        return number
    flags[path] = "nan" if math.isnan(number) else ("inf" if number > 0 else "-inf")
    return None


def design_body(design: Design) -> dict[str, Any]:
    """A design as it stands in a body; `_read_design` is the inverse."""
    return {"domain": design.domain, "axes": dict(design.axes), "seed": design.seed}


def _read_design(body: Mapping[str, Any]) -> Design:
    written = body["design"]
    return Design(domain=written["domain"], axes=written["axes"], seed=written["seed"])


class Replayer:
    """The state being rebuilt, event by event.  `replay` is the pure function; the ledger keeps one to go on from."""

    def __init__(self, start: StudyState | None = None) -> None:
        self.runs: dict[str, RunRecord] = dict(start.runs) if start else {}
        self.num_events = start.num_events if start else 0

    def apply(self, event: Event) -> None:
        """Takes in the next event.  Raises `StoreDamaged` when it cannot be the next one."""
        if event.seq != self.num_events + 1:
            raise StoreDamaged(
                f"event {self.num_events + 1} is missing: event {event.seq} follows event {self.num_events}."
                " Put a backup of the store back."
            )
        if event.kind not in OPENING_KINDS:
            try:
                run = _READERS[event.kind](self.runs.get(event.run_id or ""), event)
            except (KeyError, TypeError, ValueError, AttributeError) as error:
                raise StoreDamaged(
                    f"event {event.seq} ({event.kind!r} of run {event.run_id!r}) cannot be understood: {error!r}."
                    " Put a backup of the store back."
                ) from error
            self.runs[run.run_id] = run
        self.num_events = event.seq

    def snapshot(self, total: float) -> StudyState:
        """The state now.  Sums are exactly rounded, so they do not depend on the order of events."""
        return StudyState(
            runs=dict(self.runs),
            spent=total_of(run.spent for run in self.runs.values()),
            reserved=total_of(run.reserved for run in self.runs.values()),
            total=total,
            num_events=self.num_events,
        )


def replay(events: Iterable[Event], *, total: float = math.inf, start: StudyState | None = None) -> StudyState:
    """The state after `events`, which follow those that led to `start` (by default: nothing happened yet).

    Raises `StoreDamaged` for a gap or an event that cannot be understood.
    """
    replayer = Replayer(start)
    for event in events:
        replayer.apply(event)
    return replayer.snapshot(total)


def _changed(run: RunRecord, **changes: Any) -> RunRecord:
    """`dataclasses.replace` without its checks, which would take most of the time of a replay."""
    changed = object.__new__(RunRecord)
    object.__setattr__(changed, "__dict__", run.__dict__ | changes)
    return changed


# The defaults of a run.  Those that are containers are shared: a replay never changes one in place.
_BLANK = RunRecord(run_id="", design=Design(domain="", axes={}))


def _new(event: Event, **fields: Any) -> RunRecord:
    """The run that an event is the first of."""
    if event.run_id is None:
        raise KeyError("the event names no run")
    design = _read_design(event.body)
    return _changed(_BLANK, run_id=event.run_id, design=design, proposed_at=event.at, updated_at=event.at, **fields)


def _known(run: RunRecord | None) -> RunRecord:
    if run is None:
        raise KeyError("the run was never proposed or attached")
    return run


def _read_proposed(run: RunRecord | None, event: Event) -> RunRecord:
    predicted_cost = float(event.body["predicted_cost"])
    reason = event.body.get("reason") or {}
    if run is None:
        return _new(event, predicted_cost=predicted_cost, reason=reason)
    ended = run.cost is not None
    return _changed(
        run,
        state=RunState.PROPOSED,
        predicted_cost=predicted_cost,
        reason=reason or run.reason,
        cost=None,
        charged_before=run.spent,
        cost_so_far=None if ended else run.cost_so_far,
        budgeted=True,
        handle="",
        message="",
        progress={},
        curve_began=run.attempt + 1 if ended else run.curve_began,
        early_stop="" if ended else run.early_stop,
        attempt=run.attempt + 1,
        updated_at=event.at,
    )


def _read_submitted(run: RunRecord | None, event: Event) -> RunRecord:
    run = _known(run)
    state, attempt = run.state, run.attempt
    if state in (RunState.PROPOSED, RunState.PREEMPTED, RunState.RUNNING):
        attempt += state is RunState.PREEMPTED
        state = RunState.SUBMITTED
    told = event.body.get("attempt")
    return _changed(
        run,
        state=state,
        handle=str(event.body.get("handle") or ""),
        attempt=attempt if told is None else int(told),
        updated_at=event.at,
    )


def _read_running(run: RunRecord | None, event: Event) -> RunRecord:
    return _changed(_known(run), state=RunState.RUNNING, updated_at=event.at)


def _read_progress(run: RunRecord | None, event: Event) -> RunRecord:
    run = _known(run)
    cost = number_or_none(event.body.get("cost"))
    progress = {name: value for name, value in event.body.items() if name not in ("points", "early_stop")}
    early_stop = event.body.get("early_stop") or {}
    points = event.body.get("points") or ()
    return _changed(
        run,
        cost_so_far=run.cost_so_far if cost is None or cost < 0 else cost,
        progress=progress,
        early_stop=run.early_stop or str(early_stop.get("why") or ""),
        batches=(*run.batches, (run.curve_began, points)) if points else run.batches,
        updated_at=event.at,
    )


def _read_end(run: RunRecord | None, event: Event) -> RunRecord:
    run = _known(run)
    state = _STATES[event.kind]
    if run.state is RunState.CANCELLED and state not in DATA_STATES:
        state = RunState.CANCELLED  # how a cancelled run died is of no interest, what it cost is
    ends = run.ends
    if state in _RETRY_COUNTED:
        ends = {**ends, state.value: ends.get(state.value, 0) + 1}
    if state is RunState.PREEMPTED:
        told = number_or_none(event.body.get("cost"))
        cost, cost_so_far = run.cost, run.cost_so_far if told is None else told
    else:
        cost, cost_so_far = _read_charge(run, event.body), run.cost_so_far
    late = event.body.get("late_after")
    message = str(event.body.get("message") or "") or (f"the result came after the run was {late}" if late else "")
    return _changed(
        run,
        cost=cost,
        cost_so_far=cost_so_far,
        ends=ends,
        message=message,
        updated_at=event.at,
        **_result(run, state, event.body),
    )


def _read_charge(run: RunRecord, body: Mapping[str, Any]) -> float:
    for key in ("charged", "cost"):
        cost = number_or_none(body.get(key))
        if cost is not None:
            return cost
    return run.predicted_cost


def _result(run: RunRecord, state: RunState, body: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of `run` that hold its state and what was measured."""
    response = number_or_none(body.get("response")) if state is RunState.COMPLETED else None
    if response is None:
        state = RunState.DIVERGED if state is RunState.COMPLETED else state
        return {"state": state, "response": None, "se": None, "successes": None, "trials": None}
    curve = body.get("curve")
    return {
        "state": state,
        "response": response,
        "se": number_or_none(body.get("se")),
        "successes": number_or_none(body.get("successes")),
        "trials": number_or_none(body.get("trials")),
        "curve": run.curve if curve is None else str(curve),
    }


def _read_attached(run: RunRecord | None, event: Event) -> RunRecord:
    if run is not None:
        raise KeyError("the run is already known")
    cost = _read_charge(_BLANK, event.body)
    return _new(
        event,
        predicted_cost=cost,
        cost=cost,
        external=True,
        budgeted=bool(event.body.get("budgeted", False)),
        reason={"source": event.body.get("source", ""), "stated_seed": event.body.get("stated_seed")},
        **_result(_BLANK, RunState.COMPLETED, event.body),
    )


def _read_amended(run: RunRecord | None, event: Event) -> RunRecord:
    run = _known(run)
    return _changed(
        run,
        cost=_read_charge(run, event.body),
        message=str(event.body.get("message") or ""),
        updated_at=event.at,
        **_result(run, RunState.COMPLETED, event.body),
    )


_READERS: dict[str, Callable[[RunRecord | None, Event], RunRecord]] = {
    "proposed": _read_proposed,
    "submitted": _read_submitted,
    "running": _read_running,
    "progress": _read_progress,
    "attached": _read_attached,
    "amended": _read_amended,
    "completed": _read_end,
    "diverged": _read_end,
    "failed": _read_end,
    "out_of_memory": _read_end,
    "timed_out": _read_end,
    "preempted": _read_end,
    "cancelled": _read_end,
    "lost": _read_end,
}
