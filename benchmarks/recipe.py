"""`python -m benchmarks recipe`: what is lost by following the planner's recipe instead of the true optimum.

On every simulated scenario a policy spends its budget, the planner turns the final posterior into one recipe a domain
for a much larger budget, and the simulator's truth says what that recipe gives:

    regret = true mean response of the recipe less the true best, in units of the response, 0 at best
    relative = regret over what a blind allocation of the same budget loses (the median one)
    axis_coverage = share of axes whose 90 % interval of the best value holds the true best value

All are means over domains.  The large budget is 30 times the dearest run of the pool: far enough that exponents must
be right and not only the fit, near enough that a floor has not yet made all allocations equal.  A domain for which the
planner gives no answer, or one that its budget does not pay, counts as allocated blindly.

With `--coverage` it is asked instead whether intervals of recipes and efficiencies hold the truth, see
`benchmarks.coverage`.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks import brute_force, cells, coverage, embedded
from benchmarks.active import Desk
from benchmarks.brute_force import TrueOptimum
from benchmarks.policies import POLICIES
from benchmarks.problems import Problem
from benchmarks.scenarios import Scenario
from planner import advice, inference
from planner.errors import NothingAffordable, UnreliableFit

BUDGET_FACTOR = 30.0  # of the dearest run of the pool
_KEY = ("scenario", "policy", "budget", "scope", "seed", "factor", "engine")
COLUMNS = (
    *_KEY,
    "regret",
    "relative",
    "worst_relative",
    "axis_coverage",
    "failed",
    "num_runs",
    "spend",
    "steps",
    "seconds_per_step",
    "seconds_first",
    "seconds",
)
_NUM_DRAWS = 400  # of the posterior that a recipe is averaged over
_TOLERANCE = 1e-6  # of the cost of a recipe
_EDGE = 0.01  # relative: whole-number axes and ends of a range


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of this command."""
    parser.add_argument("--scenario", nargs="*", default=[], help="names; all if none is given")
    parser.add_argument("--policy", nargs="*", default=["ours"], choices=sorted([*POLICIES, "passive"]))
    parser.add_argument(
        "--budget", type=float, nargs="*", default=[0.05], help="fractions of the pool's cost; passive buys all"
    )
    parser.add_argument("--budget-scope", default="group", choices=["group", "pooled"])
    parser.add_argument("--factor", type=float, default=BUDGET_FACTOR, help="the recipe's budget over the dearest run")
    parser.add_argument("--engine", default="refined", choices=["laplace", "refined"], help="of the final posterior")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, help="CSV file to append to and to resume from")
    parser.add_argument("--json", action="store_true", help="one JSON object a line on standard output")
    coverage.add_arguments(parser)


def main(options: argparse.Namespace) -> int:
    """Runs every cell that `--output` does not hold yet, then prints medians over scenarios for each policy."""
    if options.coverage:
        return coverage.main(options)
    names = cells.choose(options.scenario, embedded.scenario_names())
    table = cells.Table(options.output, columns=COLUMNS, key=_KEY)
    for name in names:
        scenario = embedded.find_scenario(name)
        if scenario.no_recipe:
            print(f"{name} is left out: {scenario.no_recipe}", file=sys.stderr)
            continue
        missing = table.missing(_cells(name, options))
        if not missing:
            continue
        problem, recipe_budget = recipe_problem(scenario, options.factor)
        optima = [brute_force.find_optimum(scenario, g, recipe_budget) for g in range(scenario.num_domains)]
        for cell in missing:
            row = cell | _run_cell(scenario, problem, recipe_budget, optima, cell)
            table.add(row, line=None if options.json else _line)
    if not options.json:
        _summary([row for row in table.rows if row["scenario"] in names])
    return 0


def recipe_problem(scenario: Scenario, factor: float) -> tuple[Problem, float]:
    """The scenario with the recipe of `factor` times its dearest run as what the study wants, and that budget.

    Policies that know nothing of recipes aim at the responses of allocations that use the budget up.
    """
    problem = embedded.load_problem(scenario.name)
    recipe_budget = factor * float(problem.pool.cost.max())
    allocations = brute_force.Affordable(scenario, recipe_budget).allocations(
        embedded.NUM_TARGETS // scenario.num_domains, np.random.default_rng(0)
    )
    targets = embedded.make_table(scenario, [np.exp(allocations)] * scenario.num_domains)
    spec = embedded.make_spec(scenario, float(problem.pool.cost.sum()), recipe_budget=recipe_budget)
    responses = embedded.measure(scenario, targets, "allocation")[:, None]
    return dataclasses.replace(problem, specs=[spec], targets=targets, target_responses=responses), recipe_budget


def _cells(name: str, options: argparse.Namespace) -> list[dict[str, Any]]:
    return [
        {
            "scenario": name,
            "policy": policy,
            "budget": 1.0 if policy == "passive" else budget,
            "scope": options.budget_scope,
            "seed": seed,
            "factor": options.factor,
            "engine": options.engine,
        }
        for policy, budget, seed in itertools.product(options.policy, options.budget, range(options.seeds))
    ]


def _run_cell(
    scenario: Scenario, problem: Problem, recipe_budget: float, optima: list[TrueOptimum], cell: dict[str, Any]
) -> dict[str, Any]:
    start = time.perf_counter()
    desk, buying = cells.spend(problem, cell | {"rule": "strict"})
    recipes = _recipes(desk, recipe_budget, engine=cell["engine"])
    pairs = list(zip(recipes, optima, strict=True))
    losses = [_regret(scenario, g, recipe and recipe.x, recipe_budget, best) for g, (recipe, best) in enumerate(pairs)]
    regret, relative = np.array(losses).T
    covered = [recipe.covers(best.x) for recipe, best in pairs if recipe is not None]
    return {
        "regret": float(regret.mean()),
        "relative": float(relative.mean()),
        "worst_relative": float(relative.max()),
        "axis_coverage": float(np.mean(covered)) if covered else float("nan"),
        "failed": sum(recipe is None for recipe in recipes),
        **buying,
        "seconds": time.perf_counter() - start,
    }


class _Recipe(NamedTuple):
    """What the planner says to do, and what it holds possible.  A axes, raw units."""

    x: np.ndarray  # (A,) the joint recipe
    low: np.ndarray  # (A,) 5 % quantile of the best value
    high: np.ndarray  # (A,) 95 %

    def covers(self, x: np.ndarray) -> float:
        """Share of the axes whose interval holds the value in `x` (A,); a value at the edge of a range is held."""
        return float(np.mean((self.low * (1.0 - _EDGE) <= x) & (x <= self.high * (1.0 + _EDGE))))


def _recipes(desk: Desk, recipe_budget: float, *, engine: str) -> list[_Recipe | None]:
    """The planner's recipe of every domain; None where it gives none."""
    problem, spec = desk.problem, desk.problem.specs[0]
    posterior = inference.fit_study(
        spec,
        problem.outcomes(desk.bought, 0),
        problem.pool,
        problem.targets,
        engine=engine,
        num_draws=_NUM_DRAWS,
        seed=desk.seed,
        look_ahead=True,
        warm=desk.posteriors[0] if desk.posteriors else None,
    )
    found: list[_Recipe | None] = []
    for domain in spec.domain_names:
        try:
            answer = advice.recipe_answer(spec, posterior, recipe_budget, domain)
        except (NothingAffordable, UnreliableFit) as error:
            print(f"{problem.name}, {domain}: {error}", file=sys.stderr)
            found.append(None)
        else:
            low, high = (answer.summary[column].to_numpy(dtype=float) for column in ("q05", "q95"))
            found.append(_Recipe(spec.point(answer.joint["axes"]), low, high))
    return found


def _regret(
    scenario: Scenario, domain: int, x: np.ndarray | None, recipe_budget: float, best: TrueOptimum
) -> tuple[float, float]:
    """Regret in units of the response, and relative to that of a blind allocation."""
    blind = scenario.sign * (best.reference - best.response)
    if x is None or scenario.costs(x) > recipe_budget * (1.0 + _TOLERANCE):
        return blind, 1.0
    regret = scenario.sign * (float(scenario.true_mean(domain, x)) - best.response)
    return regret, regret / blind


def _line(row: dict[str, Any]) -> str:
    return (
        f"{row['scenario']:18s} {row['policy']:15s} {row['budget']:5.2f} seed {row['seed']}"
        f"  regret {row['regret']:.4f}  relative {row['relative']:.3f}  worst {row['worst_relative']:.3f}"
        f"  axes covered {row['axis_coverage']:.2f}"
        f"  failed {row['failed']}  runs {row['num_runs']:3d}  spend {row['spend']:.2f}  {row['seconds']:.0f} s"
    )


def _summary(rows: list[dict[str, Any]]) -> None:
    """Mean over seeds by scenario, then median over scenarios, for every policy and budget."""
    print()
    for policy, budget in sorted({(str(row["policy"]), float(row["budget"])) for row in rows}):
        mine = [row for row in rows if row["policy"] == policy and float(row["budget"]) == budget]
        names = sorted({row["scenario"] for row in mine})
        columns = ("relative", "regret", "axis_coverage")
        means = np.array(
            [
                np.nanmean([[float(r[c]) for c in columns] for r in mine if r["scenario"] == name], axis=0)
                for name in names
            ]
        )
        print(
            f"{policy:15s} budget {budget:.2f}: {len(names)} scenarios, relative regret median"
            f" {np.median(means[:, 0]):.4f} worst {means[:, 0].max():.3f}, regret median {np.median(means[:, 1]):.4f},"
            f" axes covered {np.nanmean(means[:, 2]):.2f},"
            f" answers missing {sum(int(row['failed']) for row in mine)}"
        )
