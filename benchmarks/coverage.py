"""`python -m benchmarks recipe --coverage`: whether intervals of recipes and efficiencies hold the truth.

For each template, truths are drawn from its simulator (the domain's constants are random), the study of the template is
run for a few runs, and the planner's 90 % intervals of the best axis values and of the efficiency over a plain plan are
compared with those of the truth, found by the same definition on the true mean.
"""

from __future__ import annotations

import argparse
import itertools
import tempfile
import time
import tomllib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from backends.simulator import Simulator
from benchmarks import cells
from planner import advice, loop
from planner.errors import PlannerError
from planner.questions import efficiency, plans
from planner.questions.setting import Setting, make_setting
from planner.recipe import optimum
from planner.recipe.curves import Curve
from planner.recipe.optimum import LogProblem
from planner.recipe.problem import start_points
from planner.spec import parse_study_spec
from planner.spec.templates import TEMPLATE_NAMES, render_template
from planner.study import Study

# What somebody without a recipe would scale: one axis, the others held in the middle of their ranges.
PLANS = {
    "language-model": "N=1e8,D=*",
    "agentic-data": "N=4e9,reward_density=1,environments=32,tasks=1000,trajectories=*",
    "rl-sampling": "rollouts=16,problems=128,updates=*",
    "tool-environments": "tools=100,databases=20,complexity=3,tasks=*",
}
_EDGE = 0.01  # relative: ends of a range
_STEP = 1e-3  # of finite differences, nats
_STARTS = 8
_NUM_DRAWS = 400  # of the posterior
KEY = ("template", "seed", "domain", "runs", "surface", "what")
COLUMNS = (*KEY, "true", "q05", "median", "q95", "covered", "seconds")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options that go with `--coverage`."""
    parser.add_argument("--coverage", action="store_true", help="intervals of recipes on truths drawn from templates")
    parser.add_argument("--template", nargs="*", default=[], help="names; all if none is given")
    parser.add_argument("--surface", default="bent", choices=["bent", "law"], help="laws with discrepancy, or alone")
    parser.add_argument("--runs", type=int, default=24, help="runs that each study buys")


def main(options: argparse.Namespace) -> int:
    """Runs every truth that `--output` does not hold yet, then prints coverages by template."""
    names = cells.choose(options.template, TEMPLATE_NAMES)
    table = cells.Table(options.output, columns=COLUMNS, key=KEY)
    done = {(row["template"], int(row["seed"]), int(row["runs"]), row["surface"]) for row in table.rows}
    for seed, name in itertools.product(range(options.seeds), names):
        if (name, seed, options.runs, options.surface) not in done:
            for row in run_truth(name, seed, options.runs, options.surface):
                table.add(row, line=None if options.json else _line)
    if not options.json:
        _summary([row for row in table.rows if row["template"] in names])
    return 0


def run_truth(template: str, seed: int, num_runs: int, surface: str) -> list[dict[str, Any]]:
    """One truth: a row for every domain and axis, and for the efficiency."""
    started = time.perf_counter()
    sections = tomllib.loads(render_template(template, template))
    sections["study"]["seed"] = seed
    sections["backend"]["domain_seed"] = seed
    sections["backend"]["slots"] = num_runs  # all at once: what is asked here is not how runs are chosen
    spec = parse_study_spec(sections)
    budget = next(target.budgets[0] for target in spec.targets if target.kind == "recipe")
    rows = []
    with tempfile.TemporaryDirectory() as folder, Study.from_spec(spec) as study:
        truth = Simulator(loop.backend_options(spec), Path(folder))
        study.run(truth, max_runs=num_runs)
        posterior = study.posterior(num_draws=_NUM_DRAWS)
        for domain in spec.domain_names:
            setting = make_setting(spec, posterior, domain, discrepancy=surface == "bent")
            x = plans.read_plans(spec, PLANS[template])[0].allocation(setting, budget)
            mean = true_mean(truth, setting)
            try:
                held = _intervals(setting, budget, x, surface)
            except PlannerError as error:
                print(f"{template} {seed} {domain}: {error}", flush=True)
                continue
            best = best_of(mean, setting, budget)[1]
            true = dict(zip(spec.axis_names, setting.box(budget)[0].raw(best), strict=True))
            true["efficiency"] = true_efficiency(mean, setting, x)
            for what, (low, median, high) in held.items():
                covered = low * (1.0 - _EDGE) <= true[what] <= high * (1.0 + _EDGE)
                row = {
                    "template": template,
                    "seed": seed,
                    "domain": domain,
                    "runs": num_runs,
                    "surface": surface,
                    "what": what,
                }
                quantiles = {"true": true[what], "q05": low, "median": median, "q95": high}
                rows.append(row | quantiles | {"covered": int(covered), "seconds": time.perf_counter() - started})
    return rows


def _intervals(setting: Setting, budget: float, x: np.ndarray, surface: str) -> dict[str, np.ndarray]:
    answer = advice.recipe_answer(
        setting.spec, setting.posterior, budget, setting.domain, discrepancy=surface == "bent"
    )
    table = answer.summary.set_index("axis")
    held = {name: table.loc[name, ["q05", "median", "q95"]].to_numpy(dtype=float) for name in setting.spec.axis_names}
    found = efficiency.efficiency(setting, x)
    return held | {"efficiency": np.quantile(found.ratio[found.converged], [0.05, 0.5, 0.95])}


# ---- the truth ------------------------------------------------------------------------------------------------------


def true_mean(truth: Simulator, setting: Setting) -> Callable[[np.ndarray], np.ndarray]:
    """The true mean at coordinates (P, A) on the scale of the laws, smaller is better; (P,)."""
    box, _ = setting.box(1.0)
    scale = setting.posterior.encoding.scale

    def mean(log_x: np.ndarray) -> np.ndarray:
        x = box.raw(log_x)
        axes = {name: x[:, a] for a, name in enumerate(setting.spec.axis_names)}
        return scale.to_eta(np.asarray(truth.truth_mean(setting.domain, axes), dtype=float))

    return mean


def best_of(mean: Callable[[np.ndarray], np.ndarray], setting: Setting, budget: float) -> tuple[float, np.ndarray]:
    """The lowest true mean under a budget, and where, (A,) coordinates: the planner's search on finite differences."""
    box, _ = setting.box(budget)
    groups = start_points(setting.cost, float(np.log(budget)), box, _STARTS)
    starts = [group[np.argmin(mean(group))] for group in groups]

    def curves(_: np.ndarray, log_x: np.ndarray) -> Curve:
        return _differences(mean, log_x)

    found = optimum.minimise(curves, LogProblem.of(setting.cost, box), float(np.log(budget)), np.array(starts))
    value = np.where(np.isfinite(found.response), found.response, np.inf)
    best = int(np.argmin(value))
    return float(value[best]), found.log_x[best]


def _differences(mean: Callable[[np.ndarray], np.ndarray], log_x: np.ndarray) -> Curve:
    """Central differences at columns of `log_x` (A, n)."""
    num_axes, n = log_x.shape
    steps = _STEP * np.eye(num_axes)
    pairs = list(itertools.combinations(range(num_axes), 2))
    moves = [np.zeros(num_axes), *steps, *-steps]
    moves += [a * steps[i] + b * steps[j] for i, j in pairs for a, b in ((1, 1), (1, -1), (-1, 1), (-1, -1))]
    values = mean((log_x.T[None] + np.array(moves)[:, None]).reshape(-1, num_axes)).reshape(len(moves), n)
    up, down, rest = values[1 : 1 + num_axes], values[1 + num_axes : 1 + 2 * num_axes], values[1 + 2 * num_axes :]
    hessian = np.zeros((num_axes, num_axes, n))
    hessian[np.arange(num_axes), np.arange(num_axes)] = (up - 2.0 * values[0] + down) / _STEP**2
    for k, (i, j) in enumerate(pairs):
        four = rest[4 * k : 4 * k + 4]
        hessian[i, j] = hessian[j, i] = (four[0] - four[1] - four[2] + four[3]) / (4.0 * _STEP**2)
    return Curve(values[0], (up - down) / (2.0 * _STEP), hessian)


def true_efficiency(mean: Callable[[np.ndarray], np.ndarray], setting: Setting, x: np.ndarray) -> float:
    """Cost of the allocation `x` (A,) over the smallest budget whose true optimum is as good, by bisection."""
    log_x = setting.log_x(x)
    wanted, high = float(mean(log_x[None])[0]), float(setting.cost.log_cost(log_x))
    dear, low = high, high - 60.0
    while high - low > 1e-4:
        middle = 0.5 * (low + high)
        try:
            enough = best_of(mean, setting, float(np.exp(middle)))[0] <= wanted
        except (ValueError, FloatingPointError):
            enough = False
        low, high = (low, middle) if enough else (middle, high)
    return float(np.exp(dear - high))


# ---- tables ---------------------------------------------------------------------------------------------------------


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['template']:18s} seed {row['seed']:2d} {row['domain']:10s} {row['what']:13s} true {row['true']:10.4g}"
        f"  90 % [{row['q05']:.4g}, {row['q95']:.4g}]  {'held' if row['covered'] else 'MISSED'}"
    )


def _summary(rows: Sequence[dict[str, Any]]) -> None:
    print()
    names = ("template", "surface", "what")
    for template, surface, what in dict.fromkeys(tuple(row[name] for name in names) for row in rows):
        mine = [row for row in rows if tuple(row[name] for name in names) == (template, surface, what)]
        share = np.mean([float(row["covered"]) for row in mine])
        width = np.median([np.log(float(row["q95"]) / float(row["q05"])) for row in mine])
        print(
            f"{template:18s} {surface:5s} {what:13s} covered {share:.2f} of {len(mine)}, median width {width:.2f} nats"
        )
