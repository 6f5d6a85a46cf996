"""The public layout of the ScaleBench and SLDBench tasks: a folder each, with `train-*.parquet` and `test-*.parquet`.

Rows to train on are the pool, rows to test on the targets.  The files hold the inputs, the responses and a column
`group`; what a run costs and what the columns mean is written down here, as the tasks define it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd

from benchmarks.problems import Problem, make_problem
from planner.errors import InputError

_SUFFIX = "_scaling_law"


class Task(NamedTuple):
    """Columns of one task."""

    axes: Mapping[str, str]  # column -> what it is, in the words that roles are read from
    responses: Sequence[str]
    cost: Sequence[tuple[float, Sequence[str]]]  # terms: a coefficient and the columns that it is multiplied by
    unit: str = "nats"  # of the responses
    lower_is_better: bool = True


_SHARES = {f"proportion_domain_{i}": f"share of domain {i} (the five sum to 1)" for i in range(1, 6)}

TASKS: Mapping[str, Task] = {
    "lr_bsz": Task(
        {
            "lr": "peak learning rate",
            "bsz": "batch size",
            "data_size": "training tokens",
            "non_embedding_param_size": "parameters",
        },
        ("lm_loss",),
        ((6.0, ("non_embedding_param_size", "data_size")),),
    ),
    "domain_mixture": Task(_SHARES, tuple(f"loss_domain_{i}" for i in range(1, 6)), ((1.0, ()),)),
    "vocab": Task(
        {"non_vocab_parameters": "parameters", "vocab_size": "vocabulary size", "num_characters": "characters"},
        ("unigram_normalized_loss",),
        ((1.0, ("non_vocab_parameters", "num_characters")),),
    ),
    "parallel": Task(
        {"num_params": "parameters", "parallel_size": "parallel streams"}, ("loss",), ((1.0, ("num_params",)),)
    ),
    "moe": Task(
        {"num_experts": "experts per routed layer", "dense_parameter_count": "parameters"},
        ("loss_validation",),
        ((1.0, ("dense_parameter_count", "num_experts")),),
    ),
    "data_constrained": Task(
        {"unique_tokens": "distinct training tokens", "params": "parameters", "tokens": "tokens"},
        ("loss",),
        ((6.0, ("params", "tokens")),),
    ),
    "sparsity": Task(
        {"P": "total over active parameters", "N_active": "active parameters"},
        ("loss",),
        ((6.0, ("N_dense", "D1")), (6.0, ("N_active", "D2"))),
    ),
    "farseer": Task({"N": "parameters", "D": "tokens"}, ("loss",), ((6.0, ("N", "D")),)),
    "sft": Task({"sft_data_size": "examples"}, ("sft_loss",), ((1.0, ("sft_data_size",)),)),
    "easy_question": Task(
        {"flops": "pretraining compute"},
        ("brier_score",),
        ((1.0, ("flops",)),),
        unit="negative Brier score",
        lower_is_better=False,
    ),
    "chinchilla": Task({"N": "parameters", "D": "tokens"}, ("loss",), ((6.0, ("N", "D")),)),
}


def scenario_names(corpus: Path) -> list[str]:
    """The tasks that a folder holds; empty if it has another layout."""
    return [name for name in TASKS if _files(corpus, name, "train") and _files(corpus, name, "test")]


def load_problem(corpus: Path, name: str) -> Problem:
    """Reads one task.  Raises `InputError` for a column that is missing."""
    task = TASKS[name]
    frame = pd.concat(
        [
            pd.read_parquet(file).assign(split=split)
            for split, part in (("pool", "train"), ("target", "test"))
            for file in _files(corpus, name, part)
        ],
        ignore_index=True,
    )
    needed = {*task.axes, *task.responses, *(column for _, columns in task.cost for column in columns)}
    missing = sorted(needed - set(frame.columns))
    if missing:
        raise InputError(f"{name}: {corpus} lacks the columns {', '.join(missing)}; download the tables again")
    frame["cost"] = sum(
        coefficient * np.prod([frame[column].to_numpy(dtype=np.float64) for column in columns], axis=0)
        for coefficient, columns in task.cost
    )
    if "group" not in frame:
        frame["group"] = "all_data"
    axes: list[dict[str, Any]] = [{"name": key, "meaning": text, "unit": text} for key, text in task.axes.items()]
    responses = [{"name": key, "unit": task.unit, "lower_is_better": task.lower_is_better} for key in task.responses]
    return make_problem(name, frame, axes=axes, responses=responses)


def _files(corpus: Path, name: str, part: str) -> list[Path]:
    return sorted(file for folder in (name + _SUFFIX, name) for file in corpus.glob(f"**/{folder}/{part}-*.parquet"))
