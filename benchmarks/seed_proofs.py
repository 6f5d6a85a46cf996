"""Recipes that an additive law cannot give (tables 19 to 21), and the diagnostics of a sweep like the printed one.

Slopes are those of our own recipe search, not of formulas.
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np

from backends.simulator import Simulator
from benchmarks.seed_tables import number
from planner.diagnosis import diagnose
from planner.recipe.problem import Box, Posynomial
from planner.recipe.recipes import optimise_recipe
from planner.study import Study

_BUDGET = 1e4


def _additive(theta: Any, log_x: Any) -> Any:
    """sum_j A_j x_j^-alpha_j; theta (2, A): log A, then alpha."""
    return jnp.exp(theta[0] - theta[1] * log_x).sum()


def _slopes(exponents: np.ndarray, log_sizes: np.ndarray, coefficients: np.ndarray, powers: np.ndarray) -> Any:
    """Local slopes d log x / d log C and spend shares at the optimum, (A,) each."""
    num_axes = len(exponents)
    box = Box(low=np.full(num_axes, -40.0), high=np.full(num_axes, 40.0))
    cost = Posynomial(coefficients, powers)
    theta = np.stack([log_sizes, exponents])[None]
    found = optimise_recipe(_additive, theta, cost, _BUDGET, box, num_starts=1)
    return found.slope[0], found.share[0]


def recipes(tables: dict[int, list[list[str]]]) -> dict[str, Any]:
    """The printed recipe exponents beside what an additive law with the printed exponents gives, by form of the cost.

    `linear`: the smallest of the four slopes, and the spend-weighted mean of them (always 1), over random amplitudes
    and coefficients; `ratio`: slope of environments over that of tasks, before and after a price rises by half, ours
    and printed; `product`: slopes under a cost c N D_E D_T D_tau.
    """
    printed = [number(cell).value for cell in tables[20][1][1:5]]
    alpha = np.array([number(cell).value for cell in tables[13][1][1:4]] + [0.34])  # N: an assumption, none is printed
    rng = np.random.default_rng(0)
    smallest, means, largest = [], [], []
    for _ in range(200):
        slope, share = _slopes(alpha, rng.normal(0, 2, 4), np.exp(rng.normal(0, 2, 4)), np.eye(4))
        smallest.append(slope.min())
        largest.append(slope.max())
        means.append(float(share @ slope))
    rows = {row[0].replace("$", "").strip(): [number(c).value for c in row[1:5]] for row in tables[21][1:]}
    default, dearer = rows["Default"], next(v for k, v in rows.items() if k.startswith("c_{E}") and "1.5" in k)
    ours = [_slopes(alpha, np.zeros(4), np.array([factor, 1.0, 1.0, 1.0]), np.eye(4))[0] for factor in (1.0, 1.5)]
    product = _slopes(np.array([*alpha[:3], 0.185]), np.zeros(4), np.ones(1), np.ones((1, 4)))[0]
    return {
        "printed": printed,
        "linear": {
            "smallest_slope": float(min(smallest)),
            "largest_slope": float(max(largest)),
            "spend_weighted_mean": [float(min(means)), float(max(means))],
            "equal_shares": _equal_shares(alpha),
        },
        "ratio": {
            "printed": [default[0] / default[1], dearer[0] / dearer[1]],
            "ours": [float(s[0] / s[1]) for s in ours],
        },
        "product": dict(zip(("environments", "tasks", "trajectories", "N"), map(float, product), strict=True)),
    }


def _equal_shares(alpha: np.ndarray) -> list[float]:
    """Slopes where all four axes take a quarter of the money: a_j A_j d_j^-a_j equal at d_j = C / 4."""
    log_sizes = alpha * np.log(_BUDGET / 4) - np.log(alpha)
    slope, share = _slopes(alpha, log_sizes, np.ones(4), np.eye(4))
    assert np.abs(share - 0.25).max() < 1e-6
    return list(map(float, slope))


# ---- tables 5, 10 to 12: the questions of a reviewer, put to a sweep of our own -------------------------------------

_GRIDS = {
    "environments": (4, 8, 16, 32, 64, 128, 256, 384),
    "tasks": (160, 320, 640, 1280, 2560, 5120, 10240, 20480),
    "trajectories": (1, 2, 4, 8, 16, 24, 32, 48),
}
_HELD = {"environments": 256, "tasks": 10240, "trajectories": 8}
_TRIALS, _SEEDS = 2000, 3


def sweeps(tables: dict[int, list[list[str]]]) -> dict[str, Any]:
    """`planner.diagnosis` on simulated sweeps over the printed ranges, beside table 11: one axis at a time, the others
    held, three seeds of 2,000 trials, truth of the printed exponents.
    """
    truth = {axis: number(cell).value for axis, cell in zip(_GRIDS, tables[13][1][1:4], strict=True)}
    simulator = Simulator({"truth": "agentic", "spread": 0.0, "exponents": truth}, Path())
    rng = np.random.default_rng(0)
    axes = [{"name": a, "role": a, "values": list(map(float, grid))} for a, grid in _GRIDS.items()]
    document = {
        "study": {"name": "sweeps"},
        "response": {
            "name": "success",
            "link": "neg_log",
            "noise": "binomial",
            "trials": _TRIALS,
            "expect": [0.2, 0.7],
        },
        "axes": axes,
        "cost": {"terms": [{"coefficient": 1, "powers": {"tasks": 1, "trajectories": 1}}]},
        "budget": {"total": 1e9},
    }
    with Study.from_spec(document) as study:
        for (axis, grid), seed in itertools.product(_GRIDS.items(), range(_SEEDS)):
            for value in grid:
                point = {**_HELD, axis: value}
                successes = float(rng.binomial(_TRIALS, float(simulator.truth_mean("default", point))))
                study.attach(
                    point, successes / _TRIALS, successes=successes, trials=_TRIALS, seed=1000 * len(axis) + seed
                )
        found = diagnose(study.spec, study.state.outcomes(), "default")
    rows = []
    for each, printed in zip(found["axes"], tables[11][1:], strict=True):
        rows.append(
            {
                "axis": each["axis"],
                "true": truth[each["axis"]],
                "printed_6_8_points": [number(printed[2]).value, number(printed[3]).value],
                "ours_inner_6_points": each["inner"],
                "ours_8_points": each["exponent"],
                "printed_largest_shift": number(printed[5]).value,
                "ours_largest_shift": each["largest_shift"],
                "slopes": [round(s["slope"], 3) for s in each["slopes"]],
                "held_low": each["held"].get("low"),
                "held_high": each["held"].get("high"),
            }
        )
    return {"trials": _TRIALS, "seeds": _SEEDS, "axes": rows}
