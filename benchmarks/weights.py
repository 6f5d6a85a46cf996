"""`python -m benchmarks weights`: which weights of the laws predict hidden targets best, decided on recorded runs.

Every law is fitted to the same runs once; all schemes only mix its predictions with other weights, so that they are
compared on equal terms.  Runs are the whole pool (passive) or those of a ladder of costs under a budget.
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks import cells
from benchmarks.active import buy_until_done, open_desk
from benchmarks.policies import ladder
from benchmarks.problems import Problem, load_problem, scenario_names
from benchmarks.score import score
from planner import inference
from planner.inference import prequential
from planner.inference import weights as law_weights

_DRAWS_A_LAW = 300
_PRIOR_BLOCKS = 1.0  # of equal weights, for stacking
COLUMNS = ("scenario", "budget", "seed", "scheme", "r2", "coverage_50", "coverage_90", "log_score", "num_targets")


class LawPredictions(NamedTuple):
    """What each of K laws says at the targets, for one response."""

    names: Sequence[str]
    draws: np.ndarray  # (K, S, T) responses of new runs
    points: np.ndarray  # (K, S, T) mean responses
    evidence: np.ndarray  # (K,)
    rungs: float  # distinct half-decades of cost over runs
    ahead: np.ndarray  # (K, B) log density of dearer runs before they were used, summed over scale rungs


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of this command."""
    parser.add_argument("--corpus", type=Path, required=True, help="folder with manifest.toml and the parquet files")
    parser.add_argument("--scenario", nargs="*", default=[], help="names; all if none is given")
    parser.add_argument("--budget", type=float, nargs="*", default=[1.0], help="shares of the pool's cost; 1 is all")
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--output", type=Path, help="CSV file to append to and to resume from")


def main(options: argparse.Namespace) -> int:
    """Scores every scheme on every scenario that `--output` does not hold yet, then prints means."""
    names = cells.choose(options.scenario, scenario_names(options.corpus))
    table = cells.Table(options.output, columns=COLUMNS, key=COLUMNS[:4])
    for name, budget, seed in itertools.product(names, options.budget, range(options.seeds)):
        cell = {"scenario": name, "budget": budget, "seed": seed}
        if not table.missing(cell | {"scheme": scheme} for scheme in SCHEMES):
            continue
        problem = load_problem(options.corpus, name)
        for row in _compare(problem, _runs(problem, budget, seed), seed):
            table.add(cell | row, line=_line)
    _summary(table.rows)
    return 0


def _line(row: cells.Row) -> str:
    return (
        f"{row['scenario']:16s} {row['budget']:5.2f} seed {row['seed']} {row['scheme']:16s} r2 {row['r2']:6.3f}"
        f"  cover {row['coverage_50']:.2f} {row['coverage_90']:.2f}  log score {row['log_score']:.3f}"
    )


def _runs(problem: Problem, budget: float, seed: int) -> np.ndarray:
    if budget >= 1.0:
        return np.arange(len(problem.pool))
    desk = open_desk(problem, fraction=budget, scope="group", rule="peer", seed=seed)
    buy_until_done(desk, ladder, max_steps=1)
    return np.array(desk.bought)


def _compare(problem: Problem, rows: np.ndarray, seed: int) -> Iterator[dict[str, float | str]]:
    known = [_predictions(problem, rows, y, seed) for y in range(problem.num_responses)]
    for scheme, weigh in SCHEMES.items():
        points, draws = [], []
        for one in known:
            weight = weigh(one)
            counts = np.floor(weight * 1000.0 + 0.5).astype(int).clip(0, 1000)
            rng = np.random.default_rng(seed)
            picks = [rng.integers(0, one.draws.shape[1], n) for n in counts]
            means = np.concatenate([one.points[k][picks[k]] for k in range(len(counts))])
            middle = np.median(means, axis=0)
            points.append(np.median(np.median(one.points, axis=1), axis=0) if scheme == "median" else middle)
            draws.append(np.concatenate([one.draws[k][picks[k]] for k in range(len(counts))]))
        most = max(len(d) for d in draws)
        even = [d[np.linspace(0, len(d) - 1, most).astype(int)] for d in draws]
        scores = score(problem.target_responses, np.stack(even, -1), np.stack(points, -1), problem.targets.domain)
        yield {
            "scheme": scheme,
            "r2": scores.r2,
            "coverage_50": scores.coverage_50,
            "coverage_90": scores.coverage_90,
            "log_score": scores.log_score,
            "num_targets": int(np.isfinite(problem.target_responses).sum()),
        }


def _fit(problem: Problem, rows: np.ndarray, response: int, seed: int) -> inference.StudyPosterior:
    """A posterior with the same number of draws of every law."""
    spec = problem.specs[response]
    posterior = inference.fit_study(
        spec, problem.outcomes(rows, response), problem.pool, problem.targets, num_draws=0, seed=seed
    )
    ready = inference.prepare(spec, problem.outcomes(rows, response), problem.pool, problem.targets)
    parts = [inference.draw(fit, ready.data, _DRAWS_A_LAW, np.random.default_rng(seed)) for fit in posterior.fits]
    return dataclasses.replace(posterior, parts=parts)


def _predictions(problem: Problem, rows: np.ndarray, response: int, seed: int) -> LawPredictions:
    posterior = _fit(problem, rows, response, seed)
    num_laws = len(posterior.parts)
    log_cost = np.log(problem.pool.cost[rows[np.isfinite(problem.pool_responses[rows, response])]])
    at = problem.targets
    return LawPredictions(
        names=posterior.law_names,
        draws=posterior.response_draws(at.domain, at.x).reshape(num_laws, _DRAWS_A_LAW, -1),
        points=posterior.mean_draws(at.domain, at.x).reshape(num_laws, _DRAWS_A_LAW, -1),
        evidence=np.array([fit.log_evidence for fit in posterior.fits]),
        rungs=min(1.0, law_weights.num_rungs(log_cost) / len(log_cost)),
        ahead=_ahead(problem, rows, response, seed, num_laws),
    )


def _ahead(problem: Problem, rows: np.ndarray, response: int, seed: int, num_laws: int) -> np.ndarray:
    """Log densities (K, B) of the next dearer runs under each law, a rung of cost counting once."""
    y = problem.pool_responses[:, response]
    rows = rows[np.isfinite(y[rows])]
    rows = rows[np.argsort(problem.pool.cost[rows], kind="stable")]
    blocks = []
    for first, last in prequential.blocks(len(rows)):
        posterior = _fit(problem, rows[:first], response, seed)
        table = problem.pool.take(rows[first:last])
        draws = posterior.response_draws(table.domain, table.x).reshape(num_laws, _DRAWS_A_LAW, -1)
        density = np.stack([prequential.log_density(y[rows[first:last]], one) for one in draws])
        blocks.append(density.mean(axis=1) * law_weights.num_rungs(np.log(table.cost)))
    return np.array(blocks).T.reshape(num_laws, -1)


def _stacking(one: LawPredictions) -> np.ndarray:
    """Weights that maximise the log density of the dearer runs under the mixture, one rung as one observation."""
    num_laws, num_blocks = one.ahead.shape
    weight = np.full(num_laws, 1.0 / num_laws)
    if not num_blocks:
        return weight
    density = np.exp(one.ahead - one.ahead.max(axis=0))
    for _ in range(200):
        share = weight[:, None] * density
        share = share / share.sum(axis=0)
        weight = (share.sum(axis=1) + _PRIOR_BLOCKS / num_laws) / (num_blocks + _PRIOR_BLOCKS)
    return weight


SCHEMES: Mapping[str, Callable[[LawPredictions], np.ndarray]] = {
    "evidence": lambda one: law_weights.floored(one.evidence),
    "rungs": lambda one: law_weights.floored(one.rungs * one.evidence),
    "rungs_half": lambda one: law_weights.floored(one.rungs**0.5 * one.evidence),
    "rungs_3/4": lambda one: law_weights.floored(one.rungs**0.75 * one.evidence),
    "uniform": lambda one: np.full(len(one.evidence), 1.0 / len(one.evidence)),
    "median": lambda one: np.full(len(one.evidence), 1.0 / len(one.evidence)),
    "stacking": _stacking,
    "prequential": lambda one: law_weights.floored(one.ahead.sum(axis=1)),
    "rungs_3/4_ahead": lambda one: law_weights.floored(one.rungs**0.75 * one.evidence + one.ahead.sum(axis=1)),
    "rungs_ahead": lambda one: law_weights.floored(one.rungs * one.evidence + one.ahead.sum(axis=1)),
}


def _summary(rows: Sequence[cells.Row]) -> None:
    for budget in sorted({float(row["budget"]) for row in rows}):
        for scheme in SCHEMES:
            mine = [row for row in rows if row["scheme"] == scheme and float(row["budget"]) == budget]
            columns = {c: np.array([float(row[c]) for row in mine]) for c in COLUMNS[4:]}
            weight = columns["num_targets"] / columns["num_targets"].sum()
            print(
                f"budget {budget:4.2f} {scheme:18s} r2 mean {columns['r2'].mean():.3f} median"
                f" {np.median(columns['r2']):.3f}  coverage {weight @ columns['coverage_50']:.3f}"
                f" {weight @ columns['coverage_90']:.3f}  log score {columns['log_score'].mean():.3f}"
            )
