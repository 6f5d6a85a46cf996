"""`python -m benchmarks speed`: seconds and memory of one update and plan, warm, and how they grow."""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from typing import Any

import numpy as np

from planner import inference, recipe
from planner.design import policies
from planner.design.targets import prediction_points
from planner.inference import data as inference_data
from planner.records import Design, DesignTable, Outcome, RunState
from planner.spec import StudySpec, parse_study_spec

_REPEATS = 3
_REFERENCE = {"num_runs": 60, "num_candidates": 3000, "num_domains": 1, "num_axes": 3}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of this command."""
    parser.add_argument("--quick", action="store_true", help="only the reference case: 60 runs, 3,000 candidates")
    parser.add_argument("--first", action="store_true", help="only the first answers of new processes")
    parser.add_argument("--one", choices=("plan", "answer"), help=argparse.SUPPRESS)
    parser.add_argument("--json", action="store_true", help="one JSON object a line on standard output")


def main(options: argparse.Namespace) -> int:
    """Times the reference case, then each size on its own, then first answers."""
    if options.one:
        _once(options.one)
        return 0
    for row in _rows(options):
        if options.json:
            print(json.dumps(row), flush=True)
        else:
            print("  ".join(f"{key} {_words(value)}" for key, value in row.items()), flush=True)
    return 0


def _words(value: Any) -> str:
    return value if isinstance(value, str) else f"{value:.4g}"


def _rows(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    if not options.first:
        for case in _cases(quick=options.quick):
            yield _measure(**case)
        yield _recipes()
    if not options.quick:
        yield from _first_answers()


def _additive(theta: Any, log_x: Any) -> Any:
    import jax.numpy as jnp

    return jnp.sum(jnp.exp(theta[:3] - jnp.exp(theta[3:]) * log_x))


def _recipes(num_draws: int = 4000, num_budgets: int = 50) -> dict[str, Any]:
    """Seconds for the recipes of many draws at many budgets, warm: an additive law of three axes, a linear cost."""
    rng = np.random.default_rng(0)
    thetas = np.hstack([rng.normal(0.0, 0.5, (num_draws, 3)), np.log(rng.uniform(0.15, 0.6, (num_draws, 3)))])
    cost = recipe.Posynomial(np.array([1.0, 3.0, 0.1]), np.eye(3))
    box = recipe.Box(np.zeros(3), np.full(3, np.log(1e9)))
    budgets = np.geomspace(1e2, 1e8, num_budgets)
    seconds = []
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        found = recipe.recipes_of_mixture([(_additive, thetas)], cost, budgets, box, num_starts=1)
        seconds.append(time.perf_counter() - start)
    return {
        "recipe_draws": num_draws,
        "recipe_budgets": num_budgets,
        "first_seconds": seconds[0],
        "recipe_seconds": min(seconds[1:]),
        "certified": float(np.mean([each.converged.mean() for each in found])),
    }


def _first_answers() -> Iterator[dict[str, Any]]:
    """Seconds of whole processes that answer once, with no compiled code kept from before and with all of it."""
    for kind in ("plan", "answer"):
        with tempfile.TemporaryDirectory() as folder:
            for cache in ("empty", "filled"):
                start = time.perf_counter()
                environment = os.environ | {"JAX_COMPILATION_CACHE_DIR": folder}
                subprocess.run(
                    [sys.executable, "-m", "benchmarks", "speed", "--one", kind], env=environment, check=True
                )
                yield {"first": kind, "compiled_code": cache, "seconds": time.perf_counter() - start}


def _once(kind: str) -> None:
    """What a new process does for its first plan, or for its first predictions from the engine of answers."""
    spec, outcomes, table, targets = make_study(**_REFERENCE)
    if kind == "plan":
        _plan(inference.fit_study(spec, outcomes, table, targets, num_draws=0), table, targets)
        return
    posterior = inference.fit_study(spec, outcomes, table, targets, engine="refined", look_ahead=True)
    posterior.response_draws(targets.domain, targets.x)


def _cases(*, quick: bool) -> Iterator[dict[str, int]]:
    yield _REFERENCE
    if quick:
        return
    for num_runs in (20, 200, 500):
        yield _REFERENCE | {"num_runs": num_runs}
    for num_candidates in (300, 30_000, 300_000):
        yield _REFERENCE | {"num_candidates": num_candidates}
    for num_domains in (4, 10, 50):
        yield _REFERENCE | {"num_domains": num_domains, "num_runs": 10 * num_domains}


def make_study(
    *, num_runs: int, num_candidates: int, num_domains: int, num_axes: int, seed: int = 0
) -> tuple[StudySpec, list[Outcome], DesignTable, DesignTable]:
    """A simulated study: sums of powers with a floor, exponents that differ a little between domains."""
    rng = np.random.default_rng(seed)
    spec = parse_study_spec(
        {
            "study": {"name": "speed"},
            "response": {"name": "loss"},
            "axes": [{"name": f"x{a}", "low": 1e6, "high": 1e9, "role": "parameters"} for a in range(num_axes)],
            "domains": [{"name": f"d{g}"} for g in range(num_domains)],
            "cost": {"terms": [{"coefficient": 6.0, "powers": {f"x{a}": 1.0 for a in range(num_axes)}}]},
            "budget": {"total": 1e30},
        }
    )
    x = 10.0 ** rng.uniform(6, 9, (num_candidates, num_axes))
    domain = rng.integers(0, num_domains, num_candidates)
    table = DesignTable(domain=domain, x=x, cost=6.0 * x.prod(axis=1), row=np.arange(num_candidates))
    exponent = 0.3 + 0.03 * rng.standard_normal((num_domains, num_axes))
    floor = 1.8 + 0.1 * rng.standard_normal(num_domains)
    rows = rng.integers(0, num_candidates, num_runs)
    outcomes = []
    for row in rows:
        g = int(rng.integers(0, num_domains))
        response = floor[g] + (100.0 * x[row] ** -exponent[g]).sum() + 0.005 * rng.standard_normal()
        design = Design(domain=f"d{g}", axes=dict(zip(spec.axis_names, x[row], strict=True)), seed=int(row))
        outcomes.append(
            Outcome(
                run_id=f"r{len(outcomes)}",
                design=design,
                state=RunState.COMPLETED,
                response=float(response),
                cost=float(table.cost[row]),
            )
        )
    far = 10.0 ** rng.uniform(9, 10, (60, num_axes))
    targets = DesignTable(
        domain=rng.integers(0, num_domains, 60), x=far, cost=6.0 * far.prod(axis=1), row=np.full(60, -1)
    )
    return spec, outcomes, table, targets


def _plan(posterior: inference.StudyPosterior, table: DesignTable, targets: DesignTable) -> None:
    budget = float(np.quantile(table.cost, 0.9)) * 5.0
    policies.choose(
        [posterior],
        table,
        prediction_points(targets.domain, targets.x),
        total_budget=budget,
        budget=budget,
        pending=np.zeros((0, 1 + table.x.shape[1])),
        num=4,
    )


def _measure(**sizes: int) -> dict[str, Any]:
    spec, outcomes, table, targets = make_study(**sizes)
    seconds: dict[str, list[float]] = {"fit": [], "plan": []}
    posterior = None
    traces: list[int] = []
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        posterior = inference.fit_study(spec, outcomes, table, targets, num_draws=0, warm=posterior)
        seconds["fit"].append(time.perf_counter() - start)
        start = time.perf_counter()
        _plan(posterior, table, targets)
        seconds["plan"].append(time.perf_counter() - start)
        traces.append(sum(inference_data.TRACES.values()))
    assert posterior is not None
    return sizes | {
        "num_laws": len(posterior.weights),
        "first_seconds": seconds["fit"][0] + seconds["plan"][0],
        "fit_seconds": float(np.median(seconds["fit"][1:])),
        "plan_seconds": float(np.median(seconds["plan"][1:])),
        "traces_after_first": traces[-1] - traces[0],
        "peak_gigabytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0**2,
    }
