"""`planner demo`: a whole study on a hidden truth, then how close the answers came to it."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.errors import InputError
from planner.report import live, text

if TYPE_CHECKING:
    from planner.study import Study

RECIPE_BUDGET = 1e22
MAX_RUNS = 30  # a demonstration is short
# Points beyond every run that the budget buys, up to ten times the largest model.
POINTS = ({"N": 1e9, "D": 2e10}, {"N": 2e9, "D": 1e11}, {"N": 1e10, "D": 2e11})

STUDY = """\
# The study of `planner demo`: pilot runs of language models on three corpora, answered by a simulator that knows a
# law of the Chinchilla family for each, with noise.  The planner does not see it.
[study]
name = "demo"
seed = {seed}

[response]
name = "loss"
unit = "nats per token"
lower = 0.0
expect = [1.5, 6.0]

[[axes]]
name = "N"
unit = "parameters"
role = "parameters"
low = 3e7
high = 1e9

[[axes]]
name = "D"
unit = "tokens"
role = "tokens"
low = 6e8
high = 2e10

[[domains]]
name = "web"

[[domains]]
name = "code"

[[domains]]
name = "books"

[cost]
unit = "FLOP"
terms = [{{ coefficient = 6, powers = {{ N = 1, D = 1 }} }}]

[budget]
total = 4e19
per_run_max = 4e18

[[targets]]
kind = "recipe"
budgets = [1e22]

[[targets]]
kind = "prediction"
points = [{points}]

[pool]
size = 1500

[backend]
kind = "simulator"
truth = "chinchilla"
domain_seed = {seed}
slots = 6
"""


def run(folder: Path | None, *, seed: int) -> None:
    """Runs the demonstration in `folder`, by default a new temporary one, and prints what it shows."""
    from backends import open_backend
    from planner import loop
    from planner.study import Study

    started_at = time.monotonic()
    folder = Path(tempfile.mkdtemp(prefix="planner-demo-")) if folder is None else folder
    path = folder / "demo.toml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            points = ", ".join(f"{{ N = {point['N']:g}, D = {point['D']:g} }}" for point in POINTS)
            path.write_text(STUDY.format(seed=seed, points=points), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}; choose another --dir") from None
    with Study.open(path) as study:
        backend = open_backend(study.spec.backend.kind, loop.backend_options(study.spec), folder)
        print(f"study {path}: three domains, runs of up to 4e18 FLOP, 4e19 FLOP in all; the truth is hidden")
        with live.watching(study.spec, study.state) as watch:
            ended = study.run(backend, watch=watch, max_runs=MAX_RUNS)
        print(f"\nstopped: {ended.stop.message}", *text.status(study.status()), sep="\n")
        _show_predictions(study, backend)
        _show_recipes(study, backend)
    seconds = time.monotonic() - started_at
    command = sys.argv[0] if Path(sys.argv[0]).name == "planner" else "planner"
    print(f"\n{seconds:.0f} s. Look further: {command} status {path}; {command} recipe {path} --budget 1e23")


def _show_predictions(study: Study, truth: Any) -> None:
    """Predictions beyond the runs against the truth, and how many 90 % intervals hold it."""
    print("\nworking out predictions beyond all runs", file=sys.stderr)
    columns = study.prediction(POINTS)["columns"]
    rows, inside = [], 0
    for number, domain in enumerate(columns["domain"]):
        point = {name: columns[name][number] for name in ("N", "D")}
        true = float(truth.truth_mean(domain, point))
        low, high = columns["q05"][number], columns["q95"][number]
        inside += low <= true <= high
        rows.append(
            (
                domain,
                text.axes(point),
                text.number(columns["median"][number]),
                text.interval(low, high),
                text.number(true),
                "inside" if low <= true <= high else "outside",
            )
        )
    print("\n".join(["", *text.columns(("domain", "at", "predicted loss", "90 % interval", "truth", ""), rows)]))
    print(f"{inside} of {len(rows)} intervals of 90 % hold the truth")


def _show_recipes(study: Study, truth: Any) -> None:
    """The recipe of every domain against the true optimum."""
    print("\nworking out recipes", file=sys.stderr)
    rows = []
    for domain in study.spec.domain_names:
        answer = study.recipe(RECIPE_BUDGET, domain)
        joint = answer.joint["axes"]
        best = _true_optimum(truth, domain)
        reached, possible = (float(truth.truth_mean(domain, point)) for point in (joint, best))
        row = answer.summary.set_index("axis").loc["N"]
        rows.append(
            (
                domain,
                text.axes(joint),
                text.interval(row["q05"], row["q95"]),
                text.axes(best),
                f"{reached:.4f}",
                f"{possible:.4f}",
            )
        )
    header = ("domain", "recipe", "90 % of N", "true optimum", "loss of the recipe", "of the optimum")
    print("\n".join([f"\nrecipes for {RECIPE_BUDGET:g} FLOP", *text.columns(header, rows)]))


def _true_optimum(truth: Any, domain: str) -> dict[str, float]:
    """The best N and D under 6 N D = budget, by looking at many."""
    num_parameters = np.geomspace(1e8, 1e12, 20001)
    num_tokens = RECIPE_BUDGET / (6.0 * num_parameters)
    index = int(np.argmin(truth.truth_mean(domain, {"N": num_parameters, "D": num_tokens})))
    return {"N": float(num_parameters[index]), "D": float(num_tokens[index])}
