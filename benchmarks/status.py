"""`python -m benchmarks status`: seconds of `planner status`, a whole process, beside the number of runs in the ledger.

Each repeat is a new process on a ledger in an SQLite file.  The first is not counted: it leaves compiled code, as an
installation does.  `json_seconds` is the same with `--json`, which lists every run under way.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from benchmarks import two_axes
from planner.records import Design
from planner.study import Study

DOMAINS = """
[[domains]]
name = "web"

[[domains]]
name = "code"
"""
_BATCH = 500


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of this command."""
    parser.add_argument("--runs", type=int, nargs="*", default=[100, 10_000], help="in the ledger")
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true", help="one JSON object a line on standard output")


def main(options: argparse.Namespace) -> int:
    """Times ledgers of runs that were only reserved, and of as many that have completed."""
    for num_runs in options.runs:
        for completed in (False, True):
            with tempfile.TemporaryDirectory(prefix="status-") as folder:
                row = _measure(Path(folder), num_runs, completed=completed, repeats=options.repeats)
            if options.json:
                print(json.dumps(row), flush=True)
            else:
                print("  ".join(f"{name} {value}" for name, value in row.items()), flush=True)
    return 0


def _measure(folder: Path, num_runs: int, *, completed: bool, repeats: int) -> dict[str, Any]:
    path = folder / "status.toml"
    path.write_text(two_axes.STUDY + DOMAINS)
    fill(path, num_runs, completed=completed)
    environment = os.environ | {"PYTHONPYCACHEPREFIX": str(folder / "compiled")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    command = [sys.executable, "-m", "planner", "status", str(path)]
    seconds: list[float] = []
    as_json: list[float] = []
    for _ in range(repeats + 1):
        _time(command, environment, seconds)
        shown = _time([*command, "--json"], environment, as_json)
    return {
        "runs": num_runs,
        "state": "completed" if completed else "reserved",
        "num_events": json.loads(shown)["num_events"],
        "seconds": round(statistics.median(seconds[1:]), 3),
        "least": round(min(seconds[1:]), 3),
        "most": round(max(seconds[1:]), 3),
        "json_seconds": round(statistics.median(as_json[1:]), 3),
        "load": round(os.getloadavg()[0], 2),
    }


def _time(command: Sequence[str], environment: Mapping[str, str], seconds: list[float]) -> bytes:
    """Standard output of a process; what it took is added to `seconds`."""
    start = time.perf_counter()
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
    seconds.append(time.perf_counter() - start)
    return output


def fill(path: Path, num_runs: int, *, completed: bool, seed: int = 0) -> None:
    """Reserves runs spread over the box of a study, each with a reason like those of our policy; ends them."""
    rng = random.Random(seed)
    with Study.open(path) as study:
        for first in range(0, num_runs, _BATCH):
            numbers = range(first, min(first + _BATCH, num_runs))
            designs = [_design(rng, number) for number in numbers]
            with study.ledger.together():
                bought = study.ledger.reserve(
                    [(design, 6.0 * math.prod(design.axes.values())) for design in designs],
                    [_reason(rng) for _ in designs],
                )
                for run in bought.granted if completed else ():
                    mean = 1.7 + 406.0 / run.design.axes["N"] ** 0.34 + 411.0 / run.design.axes["D"] ** 0.28
                    cost = run.predicted_cost * math.exp(rng.gauss(0.0, 0.05))
                    study.ledger.complete(run.run_id, mean + rng.gauss(0.0, 0.005), cost=cost)


def _design(rng: random.Random, number: int) -> Design:
    axes = {"N": 10.0 ** rng.uniform(7, 9), "D": 2.0 * 10.0 ** rng.uniform(8, 10)}
    return Design(domain=rng.choice(("web", "code")), axes=axes, seed=number % 3)


def _reason(rng: random.Random) -> dict[str, Any]:
    fall, plan_fall, median = rng.uniform(0, 0.1), rng.uniform(0, 0.9), rng.uniform(2, 4)
    return {
        "kind": "plan",
        "why": f"expected to lower the targets' variance by {100 * fall:.1f} % on its own;"
        f" the plan for the whole budget by {100 * plan_fall:.1f} %",
        "expected_fall": fall,
        "plan_fall": plan_fall,
        "predicted": {"q05": median - 0.1, "median": median, "q95": median + 0.1},
        "by": "loop",
    }
