"""`python -m benchmarks run`: the table of policies, budgets and scenarios.

Each finished cell is printed, and with `--output` appended to a CSV file at once; cells found there are not run again.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.active import buy_until_done, open_desk, predict_targets
from benchmarks.policies import POLICIES
from benchmarks.problems import Problem, load_problem, scenario_names

DEFAULT_BUDGETS = (0.01, 0.05, 0.10)
# Pools whose cheapest run is a large part of the whole: the published tables use larger budgets there.
COARSE_BUDGETS = {"domain_mixture": (0.20, 0.35, 0.50), "sparsity": (0.20, 0.35, 0.50)}
COLUMNS = (
    "scenario",
    "policy",
    "laws",
    "law",
    "budget",
    "scope",
    "rule",
    "seed",
    "r2",
    "r2_sld",
    "r2_group",
    "coverage_50",
    "coverage_90",
    "log_score",
    "num_runs",
    "spend",
    "steps",
    "seconds_per_step",
    "seconds_first",
    "seconds",
    "num_targets",
)
_KEY = ("scenario", "policy", "laws", "law", "budget", "scope", "rule", "seed")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of this command."""
    parser.add_argument("--corpus", type=Path, required=True, help="folder with manifest.toml and the parquet files")
    parser.add_argument("--scenario", nargs="*", default=[], help="names; all if none is given")
    parser.add_argument("--policy", nargs="*", default=["ours"], choices=sorted(POLICIES))
    parser.add_argument("--laws", default="auto", choices=["auto"])
    parser.add_argument("--budget", type=float, nargs="*", default=[], help="fractions of the pool's cost")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--passive", action="store_true", help="hand over the whole pool")
    parser.add_argument("--budget-scope", default="group", choices=["group", "pooled"])
    parser.add_argument("--budget-rule", default="strict", choices=["strict", "peer"])
    parser.add_argument("--output", type=Path, help="CSV file to append to and to resume from")
    parser.add_argument("--json", action="store_true", help="one JSON object a line on standard output")


def main(options: argparse.Namespace) -> int:
    """Runs every cell that `--output` does not hold yet."""
    names = options.scenario or scenario_names(options.corpus)
    unknown = sorted(set(names) - set(scenario_names(options.corpus)))
    if unknown:
        print(
            f"unknown scenario {', '.join(unknown)}; known: {', '.join(scenario_names(options.corpus))}",
            file=sys.stderr,
        )
        return 2
    rows = _finished(options.output)
    known = {tuple(str(row[key]) for key in _KEY) for row in rows}
    for name in names:
        cells = [cell for cell in _cells(name, options) if tuple(str(cell[key]) for key in _KEY) not in known]
        if not cells:
            continue
        problem = load_problem(options.corpus, name)
        for cell in cells:
            row = cell | _run_cell(problem, cell)
            rows.append(row)
            _write(options.output, row)
            _show(row, as_json=options.json)
    if not options.json:
        _summary([row for row in rows if row["scenario"] in names])
    return 0


def _cells(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    budgets = options.budget or COARSE_BUDGETS.get(name, DEFAULT_BUDGETS)
    policies = ["passive"] if options.passive else options.policy
    return [
        {
            "scenario": name,
            "policy": policy,
            "laws": options.laws,
            "law": "auto",
            "budget": 1.0 if options.passive else budget,
            "scope": options.budget_scope,
            "rule": options.budget_rule,
            "seed": seed,
        }
        for policy, budget, seed in itertools.product(
            policies, [1.0] if options.passive else budgets, range(options.seeds)
        )
    ]


def _run_cell(problem: Problem, cell: dict[str, Any]) -> dict[str, Any]:
    start = time.perf_counter()
    desk = open_desk(problem, fraction=cell["budget"], scope=cell["scope"], rule=cell["rule"], seed=cell["seed"])
    total = float(desk.purses.sum())
    if cell["policy"] == "passive":
        desk.buy(range(len(problem.pool)))
    else:
        buy_until_done(desk, POLICIES[cell["policy"]])
    scores = predict_targets(desk)
    later = desk.seconds[1:] or desk.seconds
    return scores._asdict() | {
        "num_runs": len(desk.bought),
        "spend": desk.spent / total if total > 0 else float("nan"),
        "steps": desk.steps,
        "seconds_per_step": float(np.median(later)) if later else 0.0,
        "seconds_first": desk.seconds[0] if desk.seconds else 0.0,
        "seconds": time.perf_counter() - start,
        "num_targets": int(np.isfinite(problem.target_responses).sum()),
    }


def _finished(path: Path | None) -> list[dict[str, Any]]:
    if path is None or not path.exists():
        return []
    with path.open(newline="") as file:
        return [{key: _number(value) for key, value in row.items()} for row in csv.DictReader(file)]


def _number(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        try:
            return float(text)
        except ValueError:
            return text


def _write(path: Path | None, row: dict[str, Any]) -> None:
    if path is None:
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    is_new = not path.exists() or path.stat().st_size == 0
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if is_new:
            writer.writeheader()
        writer.writerow({key: f"{value:.6g}" if isinstance(value, float) else value for key, value in row.items()})
        file.flush()
        os.fsync(file.fileno())


def _show(row: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        clean = {k: None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()}
        print(json.dumps(clean), flush=True)
        return
    print(
        f"{row['scenario']:16s} {row['policy']:12s} {row['budget']:5.2f} seed {row['seed']}"
        f"  r2 {row['r2']:6.3f}  group {row['r2_group']:6.3f}  cover {row['coverage_50']:.2f} {row['coverage_90']:.2f}"
        f"  runs {row['num_runs']:4d}  spend {row['spend']:.2f}  {row['seconds']:.0f} s",
        flush=True,
    )


def _summary(rows: list[dict[str, Any]]) -> None:
    """Mean over seeds by scenario, then over scenarios, for every policy and position of the budget."""
    print()
    by_cell: dict[tuple[str, str, float], list[dict[str, Any]]] = {}
    for row in rows:
        by_cell.setdefault((row["policy"], row["scenario"], float(row["budget"])), []).append(row)
    for policy in sorted({key[0] for key in by_cell}):
        for place in range(3):
            cells = []
            for name in sorted({key[1] for key in by_cell if key[0] == policy}):
                budgets = sorted(key[2] for key in by_cell if key[:2] == (policy, name))
                if place < len(budgets):
                    cells.append(by_cell[policy, name, budgets[place]])
            if not cells:
                continue
            r2 = np.array([np.mean([float(row["r2"]) for row in cell]) for cell in cells])
            weight = np.array([float(cell[0]["num_targets"]) for cell in cells])
            cover = [
                np.mean([[float(r["coverage_50"]), float(r["coverage_90"])] for r in cell], axis=0) for cell in cells
            ]
            pooled = weight @ np.array(cover) / weight.sum()
            print(
                f"{policy:12s} budget {place + 1}: {len(cells)} scenarios, r2 mean {r2.mean():.3f} median"
                f" {np.median(r2):.3f}, coverage of 50 % {pooled[0]:.3f} and of 90 % {pooled[1]:.3f}"
            )
