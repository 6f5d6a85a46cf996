"""`python -m benchmarks calibration`: simulation-based calibration of an engine (Talts et al. 2018, arXiv:1804.06788).

Truths are drawn from the prior of `planner.model`, runs are simulated from them, and the rank of each truth among the
draws of its posterior is uniform if the engine is right.  The simulator is written a second time, in numpy and with a
dense Gaussian process, so that a mistake in the model cannot hide in both.  The context of the laws is fixed: in a
study it is taken from the responses, which no prior knows of.
"""

from __future__ import annotations

import argparse
import csv
import json
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.special import ndtri
from scipy.stats import chisquare, qmc

from planner import laws
from planner.errors import UnreliableFit
from planner.inference import discrepancy
from planner.inference.data import (
    BEND,
    GROWTH_PRIOR,
    LOG_DISCREPANCY_PRIOR,
    LOG_DOMAIN_PRIOR,
    LOG_NOISE_PRIOR,
    BoundLaw,
    FitData,
    bind,
    bucket,
)
from planner.inference.draws import LawDraws, draw
from planner.inference.laplace import LawFit, fit_law
from planner.inference.refinement import refine

RESULTS = Path(__file__).resolve().parent / "results"
NUM_BINS = 20
NUM_RANKED = 199  # draws that a truth is ranked among: ten ranks a bin
SIGNIFICANCE = 0.01  # over all quantities of a cell together

_AXES = (laws.LawAxis(name="N", role="parameters"), laws.LawAxis(name="D", role="tokens"))
_LOW, _HIGH = np.log([1e6, 1e8]), np.log([1e9, 1e11])
_NEAR = _LOW + 0.6 * (_HIGH - _LOW)
_FAR = _HIGH + np.log(10.0)
# Runs of each domain: what a domain borrows from the others matters where it has few.
_RUNS: Mapping[int, Sequence[int]] = {1: (12,), 3: (6, 4, 2)}
# The spread of responses that the laws' priors imply about this reference.
_REFERENCE, _SCALE, _LOWER = 3.0, 1.0, 0.0
_DEGREES = 4.0
_LENGTH, _NUM_FEATURES = 3.0, 40  # of the discrepancy: spreads of an axis, and features
_NUM_DRAWS = 400


class Truth(NamedTuple):
    """One draw from the prior, and runs simulated from it.  G domains, p parameters, n rows."""

    data: FitData
    basis: discrepancy.Basis
    theta: np.ndarray  # (G, p)
    log_noise: float
    growth: float
    near: np.ndarray  # (G,) mean response inside the box
    far: np.ndarray  # (G,) a decade beyond its corner


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of this command."""
    parser.add_argument("--replicates", type=int, default=300)
    parser.add_argument("--engine", choices=("laplace", "refined", "nuts"), default="laplace")
    parser.add_argument("--law", nargs="*", choices=sorted(_MEANS), default=["sum_of_powers", "exp_bilinear"])
    parser.add_argument("--domains", nargs="*", type=int, choices=sorted(_RUNS), default=[1])
    parser.add_argument("--output", type=Path, default=RESULTS, help="folder of the CSV files; resumes from them")
    parser.add_argument("--json", action="store_true", help="one JSON object a line on standard output")


def main(options: argparse.Namespace) -> int:
    """Ranks what the output folder does not hold yet, then prints a line for each quantity of each cell."""
    options.output.mkdir(parents=True, exist_ok=True)
    for law in options.law:
        for num_domains in options.domains:
            ranks, num_failed = _ranks_of_cell(options, law, num_domains)
            cell = {"engine": options.engine, "law": law, "domains": num_domains, "failed": num_failed}
            rows = summarise(ranks, cell)
            _write_summary(options.output / "calibration.csv", rows)
            for row in rows:
                print(json.dumps(row) if options.json else _line(row), flush=True)
    return 0


# ---- the prior, written a second time --------------------------------------------------------------------------------


def _floor_and_height(phi: float) -> tuple[float, float]:
    height = (_REFERENCE - _LOWER) / (1.0 + np.exp(phi))
    return _REFERENCE - height, height


def _sum_of_powers(theta: np.ndarray, u: np.ndarray) -> np.ndarray:
    floor, height = _floor_and_height(theta[0])
    return floor + height * np.exp(theta[1:3] - np.exp(theta[3:5]) * u).sum(-1)


def _product_of_powers(theta: np.ndarray, u: np.ndarray) -> np.ndarray:
    floor, height = _floor_and_height(theta[0])
    return floor + height * np.exp(theta[1] - u @ np.exp(theta[2:4]))


def _exp_bilinear(theta: np.ndarray, u: np.ndarray) -> np.ndarray:
    floor, height = _floor_and_height(theta[0])
    return floor + height * np.exp(theta[1] + u @ theta[2:4] + theta[4] * u[..., 0] * u[..., 1])


# Mean responses (P,) of parameters (p,) at points (P, 2) from the centre.
_MEANS: Mapping[str, Callable[[np.ndarray, np.ndarray], np.ndarray]] = {
    "sum_of_powers": _sum_of_powers,
    "product_of_powers": _product_of_powers,
    "exp_bilinear": _exp_bilinear,
}


def bound_law(name: str) -> BoundLaw:
    """The law with its priors in the one context of this benchmark."""
    spread = (_HIGH - _LOW) / np.sqrt(12.0)  # of designs spread evenly over the box
    context = laws.Context(
        centre=0.5 * (_LOW + _HIGH),
        spread=spread,
        reference=np.asarray(_REFERENCE),
        scale=np.asarray(_SCALE),
        lower=np.asarray(_LOWER),
    )
    return bind(laws.select(_AXES, [name])[0], context)


def simulate(rng: np.random.Generator, law: BoundLaw, num_domains: int) -> Truth:
    """A truth from the prior and twelve runs of it, spread over the box."""
    counts = _RUNS[num_domains]
    theta = _simulate_parameters(rng, law, num_domains)
    log_noise = float(rng.normal(*LOG_NOISE_PRIOR))
    log_discrepancy = float(rng.normal(*LOG_DISCREPANCY_PRIOR))
    growth = float(rng.normal(*GROWTH_PRIOR))
    # All at once, so that the domains fill each other's gaps.
    points = _LOW + (_HIGH - _LOW) * rng.permutation(qmc.Sobol(2, rng=rng).random(16))[: sum(counts)]
    x = np.split(points, np.cumsum(counts)[:-1])
    y, near, far = [], np.empty(num_domains), np.empty(num_domains)
    for g, mine in enumerate(x):
        at = np.vstack([mine, _NEAR, _FAR])
        mean = _MEANS[law.law.name](theta[g], at - law.context.centre)
        swollen = np.exp(growth * _heights(at))
        process = np.sqrt(swollen) * _simulate_process(rng, at / law.context.spread)
        mean = mean + _SCALE * np.exp(log_discrepancy) * process
        y.append(mean[:-2] + _SCALE * np.exp(log_noise) * (swollen * rng.standard_t(_DEGREES, len(at)))[:-2])
        near[g], far[g] = mean[-2:]
    basis = _basis(points, law)
    return Truth(_fit_data(x, y, basis, law), basis, theta, log_noise, growth, near, far)


def _heights(points: np.ndarray) -> np.ndarray:
    """Heights of points (P, 2): given to the model as to the truth, from 1 at the low corner of the box to 0."""
    return np.clip(1.0 - ((points - _LOW) / (_HIGH - _LOW)).mean(axis=-1), 0.0, 1.0)


def _simulate_parameters(rng: np.random.Generator, law: BoundLaw, num_domains: int) -> np.ndarray:
    population = law.prior_mean + law.prior_sd * rng.standard_normal(law.num_parameters)
    if num_domains == 1:
        return population[None]
    apart = law.domain_sd * np.exp(rng.normal(*LOG_DOMAIN_PRIOR, law.num_parameters))
    return population + apart * rng.standard_normal((num_domains, law.num_parameters))


def _simulate_process(rng: np.random.Generator, scaled: np.ndarray) -> np.ndarray:
    """A draw of the Gaussian process of unit variance at points (P, A) in spreads of the designs.

    Nine tenths of the variance vary over three spreads in all axes together, the rest over half a spread of each.
    """
    apart = np.abs(scaled[:, None] - scaled[None])
    together = np.linalg.norm(apart, axis=-1) * np.sqrt(3.0) / _LENGTH
    alone = apart * np.sqrt(3.0) / 0.5
    kernel = 0.9 * (1.0 + together) * np.exp(-together) + 0.1 * ((1.0 + alone) * np.exp(-alone)).mean(axis=-1)
    return np.linalg.cholesky(kernel + 1e-10 * np.eye(len(kernel))) @ rng.standard_normal(len(kernel))


def _basis(points: np.ndarray, law: BoundLaw) -> discrepancy.Basis:
    sides = [np.linspace(low, high, 8) for low, high in zip(_LOW, _HIGH, strict=True)]
    grid = np.stack(np.meshgrid(*sides), axis=-1).reshape(-1, 2)
    every = np.concatenate([points, _NEAR[None], _FAR[None], grid])
    return discrepancy.choose_basis(every, law.context.spread * _LENGTH, num_features=_NUM_FEATURES)


def _fit_data(x: Sequence[np.ndarray], y: Sequence[np.ndarray], basis: discrepancy.Basis, law: BoundLaw) -> FitData:
    shape = (len(x), bucket(max(map(len, x))))
    coordinates = np.broadcast_to(law.context.centre, (*shape, 2)).copy()
    response, is_real, order = np.zeros(shape), np.zeros(shape, dtype=bool), np.full(shape, 1e9)
    for g, (points, values) in enumerate(zip(x, y, strict=True)):
        rows = slice(len(values))
        coordinates[g, rows], response[g, rows], is_real[g, rows] = points, values, True
        order[g, rows] = np.arange(len(values))
    phi, missed = discrepancy.features(basis, coordinates)
    return FitData(
        y=response,
        coordinates=coordinates,
        is_real=is_real,
        known_var=np.zeros(shape),
        order=order,
        phi=phi * is_real[..., None],
        missed=missed * is_real,
        curve=np.zeros((*shape, 0)),
        height=(_heights(coordinates) * is_real)[..., None],
        design=np.ones((len(x), 1)),
        context=law.context,
    )


# ---- ranks ----------------------------------------------------------------------------------------------------------


def ranks_of(truth: Truth, law: BoundLaw, draws: LawDraws, rng: np.random.Generator) -> dict[str, int]:
    """Rank of every true quantity among `NUM_RANKED` of the draws, 0 to `NUM_RANKED`.

    With several domains the quantities are those of the last, which has the fewest runs, and `far_first` of the first.
    """
    last = len(truth.theta) - 1
    quantities = {
        "near": (truth.near[last], _mean_draws(truth, draws, last, _NEAR, rng)),
        "far": (truth.far[last], _mean_draws(truth, draws, last, _FAR, rng)),
    }
    if last:
        quantities["far_first"] = (truth.far[0], _mean_draws(truth, draws, 0, _FAR, rng))
    for p, parameter in enumerate(law.law.parameters(law.context)):
        quantities[parameter.name] = (truth.theta[last, p], draws.theta[:, last, p])
    picked = rng.permutation(len(draws.theta))[:NUM_RANKED]
    ranks = {name: int((values[picked] < true).sum()) for name, (true, values) in quantities.items()}
    level = _level(truth.log_noise, np.log(draws.noise_sd / _SCALE), rng)
    return ranks | {"log_noise": int(level * (NUM_RANKED + 1))}


def _mean_draws(truth: Truth, draws: LawDraws, domain: int, point: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    phi, missed = discrepancy.features(truth.basis, point[None])
    bend = np.exp(BEND * draws.growth * _heights(point))
    mean = draws.law.value_at(draws.theta[:, [domain]], point[None])[:, 0] + bend * (draws.weights[:, domain] @ phi[0])
    return mean + bend * draws.discrepancy_sd * np.sqrt(missed[0]) * rng.standard_normal(len(mean))


def _level(true: float, values: np.ndarray, rng: np.random.Generator) -> float:
    """Share of `values` below `true`, for values that repeat because the fast engine keeps few nodes for the scales.

    Half a node's mass lies to each side of it; within the gap between two nodes the level is drawn at random, since
    a handful of steps can never be uniform.
    """
    nodes, counts = np.unique(values, return_counts=True)
    middle = (np.cumsum(counts) - 0.5 * counts) / counts.sum()
    edges = np.concatenate([[0.0], middle, [1.0]])
    gap = int(np.searchsorted(nodes, true))
    return float(rng.uniform(edges[gap], edges[gap + 1]) * (1.0 - 1e-12))


def summarise(ranks: Mapping[str, Sequence[int]], cell: Mapping[str, Any]) -> list[dict[str, Any]]:
    """One row a quantity: is the rank uniform, and if not, in which direction.

    `shift` is the mean normal score of the truth (positive: the engine answers too low), `spread` the deviation of the
    scores (above one: too sure); in two standard errors they are known to 0.12 and 0.08 with 300 replicates.  `passes`
    is a chi-square test at one per cent over all quantities together (Bonferroni).
    """
    rows = []
    for name, values in ranks.items():
        level = (np.asarray(values) + 0.5) / (NUM_RANKED + 1)
        counts = np.histogram(level, bins=NUM_BINS, range=(0.0, 1.0))[0]
        test = chisquare(counts)
        score = ndtri(level)
        coverage = {f"coverage_{c}": float((abs(level - 0.5) < 0.005 * c).mean()) for c in (50, 90)}
        passes = bool(test.pvalue > SIGNIFICANCE / len(ranks))
        numbers = {"chi_square": test.statistic, "p_value": test.pvalue, "shift": score.mean(), "spread": score.std()}
        row = {**cell, "quantity": name, "replicates": len(level), **{k: float(v) for k, v in numbers.items()}}
        rows.append({**row, **coverage, "passes": passes, "verdict": "uniform" if passes else _direction(score)})
    return rows


def _direction(score: np.ndarray) -> str:
    """In which way scores that should be standard normal are not."""
    error = 1.0 / np.sqrt(len(score))
    words = []
    if abs(score.mean()) > 3.0 * error:
        words.append("answers too low" if score.mean() > 0 else "answers too high")
    if abs(score.std() - 1.0) > 2.0 * error:
        words.append("too sure" if score.std() > 1.0 else "too unsure")
    return " and ".join(words) or "not uniform in shape"


# ---- cells ----------------------------------------------------------------------------------------------------------


def rank_once(law: BoundLaw, num_domains: int, engine: str, seed: int) -> dict[str, int]:
    """Ranks of one replicate.  Raises `UnreliableFit` when NUTS does not converge."""
    rng = np.random.default_rng([seed, num_domains])
    truth = simulate(rng, law, num_domains)
    fit = fit_law(law, truth.data, seed=seed)
    return ranks_of(truth, law, _draws(fit, truth.data, engine, seed), rng)


def _draws(fit: LawFit, data: FitData, engine: str, seed: int) -> LawDraws:
    if engine == "laplace":
        return draw(fit, data, _NUM_DRAWS, np.random.default_rng(seed))
    if engine == "refined":
        return refine(fit, data, _NUM_DRAWS, seed=seed)
    from planner.inference import nuts  # compiles for half a minute

    return nuts.draw(fit, data, _NUM_DRAWS, seed=seed)


def _ranks_of_cell(options: argparse.Namespace, name: str, num_domains: int) -> tuple[dict[str, list[int]], int]:
    """Ranks by quantity, one a replicate, each written as soon as it is there; and how many fits failed."""
    law = bound_law(name)
    path = options.output / f"calibration_ranks_{options.engine}_{name}_{num_domains}.csv"
    known = {row["seed"] for row in _read(path)}
    for seed in range(options.replicates):
        if str(seed) in known:
            continue
        started = time.perf_counter()
        try:
            row: dict[str, Any] = {"seed": seed, "failed": 0, **rank_once(law, num_domains, options.engine, seed)}
        except (UnreliableFit, np.linalg.LinAlgError):
            row = {"seed": seed, "failed": 1}
        print(f"{path.stem} {seed}: {time.perf_counter() - started:.1f} s", file=sys.stderr, flush=True)
        _append(path, row, list(_fields(law, num_domains)))
    every = [row for row in _read(path) if int(row["seed"]) < options.replicates]
    rows = [row for row in every if row["failed"] == "0"]
    return {key: [int(row[key]) for row in rows] for key in _fields(law, num_domains)[2:]}, len(every) - len(rows)


def _fields(law: BoundLaw, num_domains: int) -> tuple[str, ...]:
    more = ("far_first",) if num_domains > 1 else ()
    names = (parameter.name for parameter in law.law.parameters(law.context))
    return ("seed", "failed", "near", "far", *more, *names, "log_noise")


def _read(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def _append(path: Path, row: Mapping[str, Any], fields: Sequence[str]) -> None:
    is_new = not path.exists()
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fields)
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def _write_summary(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Replaces the rows of a cell in the table of all cells."""
    cell = ("engine", "law", "domains")
    new = {tuple(str(row[key]) for key in cell) for row in rows}
    kept = [row for row in _read(path) if tuple(row[key] for key in cell) not in new]
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows([*kept, *({k: _rounded(v) for k, v in row.items()} for row in rows)])


def _rounded(value: Any) -> Any:
    return f"{value:.4g}" if isinstance(value, float) else value


def _line(row: Mapping[str, Any]) -> str:
    return "  ".join(f"{key} {_rounded(value)}" for key, value in row.items())
