"""`python -m benchmarks run`: the table of policies, budgets and scenarios.

Problems come from a corpus of recorded runs (`--corpus`) or from the built-in simulated truths (`--embedded`).  Each
finished cell is printed, and with `--output` appended to a CSV file at once; cells found there are not run again.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cells, embedded, forms, problems, public
from benchmarks.active import predict_targets
from benchmarks.policies import POLICIES
from benchmarks.problems import Problem
from benchmarks.score import FAILED
from planner.errors import InputError, UnreliableFit

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
    source = parser.add_mutually_exclusive_group()
    source.add_argument(
        "--corpus", type=Path, help="folder of recorded runs: manifest.toml and tables, or task folders"
    )
    source.add_argument("--embedded", action="store_true", help="simulated truths in place of a corpus")
    parser.add_argument("--scenario", nargs="*", default=[], help="names; all if none is given")
    parser.add_argument("--policy", nargs="*", default=["ours"], choices=sorted(POLICIES))
    parser.add_argument(
        "--laws", default="auto", choices=["auto", "given"], help="all that suit, or one run for each published form"
    )
    parser.add_argument("--law", nargs="*", default=[], help="with --laws given: names of forms; all if none is given")
    parser.add_argument("--budget", type=float, nargs="*", default=[], help="fractions of the pool's cost")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--passive", action="store_true", help="hand over the whole pool")
    parser.add_argument("--budget-scope", default="group", choices=["group", "pooled"])
    parser.add_argument("--budget-rule", default="strict", choices=["strict", "peer"])
    parser.add_argument("--output", type=Path, help="CSV file to append to and to resume from")
    parser.add_argument("--json", action="store_true", help="one JSON object a line on standard output")


def main(options: argparse.Namespace) -> int:
    """Runs every cell that `--output` does not hold yet."""
    known, load = _source(options)
    names = cells.choose(options.scenario, known)
    table = cells.Table(options.output, columns=COLUMNS, key=_KEY)
    for name, law_names in _laws_of(names, options).items():
        missing = table.missing(_cells(name, law_names, options))
        if not missing:
            continue
        problem = load(name)
        for cell in missing:
            used = forms.with_form(problem, cell["law"]) if cell["laws"] == "given" else problem
            table.add(cell | _run_cell(used, cell), line=None if options.json else _line)
    if not options.json:
        _summary([row for row in table.rows if row["scenario"] in names and row["laws"] == options.laws])
    return 0


def _source(options: argparse.Namespace) -> tuple[Sequence[str], Callable[[str], Problem]]:
    """Names of the scenarios that there are, and what loads one."""
    if options.embedded:
        return embedded.scenario_names(), embedded.load_problem
    if options.corpus is None:
        raise InputError("no scenarios: name a folder with --corpus DIR, or take the simulated ones with --embedded")
    if (options.corpus / "manifest.toml").is_file():
        return problems.scenario_names(options.corpus), functools.partial(problems.load_problem, options.corpus)
    names = public.scenario_names(options.corpus)
    if not names:
        raise InputError(
            f"{options.corpus} holds no scenarios: neither a manifest.toml nor folders such as"
            " vocab_scaling_law with train-*.parquet and test-*.parquet"
        )
    return names, functools.partial(public.load_problem, options.corpus)


def _laws_of(names: Sequence[str], options: argparse.Namespace) -> dict[str, list[str]]:
    """What each scenario is run with: "auto", or its published forms, where it has any.  Raises `InputError`."""
    if options.laws == "auto":
        if options.law:
            raise InputError("--law names published forms: it goes with --laws given")
        return {name: ["auto"] for name in names}
    known = {name: [form.name for form in forms.forms_for(name)] for name in names}
    unknown = sorted(set(options.law) - {form for found in known.values() for form in found})
    if unknown:
        raise InputError(
            f"unknown form {', '.join(unknown)}: names are those of a scenario and a number, as parallel_5"
        )
    for name in names:
        if not known[name]:
            print(f"{name}: left out, no forms are published for it", file=sys.stderr)
    chosen = {name: [form for form in found if not options.law or form in options.law] for name, found in known.items()}
    return {name: found for name, found in chosen.items() if found}


def _cells(name: str, law_names: Sequence[str], options: argparse.Namespace) -> list[dict[str, Any]]:
    budgets = options.budget or COARSE_BUDGETS.get(name, DEFAULT_BUDGETS)
    policies = ["passive"] if options.passive else options.policy
    return [
        {
            "scenario": name,
            "policy": policy,
            "laws": options.laws,
            "law": law,
            "budget": 1.0 if options.passive else budget,
            "scope": options.budget_scope,
            "rule": options.budget_rule,
            "seed": seed,
        }
        for law, policy, budget, seed in itertools.product(
            law_names, policies, [1.0] if options.passive else budgets, range(options.seeds)
        )
    ]


def _run_cell(problem: Problem, cell: dict[str, Any]) -> dict[str, Any]:
    start = time.perf_counter()
    try:
        desk, buying = cells.spend(problem, cell)
        scores = predict_targets(desk)
    except UnreliableFit as error:
        # No law is left to predict with: a result like any other, and no reason to lose the cells to come.
        print(f"{cell['scenario']}, law {cell['law']}: {error}", file=sys.stderr)
        scores, unknown = FAILED, float("nan")
        buying = {"num_runs": 0, "spend": unknown, "steps": 0, "seconds_per_step": unknown, "seconds_first": unknown}
    return (
        scores._asdict()
        | buying
        | {
            "seconds": time.perf_counter() - start,
            "num_targets": int(np.isfinite(problem.target_responses).sum()),
        }
    )


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['scenario'] if row['law'] == 'auto' else row['law']:19s} {row['policy']:15s} {row['budget']:5.2f}"
        f" seed {row['seed']}"
        f"  r2 {row['r2']:6.3f}  group {row['r2_group']:6.3f}  cover {row['coverage_50']:.2f} {row['coverage_90']:.2f}"
        f"  runs {row['num_runs']:4d}  spend {row['spend']:.2f}  {row['seconds']:.0f} s"
    )


def _summary(rows: list[dict[str, Any]]) -> None:
    """Mean over forms and seeds by scenario, then over scenarios, for every policy and position of the budget."""
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
                f"{policy:15s} budget {place + 1}: {len(cells)} scenarios, r2 mean {r2.mean():.3f} median"
                f" {np.median(r2):.3f}, coverage of 50 % {pooled[0]:.3f} and of 90 % {pooled[1]:.3f}"
            )
