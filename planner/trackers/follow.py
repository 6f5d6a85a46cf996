"""`python -m planner.trackers.follow`: the process of one tracker.  It reads the ledger and tells the tracker.

The ledger is the queue, so nothing is ever dropped and nothing grows: a tracker that is slow or away is behind, and
catches up later.  How far it is stands in a file beside the study, written after the tracker has taken the events.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from planner.errors import InputError, StoreError
from planner.events import clean_text, encode_body
from planner.ledger import Ledger
from planner.trackers import RunUpdate, Tracker, open_tracker
from planner.trackers.feed import Feed

CHUNK = 500  # events told before the place in the ledger is written down
PAUSE_SECONDS = 0.5
MAX_PAUSE_SECONDS = 60.0
TRIES = 3  # of an update that fails while others of its chunk do not


class Cursor:
    """How far a tracker is, in a file: {"seq", "error", "left_out"}.  One process at a time may `hold` it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.values: dict[str, Any] = {"seq": 0, "error": "", "left_out": []} | read_cursor(path)

    @property
    def seq(self) -> int:
        """The number of the last event that the tracker has taken."""
        return int(self.values["seq"])

    def save(self, **values: Any) -> None:
        """Changes the file at once or not at all."""
        if all(self.values.get(name) == value for name, value in values.items()):
            return
        self.values |= values
        new = self.path.with_name(self.path.name + ".new")
        new.write_text(encode_body(self.values), encoding="utf-8")
        os.replace(new, self.path)

    @contextlib.contextmanager
    def hold(self) -> Iterator[bool]:
        """Whether no other process tells this tracker; the system frees the lock of a process that dies."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.with_suffix(".lock").open("a") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
                return
            self.values |= read_cursor(self.path)
            yield True


def read_cursor(path: Path) -> dict[str, Any]:
    """What a cursor's file says; nothing where there is none or it is damaged: the tracker is then told all again."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    is_whole = isinstance(values, dict) and isinstance(values.get("seq"), int) and values["seq"] >= 0
    return values if is_whole else {}


def follow(
    ledger: Ledger,
    feed: Feed,
    cursor: Cursor,
    tracker: Tracker,
    *,
    is_last: Callable[[], bool],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Tells the tracker what is recorded, until it has all that was there when `is_last` became true."""
    while True:
        ends = is_last()
        try:
            events = ledger.events(after=feed.seq)
        except StoreError as error:
            cursor.save(error=clean_text(error)[:500])
            events = []
        for start in range(0, len(events), CHUNK):
            chunk = events[start : start + CHUNK]
            _tell(tracker, feed.take(chunk, told=cursor.seq), cursor, sleep)
            cursor.save(seq=max(cursor.seq, chunk[-1].seq))
        if not events:
            if ends:
                return
            sleep(PAUSE_SECONDS)


def _tell(tracker: Tracker, updates: list[RunUpdate], cursor: Cursor, sleep: Callable[[float], None]) -> None:
    """Writes every update.  What fails is tried again for as long as nothing works, and else left out and said."""
    pause, rounds, works = PAUSE_SECONDS, 0, False
    while updates:
        failed = []
        for update in updates:
            try:
                tracker.write(update)
            except Exception as error:
                failed.append(update)
                cursor.save(error=clean_text(f"{type(error).__name__}: {error}")[:500])
                print(f"{update.run_id}: {cursor.values['error']}", file=sys.stderr, flush=True)
        works = works or len(failed) < len(updates)
        rounds += works
        if not failed or rounds >= TRIES:
            if failed:
                left_out = [*cursor.values["left_out"], *(update.run_id for update in failed)]
                cursor.save(left_out=list(dict.fromkeys(left_out))[-100:])
            else:
                cursor.save(error="")
            return
        updates = failed
        sleep(pause)
        pause = min(2 * pause, MAX_PAUSE_SECONDS)


def main() -> None:
    """Reads what to do from the first line of standard input, whose end says that the planner has ended."""
    order: Mapping[str, Any] = json.loads(sys.stdin.readline())
    folder, cursor = Path(order["folder"]), Cursor(Path(order["cursor"]))
    with contextlib.suppress(OSError):
        os.nice(10)
    sys.path.insert(0, str(folder))
    with cursor.hold() as is_mine:
        if not is_mine:
            return
        ended = threading.Event()

        def listen() -> None:
            sys.stdin.read()
            # The system ends a process that hangs, whatever it hangs in.
            signal.setitimer(signal.ITIMER_REAL, float(order["patience"]))
            ended.set()

        threading.Thread(target=listen, daemon=True).start()
        try:
            tracker = open_tracker(order["kind"], order["options"], order["study"], folder)
        except InputError as error:
            cursor.save(error=str(error))
            raise SystemExit(f"{error}") from None
        with Ledger.open(order["store"], study_name=order["study"], read_only=True) as ledger:
            feed = Feed(order["study"], order["factors"])
            follow(ledger, feed, cursor, tracker, is_last=ended.is_set)
            tracker.close()


if __name__ == "__main__":
    main()
