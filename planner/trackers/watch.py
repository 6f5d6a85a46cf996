"""What a study does about its trackers: starts their processes, gives them a moment at the end, says who is behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from planner.events import encode_body
from planner.trackers.follow import read_cursor

if TYPE_CHECKING:
    from planner.ledger import Ledger
    from planner.spec import StudySpec

_MAX_PATIENCE = 1e8


def folder_of(spec: StudySpec) -> Path:
    """Where the trackers of a study write down how far they are."""
    stem = spec.path.stem if spec.path is not None else spec.name
    return spec.folder / f"{stem}.trackers"


def standing(spec: StudySpec, num_events: int) -> list[dict[str, Any]]:
    """Per tracker of the study: its name and kind, how many events it has, the last error, runs left out."""
    found = []
    for tracker in spec.trackers:
        cursor = read_cursor(folder_of(spec) / f"{tracker.label}.json")
        seq = min(int(cursor.get("seq", 0)), num_events)
        found.append(
            {
                "name": tracker.label,
                "kind": tracker.kind,
                "num_events": seq,
                "behind": num_events - seq,
                "error": str(cursor.get("error", "")),
                "left_out": list(cursor.get("left_out", [])),
            }
        )
    return found


@contextlib.contextmanager
def following(
    spec: StudySpec, ledger: Ledger, warn: Callable[[str], None], *, patience: float | None = None
) -> Iterator[None]:
    """Keeps the trackers of a study told while the block runs, and afterwards for up to `patience` seconds each.

    By default each tracker's own `wait_seconds`.  Whatever is wrong with them is a warning.
    """
    if not spec.trackers:
        yield
        return
    if ledger.location == ":memory:":
        warn("W:tracker the study is in memory only: trackers are told from a store in a file or on a server")
        yield
        return
    waits = {each.label: each.wait_seconds if patience is None else patience for each in spec.trackers}
    children = {each.label: _start(spec, ledger, each, waits[each.label], warn) for each in spec.trackers}
    try:
        yield
    except BaseException:
        waits = {name: min(2.0, wait) for name, wait in waits.items()}  # the user wants to leave, or something failed
        raise
    finally:
        _end({name: child for name, child in children.items() if child is not None}, waits)
        with contextlib.suppress(Exception):  # the store's own errors are for those who need the store
            for text in complaints(spec, ledger.state().num_events):
                warn(text)


def complaints(spec: StudySpec, num_events: int) -> Sequence[str]:
    """What a user should know of trackers that have not got everything."""
    texts = []
    for each in standing(spec, num_events):
        error = f" ({each['error']})" if each["error"] else ""
        if each["behind"]:
            texts.append(
                f"W:tracker {each['name']} lacks the last {each['behind']} of {num_events} events{error}; the study is"
                f" not affected, and planner track {spec.path or 'STUDY'} brings it up to date"
            )
        if each["left_out"]:
            texts.append(f"W:tracker {each['name']} did not take runs {', '.join(each['left_out'][:5])}{error}")
    return texts


def _start(
    spec: StudySpec, ledger: Ledger, tracker: Any, patience: float, warn: Callable[[str], None]
) -> subprocess.Popen[bytes] | None:
    """The process of a tracker; None, with a warning, where it cannot be started."""
    place = folder_of(spec).absolute()
    order = {
        "kind": tracker.kind,
        "options": tracker.options,
        "study": spec.name,
        "factors": {domain.name: dict(domain.factors) for domain in spec.declared_domains},
        "store": ledger.location,
        "folder": str(spec.folder.absolute()),
        "cursor": str(place / f"{tracker.label}.json"),
        "patience": min(patience, _MAX_PATIENCE),
    }
    try:
        place.mkdir(parents=True, exist_ok=True)
        root = str(Path(__file__).resolve().parents[2])
        paths = [root, *filter(None, [os.environ.get("PYTHONPATH")])]
        with (place / f"{tracker.label}.log").open("wb") as log:
            child = subprocess.Popen(
                [sys.executable, "-m", "planner.trackers.follow"],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                cwd=spec.folder,
                env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONUNBUFFERED": "1"},
                start_new_session=True,
            )
        assert child.stdin is not None
        child.stdin.write(encode_body(order).encode() + b"\n")
        child.stdin.flush()
    except OSError as error:
        warn(f"W:tracker {tracker.label} cannot be started: {error}")
        return None
    return child


def _end(children: dict[str, subprocess.Popen[bytes]], waits: dict[str, float]) -> None:
    for child in children.values():
        assert child.stdin is not None
        with contextlib.suppress(OSError):
            child.stdin.close()
    started_at = time.monotonic()
    for name, child in children.items():
        try:
            child.wait(max(0.0, started_at + waits[name] - time.monotonic()))
        except BaseException as error:
            os.killpg(child.pid, signal.SIGKILL)  # with what it has started
            child.wait()
            if not isinstance(error, subprocess.TimeoutExpired):
                raise
