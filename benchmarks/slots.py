"""`python -m benchmarks slots`: which share of the time the slots of this machine are busy, with jobs of a second.

A study buys so many simulator jobs, each of which takes so long whatever it answers.  Two shares of slots times wall
time, from the start of the first run to the end of the last:

    busy = what runs took, from the start of their worker to its end
    useful = what the simulators themselves took

`first_seconds` is the time from the start of the planner to the first run.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from backends import open_backend
from benchmarks import two_axes
from planner import loop
from planner.records import RunState
from planner.study import Study

BACKEND = """
[backend]
kind = "{kind}"
slots = {slots}
{what}
"""
TRAINER = """
import random, time

def simulate(job):
    began = time.time()
    size, tokens = job.axes["N"], job.axes["D"]
    noise = random.Random(job.run_id).gauss(0.0, 0.005)
    time.sleep(job.options["seconds"])
    return {
        "response": 1.7 + 406.0 / size**0.34 + 411.0 / tokens**0.28 + noise,
        "cost": 6.0 * size * tokens,
        "extra": {"began": began, "ended": time.time()},
    }
"""
WHAT = {
    "local": 'trainer = "one_second:simulate"\nseconds = {seconds}',
    "simulator": "realtime_seconds = {seconds}",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of this command."""
    parser.add_argument("--jobs", type=int, default=1000)
    parser.add_argument("--slots", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=1.0, help="of one job")
    parser.add_argument("--kind", nargs="*", default=["local"], choices=sorted(WHAT), help="of backend")
    parser.add_argument("--output", type=Path, help="CSV file to append to")
    parser.add_argument("--json", action="store_true", help="one JSON object a line on standard output")


def main(options: argparse.Namespace) -> int:
    """Runs one study on each kind of backend."""
    for kind in options.kind:
        with tempfile.TemporaryDirectory(prefix="slots-") as folder:
            row = _run(Path(folder), kind, options)
        if options.output is not None:
            _append(options.output, row)
        line = "  ".join(
            f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in row.items()
        )
        print(json.dumps(row) if options.json else line, flush=True)
    return 0


def _run(folder: Path, kind: str, options: argparse.Namespace) -> dict[str, Any]:
    (folder / "one_second.py").write_text(TRAINER)
    what = WHAT[kind].format(seconds=options.seconds)
    path = folder / "slots.toml"
    path.write_text(two_axes.STUDY + BACKEND.format(kind=kind, slots=options.slots, what=what))
    began_at, cpu_before = time.time(), time.process_time()
    with Study.open(path) as study:
        backend = open_backend(kind, loop.backend_options(study.spec), folder)
        ended = study.run(backend, max_runs=options.jobs)
        events = study.log()
    done = sum(run.state is RunState.COMPLETED for run in ended.state.runs.values())
    starts = [event["at"] for event in events if event["kind"] == "submitted"]
    ends = [event["at"] for event in events if event["kind"] == "completed"]
    spans = _spans(folder) if kind == "local" else {}
    first, last = min(starts), max(ends)
    if spans:
        first, last = min(began for began, _ in spans["busy"]), max(end for _, end in spans["busy"])
    room = options.slots * (last - first)
    shares = {name: sum(end - began for began, end in pairs) / room for name, pairs in spans.items()}
    return {
        "kind": kind,
        "jobs": done,
        "slots": options.slots,
        "seconds": options.seconds,
        "busy": shares.get("busy", done * options.seconds / room),
        "useful": shares.get("useful", done * options.seconds / room),
        "wall_seconds": last - first,
        "first_seconds": first - began_at,
        "planner_cpu_seconds": time.process_time() - cpu_before,
        "num_events": len(events),
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg()[0],
    }


def _spans(folder: Path) -> dict[str, list[tuple[float, float]]]:
    """(began, ended) of every run, as the worker and as the simulator saw it."""
    while any(not path.with_name("exit.json").exists() for path in folder.glob("slots.runs/*/result.json")):
        time.sleep(0.1)  # the last results were taken before their workers had ended
    spans: dict[str, list[tuple[float, float]]] = {"busy": [], "useful": []}
    for path in folder.glob("slots.runs/*/exit.json"):
        ending, result = json.loads(path.read_text()), json.loads(path.with_name("result.json").read_text())
        spans["busy"].append((ending["started_at"], ending["ended_at"]))
        spans["useful"].append((result["extra"]["began"], result["extra"]["ended"]))
    return spans


def _append(path: Path, row: dict[str, Any]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, list(row), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow({name: f"{value:.6g}" if isinstance(value, float) else value for name, value in row.items()})
    print(f"written to {path}", file=sys.stderr)
