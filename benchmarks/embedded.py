"""Simulated scenarios that need no corpus: pools bought from the truths of `backends.truths`, whose laws are their own.

A pool is spread evenly over the logs of a box; every row is one noisy run of the simulator.  The targets are noisy runs
too, so that the coverage of predictive intervals means what it means on recorded runs: a quarter of them lies inside
the box, the others cost more than the dearest row of the pool, up to a hundred times as much.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from scipy.stats import qmc

from backends.simulator import Simulator
from benchmarks.problems import Problem
from benchmarks.scenarios import Scenario, find_scenario, scenario_names
from planner.execution import Job
from planner.records import Design, DesignTable
from planner.spec import StudySpec, parse_study_spec

__all__ = ["Scenario", "find_scenario", "load_problem", "make_spec", "measure", "scenario_names"]

NUM_TARGETS = 72
_INSIDE = 0.25  # share of the targets within the box of the pool
_FARTHEST = 100.0  # cost of the dearest target over that of the dearest row of the pool
_DIGITS = 4  # significant, as people write designs
_TRIED = 2**13  # points among which those of the right cost are looked for


@functools.cache
def load_problem(name: str) -> Problem:
    """One scenario as a problem; the same at every call.  Raises `InputError` for an unknown name."""
    scenario = find_scenario(name)
    pool = make_table(scenario, [_pool_points(scenario, g) for g in range(scenario.num_domains)])
    dearest = float(pool.cost.max())
    targets = make_table(scenario, [_target_points(scenario, g, dearest) for g in range(scenario.num_domains)])
    return Problem(
        name=name,
        specs=[make_spec(scenario, float(pool.cost.sum()))],
        pool=pool,
        pool_responses=measure(scenario, pool, "pool")[:, None],
        targets=targets,
        target_responses=measure(scenario, targets, "target")[:, None],
    )


def make_spec(scenario: Scenario, total: float, *, recipe_budget: float | None = None) -> StudySpec:
    """The study that a user would declare; its target is the recipe of a budget, if one is given."""
    aims = [] if recipe_budget is None else [{"kind": "recipe", "budgets": [recipe_budget]}]
    return parse_study_spec(
        {
            "study": {"name": scenario.name},
            "response": dict(scenario.response),
            "axes": [
                {"name": a.role, "role": a.role, "low": a.low, "high": a.high, "integer": a.integer}
                for a in scenario.axes
            ],
            "domains": [{"name": name} for name in scenario.domains],
            "cost": {"unit": "cost", "terms": [{"coefficient": c, "powers": dict(p)} for c, p in scenario.cost]},
            "budget": {"total": total},
            "targets": aims,
        }
    )


def measure(scenario: Scenario, table: DesignTable, label: str) -> np.ndarray:
    """One noisy response of every row, (C,); the same for the same scenario, label and row."""
    simulator = Simulator({"truth": scenario.truth, "slots": len(table)}, Path())
    handles = [
        simulator.submit(
            Job(
                run_id=f"{scenario.name}/{label}{row}",
                design=Design(
                    domain=scenario.domains[domain],
                    axes={axis.role: value for axis, value in zip(scenario.axes, x, strict=True)},
                ),
                folder=Path(),
            )
        )
        for row, (domain, x) in enumerate(zip(table.domain, table.x.tolist(), strict=True))
    ]
    # Every run has a slot and takes as long as the others, so one look sees the end of all.
    return np.array([report.response for report in simulator.poll(handles)], dtype=np.float64)


def make_table(scenario: Scenario, points: Sequence[np.ndarray]) -> DesignTable:
    """Priced designs from the points (C_g, A) of every domain, raw units."""
    x = np.concatenate(points)
    domain = np.repeat(np.arange(len(points)), [len(each) for each in points])
    return DesignTable(domain=domain, x=x, cost=scenario.costs(x), row=np.arange(len(x), dtype=np.int64))


def _pool_points(scenario: Scenario, domain: int) -> np.ndarray:
    points = _fill(scenario, scenario.high, f"pool{domain}")
    return points[: scenario.size // scenario.num_domains]


def _target_points(scenario: Scenario, domain: int, dearest: float) -> np.ndarray:
    """Points inside the box and beyond its dearest row, none of them a row of the pool; (T, A)."""
    num = NUM_TARGETS // scenario.num_domains
    num_inside = round(_INSIDE * num)
    bought = {tuple(row) for row in _pool_points(scenario, domain).tolist()}
    inside = _fill(scenario, scenario.high, f"inside{domain}")
    new = np.array([tuple(row) not in bought for row in inside.tolist()])
    far = _fill(scenario, scenario.high * [axis.reach for axis in scenario.axes], f"beyond{domain}")
    cost = scenario.costs(far)
    return np.concatenate(
        [inside[new][:num_inside], far[(cost > dearest) & (cost <= _FARTHEST * dearest)][: num - num_inside]]
    )


def _fill(scenario: Scenario, high: np.ndarray, label: str) -> np.ndarray:
    """Distinct points spread evenly over the logs of the box up to `high`, in an order that any first part fills it."""
    digest = hashlib.sha256(f"{scenario.name}\n{label}".encode()).digest()
    rng = np.random.default_rng(int.from_bytes(digest[:8], "big"))
    unit = qmc.Sobol(len(high), rng=rng).random(_TRIED)
    x = scenario.low * (high / scenario.low) ** unit
    exponent = np.floor(np.log10(x))
    rounded = np.round(x / 10.0**exponent, _DIGITS - 1) * 10.0**exponent
    is_integer = np.array([axis.integer for axis in scenario.axes])
    x = np.clip(np.where(is_integer, np.round(x), rounded), scenario.low, high)
    _, first = np.unique(x, axis=0, return_index=True)
    return x[np.sort(first)]
