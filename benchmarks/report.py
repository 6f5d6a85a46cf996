"""`python -m benchmarks report`: the tables and figures of the README, from the result files.

Reads what `run` wrote, so that every number shown can be traced to a cell and made again.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import cells
from benchmarks.problems import SCALEBENCH
from benchmarks.run import COLUMNS

# R^2 of active-sl's own tables (arXiv 2604.22753, laws given), in the order of SCALEBENCH, at the three budgets.
PUBLISHED = {
    "active-sl": (
        (-0.66, 0.64, 0.96, -1.00, 0.59, 0.73, 0.31, 0.60),
        (0.00, 0.89, 0.98, 0.77, 0.65, 0.85, 0.44, 0.88),
        (0.22, 0.95, 0.98, 0.99, 0.83, 0.86, 0.53, 0.93),
    ),
    "v_optimal": (
        (-0.70, 0.57, 0.96, -1.00, 0.67, 0.58, 0.12, 0.67),
        (-0.06, 0.91, 0.97, 0.69, 0.80, 0.83, 0.39, 0.87),
        (0.18, 0.95, 0.98, 0.99, 0.80, 0.85, 0.51, 0.92),
    ),
    "random": (
        (-0.65, -0.36, 0.54, -1.00, -0.47, -0.74, -0.25, -0.77),
        (-0.45, 0.41, 0.53, 0.27, 0.01, -0.36, 0.37, 0.78),
        (-0.33, 0.70, 0.59, 0.19, 0.26, 0.12, 0.38, 0.79),
    ),
}
BUDGETS = ("1 % (20)", "5 % (35)", "10 % (50)")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of this command."""
    parser.add_argument("results", type=Path, nargs="+", help="CSV files that `run --output` wrote")
    parser.add_argument("--figures", type=Path, help="folder for r2.png and coverage.png")


def main(options: argparse.Namespace) -> int:
    """Prints a table of the eight ScaleBench tasks for each policy in the files, and draws the figures."""
    rows = [row for path in options.results for row in cells.Table(path, columns=COLUMNS, key=()).rows]
    policies = sorted({str(row["policy"]) for row in rows} - {"passive"}, key=lambda name: (name != "ours", name))
    print("| budget | policy | " + " | ".join(SCALEBENCH) + " | mean | 90 % covered | seeds |")
    print("| --- " * (len(SCALEBENCH) + 5) + "|")
    for place, budget in enumerate(BUDGETS):
        for policy in policies:
            print(f"| {budget} | {policy} | {_cells(rows, policy, place)} |")
        for name, figures in PUBLISHED.items():
            values = figures[place]
            shown = " | ".join(f"{value:.2f}" for value in values)
            print(f"| | *{name}, published* | {shown} | {np.mean(values):.2f} | | 10 |")
    print(f"| all | passive | {_cells(rows, 'passive', 0)} |")
    if options.figures is not None:
        draw(rows, policies, options.figures)
    return 0


def _at(rows: Sequence[dict[str, Any]], policy: str, scenario: str, place: int) -> list[dict[str, Any]]:
    """Rows of a policy and scenario at the first, second or third of the budgets it was run with."""
    mine = [row for row in rows if row["policy"] == policy and row["scenario"] == scenario]
    budgets = sorted({float(row["budget"]) for row in mine})
    return [row for row in mine if place < len(budgets) and float(row["budget"]) == budgets[place]]


def _means(rows: Sequence[dict[str, Any]], policy: str, place: int, column: str) -> np.ndarray:
    """Mean over seeds for each task, NaN where there is no cell, (8,)."""
    cells = [[float(row[column]) for row in _at(rows, policy, name, place)] for name in SCALEBENCH]
    return np.array([np.mean(cell) if cell else np.nan for cell in cells])


def _cells(rows: Sequence[dict[str, Any]], policy: str, place: int) -> str:
    values = _means(rows, policy, place, "r2")
    covered = _means(rows, policy, place, "coverage_90")
    weight = _means(rows, policy, place, "num_targets")
    seeds = {len(_at(rows, policy, name, place)) for name in SCALEBENCH}
    shown = " | ".join("" if np.isnan(value) else f"{value:.2f}" for value in values)
    pooled = np.nansum(covered * weight) / np.nansum(weight) if np.isfinite(covered).any() else np.nan
    return f"{shown} | {np.mean(values):.3f} | {pooled:.2f} | {'-'.join(map(str, sorted({min(seeds), max(seeds)})))}"


def draw(rows: Sequence[dict[str, Any]], policies: Sequence[str], folder: Path) -> None:
    """Writes `r2.png` (mean R^2 against budget) and `coverage.png` (share of targets inside their intervals)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    folder.mkdir(parents=True, exist_ok=True)
    at = np.arange(len(BUDGETS))
    figure, axes = pyplot.subplots(figsize=(6.0, 3.8), layout="constrained")
    for policy in policies:
        means = [np.mean(_means(rows, policy, place, "r2")) for place in at]
        width = 2.5 if policy == "ours" else 1.2
        axes.plot(at, means, marker="o", linewidth=width, label=f"{policy}, laws unknown")
    for name, figures in PUBLISHED.items():
        axes.plot(at, np.mean(figures, axis=1), marker="x", linestyle="--", linewidth=1.0, label=f"{name}, published")
    axes.set(xticks=at, xticklabels=BUDGETS, xlabel="budget, share of the pool's cost", ylim=(-0.6, 1.02))
    axes.set(ylabel="R² at hidden targets, mean of eight tasks")
    axes.legend(fontsize=8, frameon=False)
    figure.savefig(folder / "r2.png", dpi=150)
    pyplot.close(figure)

    figure, axes = pyplot.subplots(figsize=(6.0, 3.8), layout="constrained")
    for level, marker, color in ((50, "s", "C0"), (90, "o", "C1")):
        values = [_means(rows, "ours", place, f"coverage_{level}") for place in at]
        for place in at:
            spread = place + np.linspace(-0.15, 0.15, len(SCALEBENCH))
            axes.scatter(spread, values[place], marker=marker, s=16, color=color, alpha=0.6)
        weight = _means(rows, "ours", 0, "num_targets")
        pooled = [np.nansum(value * weight) / np.nansum(weight[np.isfinite(value)]) for value in values]
        axes.plot(at, pooled, color=color, label=f"{level} % intervals, all targets")
        axes.axhline(level / 100, color=color, linestyle=":", linewidth=1.0)
    axes.set(xticks=at, xticklabels=BUDGETS, xlabel="budget, share of the pool's cost", ylim=(0.0, 1.05))
    axes.set(ylabel="share of hidden targets inside; dots: tasks")
    axes.legend(fontsize=8, frameon=False, loc="lower right")
    figure.savefig(folder / "coverage.png", dpi=150)
    pyplot.close(figure)
