"""`python -m benchmarks seeds --seeds-dir DIR`: what follows from the printed tables of the seed papers, and what not.

Every number of docs/seed_papers.md about He et al. 2026 is printed by this command; the tables themselves stay outside.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.optimize

from benchmarks import seed_proofs, seed_tables
from benchmarks.seed_tables import number, numbers
from planner.laws.sources import break_even_ratio, peak_ratio
from planner.pooling import pool
from planner.study import Study

AXES = ("environments", "tasks", "trajectories")
_NORMAL_95 = 1.96


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declares the options of this command."""
    parser.add_argument("--seeds-dir", type=Path, required=True, help="folder with the papers' tables as text")
    parser.add_argument("--only", nargs="*", default=[], choices=sorted(PARTS), help="parts; all if none is given")
    parser.add_argument("--output", type=Path, help="JSON file to write")


def main(options: argparse.Namespace) -> int:
    """Computes and prints every part."""
    tables = seed_tables.read_tables(options.seeds_dir)
    found = {}
    for name in options.only or PARTS:
        found[name] = PARTS[name](tables)
        print(f"== {name}")
        print(json.dumps(found[name], indent=1))
    if options.output is not None:
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return 0


# ---- table 8: worlds against structures -----------------------------------------------------------------------------


def worlds_and_structures(tables: dict[int, list[list[str]]]) -> list[dict[str, Any]]:
    """Table 8 under an additive law with the exponents of table 1, under a product, and as a study of the product.

    Errors are in per cent of success, the largest over the printed points; `study_covered` counts printed values
    inside the study's 90 % intervals.
    """
    levels = tables[1]
    exponent_v, exponent_w = numbers(levels[2][3])[0].value, numbers(levels[3][3])[0].value
    header, *rows = tables[8]
    splits = [tuple(v.value for v in numbers(cell)) for cell in header[1:-1]]
    result = []
    for row in rows:
        kept = [i for i, cell in enumerate(row[1 : 1 + len(splits)]) if numbers(cell)]
        worlds, structures = np.array([splits[i] for i in kept]).T
        printed = [number(row[1 + i]) for i in kept]
        share = np.array([p.value for p in printed]) / 100
        terms = np.column_stack([np.ones(len(kept)), worlds**-exponent_w, structures**-exponent_v])
        found, _ = scipy.optimize.nnls(terms, -np.log(share))
        additive = np.abs(np.exp(-terms @ found) - share).max()
        log_terms = np.column_stack([np.ones(len(kept)), np.log(worlds)])  # W V is fixed: one slope is all there is
        product = np.exp(-np.exp(log_terms @ np.linalg.lstsq(log_terms, np.log(-np.log(share)), rcond=None)[0]))
        study = _study_of_worlds(worlds, structures, printed)
        result.append(
            {
                "domain": row[0],
                "floor": found[0],
                "worlds": found[1],
                "structures": found[2],
                "additive_error": 100 * additive,
                "product_error": 100 * float(np.abs(product - share).max()),
                "printed_half_width": max(p.half_width or 0.0 for p in printed),
                **study,
            }
        )
    return result


def _study_of_worlds(worlds: np.ndarray, structures: np.ndarray, printed: Sequence[Any]) -> dict[str, float]:
    """The same points told to a study with the axes worlds and structures, laws of its own choosing."""
    axes = [{"name": name, "role": name, "low": 1, "high": 64} for name in ("worlds", "structures")]
    document = {
        "study": {"name": "worlds"},
        "response": {"name": "success", "link": "neg_log", "expect": [0.1, 0.5]},
        "axes": axes,
        "cost": {"terms": [{"coefficient": 1, "powers": {"worlds": 1, "structures": 1}}]},
        "budget": {"total": 1e4},
        "laws": {"use": ["sum_of_powers"]},
    }
    points = [{"worlds": w, "structures": v} for w, v in zip(worlds.tolist(), structures.tolist(), strict=True)]
    with Study.from_spec(document) as study:
        for point, value in zip(points, printed, strict=True):
            study.attach(point, value.value / 100, se=(value.half_width or 0.0) / 100 / _NORMAL_95)
        table = study.predict(points)
    truth = np.array([p.value for p in printed]) / 100
    inside = (table["q05"].to_numpy() <= truth) & (truth <= table["q95"].to_numpy())
    return {"study_error": 100 * float(np.abs(table["median"] - truth).max()), "study_covered": float(inside.mean())}


# ---- tables 2 and 13: exponents pooled ------------------------------------------------------------------------------


def exponents(tables: dict[int, list[list[str]]]) -> dict[str, Any]:
    """The printed exponents of tables 2 and 13 pooled over model, algorithm and domain, each axis by itself.

    `ordered` is P(environments > tasks > trajectories); `left_out` the 90 % intervals of each printed setting
    predicted from all others, printed error included, and how many of them hold the printed value.
    """
    settings = _settings(tables)
    factors = [setting["factors"] for setting in settings]
    values, errors = (np.array([s[key] for s in settings]) for key in ("values", "errors"))
    pooled = [pool(values[:, a], errors[:, a], factors, seed=a) for a in range(len(AXES))]
    own = np.stack([p.settings for p in pooled])
    mean, new = np.stack([p.mean for p in pooled]), np.stack([p.new for p in pooled])
    inside, predicted = [], []
    rng = np.random.default_rng(0)
    for k, setting in enumerate(settings):
        line: dict[str, Any] = {"setting": setting["name"]}
        for a, axis in enumerate(AXES):
            hidden = np.where(np.arange(len(settings)) == k, np.inf, errors[:, a])
            draws = pool(values[:, a], hidden, factors, seed=a).settings[:, k]
            low, middle, high = np.quantile(draws + errors[k, a] * rng.standard_normal(len(draws)), [0.05, 0.5, 0.95])
            line[axis] = {"printed": values[k, a], "median": middle, "q05": low, "q95": high}
            inside.append(low <= values[k, a] <= high)
        predicted.append(line)
    return {
        "settings": [{"setting": s["name"], "ordered": _ordered(own[:, :, k])} for k, s in enumerate(settings)],
        "ordered_on_average": _ordered(mean),
        "ordered_in_all_settings": float(((own[0] > own[1]) & (own[1] > own[2])).all(axis=1).mean()),
        "ordered_in_a_new_setting": _ordered(new),
        "mean": {axis: _interval(draws) for axis, draws in zip(AXES, mean, strict=True)},
        "left_out": predicted,
        "left_out_covered": f"{sum(inside)} of {len(inside)}",
    }


def _settings(tables: dict[int, list[list[str]]]) -> list[dict[str, Any]]:
    rows, model = [], ""
    for row in tables[2][1:]:
        model = row[0] or model
        rows.append((f"{model} {row[1]} {row[2]}", {"model": model, "algorithm": row[1], "domain": row[2]}, row[3:6]))
    for row in tables[13][2:]:  # the first line repeats a setting of table 2
        new_domain = "Search" in row[0]
        factors = {
            "model": "Qwen3-8B" if new_domain else row[0].split(" (")[0],
            "algorithm": "GRPO",
            "domain": "Search" if new_domain else rows[0][1]["domain"],
        }
        rows.append((row[0], factors, row[1:4]))
    settings = []
    for name, factors, cells in rows:
        found = [number(cell) for cell in cells]
        settings.append(
            {
                "name": name,
                "factors": factors,
                "values": [f.value for f in found],
                "errors": [(f.half_width or 0.0) / _NORMAL_95 for f in found],
            }
        )
    return settings


def _ordered(draws: np.ndarray) -> float:
    return float(((draws[0] > draws[1]) & (draws[1] > draws[2])).mean())


def _interval(draws: np.ndarray) -> dict[str, float]:
    return dict(zip(("median", "q05", "q95"), map(float, np.quantile(draws, [0.5, 0.05, 0.95])), strict=True))


# ---- tables 4, 12: slopes that do not agree -------------------------------------------------------------------------


def slopes(tables: dict[int, list[list[str]]]) -> dict[str, Any]:
    """Local slopes of -log p in the calibration sweeps (table 4), and what the slopes of table 12 would mean for it."""
    calibration = []
    for row, axis in zip(tables[4][1:], AXES, strict=True):
        amounts = [float(text.strip().removesuffix("k")) for text in row[1].split("/")]
        loss = -np.log(np.array([float(text) for text in row[2].split("/")]) / 100)
        raw = -np.diff(np.log(loss)) / np.diff(np.log(amounts))
        calibration.append({"axis": axis, "raw_slopes": raw.tolist(), "free_exponent": _free_exponent(amounts, loss)})
    segments = [[number(cell).value for cell in row[1:]] for row in tables[12][1:]]
    ranges = [_span(row[1]) for row in tables[11][1:]]
    needed = [
        {"axis": axis, "mean_slope": float(np.mean(s)), "factor_in_loss": float(span ** np.mean(s))}
        for axis, s, span in zip(AXES, segments, ranges, strict=True)
    ]
    return {"calibration": calibration, "table_12": needed}


def _span(cell: str) -> float:
    low, high = (v.value for v in numbers(cell)[:2])
    return high / low


def _free_exponent(amounts: Sequence[float], loss: np.ndarray) -> float:
    """Exponent of floor + A x^-a by least squares, floor and A >= 0 solved exactly for each a."""
    x = np.asarray(amounts) / amounts[0]

    def misfit(a: float) -> float:
        return float(scipy.optimize.nnls(np.column_stack([np.ones(len(x)), x**-a]), loss)[1])

    grid = np.linspace(0.02, 4.0, 400)
    return float(grid[int(np.argmin([misfit(a) for a in grid]))])


# ---- tables 3, 17: sources ------------------------------------------------------------------------------------------


def collapse(tables: dict[int, list[list[str]]]) -> list[dict[str, Any]]:
    """The bend of kappa(r) from the printed peak and baseline crossing (table 17), and contradictions in the tables."""
    crossing, baseline, peak = (row[1:] for row in tables[17][1:])
    result = []
    for k, axis in enumerate(AXES):
        even, top, fallen = number(baseline[k]).value, number(peak[k]).value, number(crossing[k]).value

        def miss(bend: float, even: float = even, top: float = top) -> float:
            return float(np.log(peak_ratio(np.array([0.0, np.log(np.log(even)), bend])) / top))

        bend = scipy.optimize.brentq(miss, -0.89, 2.9)
        theta = np.array([0.0, np.log(np.log(even)), bend])
        result.append(
            {
                "axis": axis,
                "source": tables[17][0][1 + k],
                "break_even": float(break_even_ratio(theta)),
                "peak": float(peak_ratio(theta)),
                "bend": float(bend),
                "collapse_printed": fallen,
                "collapse_after_break_even": fallen > even,  # a falling curve crosses 1.00 before 0.95
            }
        )
    return result


# ---- SLDBench v2: our own results, for its abstract's numbers to stand beside ---------------------------------------

_RESULTS = Path(__file__).parent / "results"


def active_discovery(tables: dict[int, list[list[str]]]) -> dict[str, Any]:
    """Median over scenarios of our mean R2, passive and active, from the committed result files; no table is read."""
    rows = [row for name in ("passive", "scalebench_peer", "twenty") for row in _rows(_RESULTS / f"{name}.csv")]
    cells: dict[tuple[str, str], dict[str, list[float]]] = {}
    for row in rows:
        if row["policy"] == "passive" or (row["policy"] == "ours" and row["budget"] in ("0.01", "0.05", "0.1")):
            where = (row["policy"], row["budget"])
            cells.setdefault(where, {}).setdefault(row["scenario"], []).append(max(float(row["r2"]), -1.0))
    found = {}
    for (policy, budget), scenarios in sorted(cells.items()):
        means = [float(np.mean(values)) for values in scenarios.values()]
        found[f"{policy} {budget}"] = {"scenarios": len(means), "median_r2": float(np.median(means))}
    return found


def _rows(file: Path) -> list[dict[str, str]]:
    with file.open(newline="", encoding="utf-8") as stream:
        return list(csv.DictReader(stream))


PARTS: dict[str, Callable[[dict[int, list[list[str]]]], Any]] = {
    "table_8": worlds_and_structures,
    "tables_2_13": exponents,
    "tables_4_12": slopes,
    "tables_3_17": collapse,
    "tables_19_21": seed_proofs.recipes,
    "tables_5_10_11": seed_proofs.sweeps,
    "sldbench_v2": active_discovery,
}
