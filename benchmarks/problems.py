"""Scenarios as problems: what a planner may see, what it may buy, and what is hidden from it."""

from __future__ import annotations

import dataclasses
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from planner.records import Design, DesignTable, Outcome, RunState
from planner.spec import StudySpec, parse_study_spec

SCALEBENCH = (
    "lr_bsz",
    "domain_mixture",
    "vocab",
    "parallel",
    "moe",
    "data_constrained",
    "sparsity",
    "farseer",
)
SLDBENCH_V1 = (
    "data_constrained",
    "domain_mixture",
    "easy_question",
    "lr_bsz",
    "moe",
    "parallel",
    "sft",
    "vocab",
)

# Tasks that are defined on a part of the recorded columns; the others only enter the cost.
_TASK_AXES = {"sparsity": ("P", "N_active")}

# Scenarios whose rows are checkpoints (the corpus says so): rows that differ in this axis alone are one training run.
_CHECKPOINT_AXIS = {
    "vocab": "num_characters",
    "gemstones": "tokens",
    "pythia_suite": "tokens",
    "rl_gsm8k": "step",
}

# What a user would declare as the role of an axis, read from the words that describe it; the first match counts.
_ROLE_WORDS = (
    ("learning rate", "learning_rate"),
    ("warm-up", "learning_rate"),
    ("batch size", "batch_size"),
    ("vocabulary size", "vocabulary"),
    ("experts per routed layer", "experts"),
    ("experts used per token", None),
    ("share of domain", "mixture"),
    ("share of blocks", "routing_frequency"),
    ("parallel streams", "streams"),
    ("total over active parameters", "sparsity"),
    ("distinct training tokens", "unique_tokens"),
    ("active parameters", "active_parameters"),
    ("parameters", "parameters"),
    ("size of the", "parameters"),
    ("tokens", "tokens"),
    ("training samples", "tokens"),
    ("characters", "tokens"),
    ("examples", "examples"),
    ("pretraining compute", "compute"),
    ("policy updates", "updates"),
    ("hidden width", "width"),
    ("number of layers", "depth"),
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Problem:
    """One scenario.  C pool rows, T target rows, Y responses."""

    name: str
    specs: Sequence[StudySpec]  # one for each response: they differ in nothing else
    pool: DesignTable
    pool_responses: np.ndarray  # (C, Y), NaN where not recorded
    targets: DesignTable
    target_responses: np.ndarray  # (T, Y)

    @property
    def num_responses(self) -> int:
        return len(self.specs)

    def _training_run(self, row: int) -> str | None:
        axis = _CHECKPOINT_AXIS.get(self.name)
        if axis is None:
            return None
        others = np.array([name != axis for name in self.specs[0].axis_names])
        return repr(self.pool.x[row][others].tolist())

    def outcomes(self, rows: Sequence[int] | np.ndarray, response: int) -> list[Outcome]:
        """Pool rows as finished runs of one response; rows of equal inputs are replicates, told apart by their row."""
        spec = self.specs[response]
        return [
            Outcome(
                run_id=f"row{row}",
                design=Design(
                    domain=spec.domain_names[self.pool.domain[row]],
                    axes=dict(zip(spec.axis_names, map(float, self.pool.x[row]), strict=True)),
                    seed=int(row),
                ),
                state=RunState.COMPLETED,
                response=float(self.pool_responses[row, response]),
                cost=float(self.pool.cost[row]),
                curve=self._training_run(row),
            )
            for row in rows
            if np.isfinite(self.pool_responses[row, response])
        ]


def scenario_names(corpus: Path) -> list[str]:
    """Names of the scenarios of a corpus, in the order of its manifest."""
    return list(_manifest(corpus))


def _manifest(corpus: Path) -> dict[str, Any]:
    with (corpus / "manifest.toml").open("rb") as file:
        return tomllib.load(file)


def load_problem(corpus: Path, name: str) -> Problem:
    """Reads one scenario of a corpus folder (a parquet file and its entry in `manifest.toml`)."""
    entry = _manifest(corpus)[name]
    frame = pd.read_parquet(corpus / entry["file"])
    chosen = _TASK_AXES.get(name)
    axes = [axis for axis in entry["axes"] if chosen is None or axis["name"] in chosen]
    return make_problem(name, frame, axes=axes, responses=entry["responses"])


def load_problems(corpus: Path, names: Sequence[str]) -> Iterator[Problem]:
    """The named scenarios, all if no name is given."""
    for name in names or scenario_names(corpus):
        yield load_problem(corpus, name)


def make_problem(
    name: str, frame: pd.DataFrame, *, axes: Sequence[dict[str, Any]], responses: Sequence[dict[str, Any]]
) -> Problem:
    """A problem from a table with columns group, cost, split, the axes and the responses."""
    frame = frame.assign(group=frame["group"].astype(str))
    pool, targets = frame[frame["split"] == "pool"], frame[frame["split"] == "target"]
    domains = sorted(pool["group"].unique())
    index = {group: i for i, group in enumerate(domains)}
    columns = [axis["name"] for axis in axes]
    specs = [
        parse_study_spec(
            {
                "study": {"name": name},
                "response": _response_section(response, pool),
                "axes": [_axis_section(axis, frame) for axis in axes],
                "domains": [{"name": group} for group in domains],
                "cost": {"unit": "cost", "terms": [{"coefficient": 1.0, "powers": {columns[0]: 1.0}}]},
                "budget": {"total": float(pool["cost"].sum())},
            }
        )
        for response in responses
    ]
    names = [response["name"] for response in responses]

    def table(part: pd.DataFrame) -> DesignTable:
        return DesignTable(
            domain=part["group"].map(index).to_numpy(dtype=np.int64),
            x=part[columns].to_numpy(dtype=np.float64),
            cost=part["cost"].to_numpy(dtype=np.float64),
            row=np.arange(len(part), dtype=np.int64),
        )

    return Problem(
        name=name,
        specs=specs,
        pool=table(pool),
        pool_responses=pool[names].to_numpy(dtype=np.float64),
        targets=table(targets),
        target_responses=targets[names].to_numpy(dtype=np.float64),
    )


def _response_section(response: dict[str, Any], pool: pd.DataFrame) -> dict[str, Any]:
    section: dict[str, Any] = {
        "name": response["name"],
        "goal": "minimise" if response["lower_is_better"] else "maximise",
    }
    if response["unit"] == "share":
        section |= {"lower": 0.0, "upper": 1.0}
    if response["unit"] == "negative Brier score":
        section |= {"upper": 0.0}
    return section


def _axis_section(axis: dict[str, Any], frame: pd.DataFrame) -> dict[str, Any]:
    values = frame[axis["name"]].to_numpy(dtype=np.float64)
    is_share = "sum to 1" in axis["unit"]
    section: dict[str, Any] = {"name": axis["name"], "low": float(values.min()), "high": float(values.max())}
    text = f"{axis['meaning']} {axis['unit']}".lower()
    for words, role in _ROLE_WORDS:
        if words in text:
            if role is not None:
                section["role"] = role
            break
    if is_share:
        section |= {"scale": "linear", "simplex": "mixture"}
    elif values.min() <= 0:
        section["scale"] = "linear"
    return section
