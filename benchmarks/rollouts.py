"""`python -m benchmarks rollouts`: does a small part of a sampling grid tell how many rollouts a large budget wants?

The truth is the simulator's `rl_sampling`: the best number of rollouts rises with compute and ends at 512.  A full grid
runs every allowed pair of rollouts and problems to the most updates; a study may spend `--share` of that.  It is asked
for the split of what the dearest run of the grid costs, which is more than all its money.
"""

from __future__ import annotations

import argparse
import itertools
import math
import time
from pathlib import Path
from typing import Any

import numpy as np

from backends.simulator import Simulator
from benchmarks import cells
from planner.rollouts import rollout_table
from planner.spec import StudySpec, parse_study_spec
from planner.study import Study

ROLLOUTS = tuple(2.0**k for k in range(3, 12))
PROBLEMS = tuple(2.0**k for k in range(5, 11))
LARGEST_BATCH = 65_536
MOST_UPDATES = 1000
LAWS = ("rollout_sigmoid", "sigmoid", "exp_quadratic")
COLUMNS = (
    "spread", "share", "seed", "budget", "target", "num_runs", "spend", "true_rollouts", "true_end", "median", "q05",
    "q95", "error_doublings", "grows", "saturates", "end_median", "seconds",
)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of this command."""
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=0.05, help="of the cost of the full grid")
    parser.add_argument("--spread", type=float, default=0.0, help="how far the truth of each seed lies from 512")
    parser.add_argument(
        "--laws", nargs="*", default=list(LAWS), help="names of laws (those of the template), or auto for all that suit"
    )
    parser.add_argument("--output", type=Path, help="CSV file to append to and to resume from")


def main(options: argparse.Namespace) -> int:
    """Runs every seed that `--output` does not hold yet."""
    table = cells.Table(options.output, columns=COLUMNS, key=("spread", "share", "seed"))
    wanted = [
        {"spread": options.spread, "share": options.share, "seed": seed}
        for seed in range(options.first_seed, options.first_seed + options.seeds)
    ]
    for cell in table.missing(wanted):
        table.add(cell | run_cell(cell, "auto" if options.laws == ["auto"] else options.laws), line=_line)
    rows = [row for row in table.rows if float(row["spread"]) == options.spread]
    near = sum(abs(float(row["error_doublings"])) <= 1 for row in rows)
    sure = sum(float(row["saturates"]) > 0.8 for row in rows)
    covered = sum(float(row["q05"]) <= float(row["true_rollouts"]) <= float(row["q95"]) for row in rows)
    print(f"{len(rows)} seeds: within a doubling {near}, P(saturates) above .8 {sure}, 90 % interval covers {covered}")
    return 0


def full_grid_cost() -> float:
    """Every allowed pair of rollouts and problems, run to the most updates."""
    batches = [n * p for n, p in itertools.product(ROLLOUTS, PROBLEMS) if n * p <= LARGEST_BATCH]
    return float(sum(batches)) * MOST_UPDATES


def make_spec(seed: int, share: float, laws: Any = LAWS) -> StudySpec:
    """The study as a user would declare it."""
    compute = {"rollouts": 1, "problems": 1, "updates": 1}
    return parse_study_spec(
        {
            "study": {"name": f"rollouts{seed}", "seed": seed},
            "response": {
                "name": "reward", "goal": "maximise", "link": "identity", "lower": 0, "upper": 1, "expect": [0.2, 0.8],
            },
            "axes": [
                {"name": "rollouts", "role": "rollouts", "values": list(ROLLOUTS)},
                {"name": "problems", "role": "problems", "values": list(PROBLEMS)},
                {"name": "updates", "role": "updates", "low": 20, "high": MOST_UPDATES, "step": 20},
            ],
            "cost": {"unit": "rollouts", "terms": [{"coefficient": 1, "powers": compute}]},
            "limits": [{"powers": {"rollouts": 1, "problems": 1}, "high": LARGEST_BATCH}],
            "budget": {"total": share * full_grid_cost()},
            "targets": [{"kind": "recipe", "budgets": [float(LARGEST_BATCH * MOST_UPDATES)]}],
            "laws": {"use": laws if laws == "auto" else list(laws)},
        }
    )  # fmt: skip


def run_cell(cell: dict[str, Any], laws: Any = LAWS) -> dict[str, Any]:
    """One study to the end of its money, and what it then says."""
    start = time.perf_counter()
    spec = make_spec(cell["seed"], cell["share"], laws)
    target = spec.targets[0].budgets[0]
    simulator = Simulator(
        {"truth": "rl_sampling", "seed": cell["seed"], "domain_seed": cell["seed"], "spread": cell["spread"]}, Path()
    )
    with Study.from_spec(spec) as study:
        study.run(simulator)
        row = rollout_table(spec, study.posterior(), "default", [target])[0]
        state = study.state
    true, end = (true_rollouts(simulator, compute) for compute in (target, 1e4 * target))
    found = row["rollouts"]
    return {
        "budget": spec.budget.total,
        "target": target,
        "num_runs": len(state.runs),
        "spend": state.spent / spec.budget.total,
        "true_rollouts": true,
        "true_end": end,
        **found,
        "error_doublings": math.log2(found["median"] / true),
        "grows": row["grows"],
        "saturates": row["saturates"],
        "end_median": row["levels_off_at"]["median"],
        "seconds": time.perf_counter() - start,
    }


def true_rollouts(simulator: Simulator, compute: float) -> float:
    """The best number of rollouts for so much compute, by the hidden truth."""
    rollouts = np.geomspace(ROLLOUTS[0], ROLLOUTS[-1], 1025)
    reward = simulator.truth_mean(
        "default", {"rollouts": rollouts, "problems": 256.0, "updates": compute / 256 / rollouts}
    )
    return float(rollouts[int(np.argmax(reward))])


def _line(row: dict[str, Any]) -> str:
    return (
        f"seed {row['seed']:2d}: n* {row['median']:.0f} [{row['q05']:.0f}, {row['q95']:.0f}], true"
        f" {row['true_rollouts']:.0f}; P(saturates) {row['saturates']:.2f} at {row['end_median']:.0f}, true"
        f" {row['true_end']:.0f}; {row['num_runs']} runs, {row['seconds']:.0f} s"
    )
