"""Answers kept beside the study file, so that a question asked twice is answered at once.

Arrays only, no pickles: a file from somewhere else can be wrong, but it cannot run anything.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

import planner

if TYPE_CHECKING:
    from planner.records import Outcome
    from planner.spec import StudySpec

T = TypeVar("T")

KEPT = 8  # files of each kind: asking the same of two budgets or engines must not evict each other


def remembered(
    spec: StudySpec,
    outcomes: Sequence[Outcome],
    kind: str,
    question: Mapping[str, Any],
    *,
    compute: Callable[[], T],
    to_arrays: Callable[[T], Mapping[str, np.ndarray]],
    from_arrays: Callable[[Mapping[str, np.ndarray]], T],
    warnings: list[str],
) -> T:
    """The answer to a question of `kind` given `outcomes`: read from its file beside the study, else computed and kept.

    `warnings` is told when a file was damaged or could not be written, which costs time and nothing else.
    """
    if spec.path is None:
        return compute()
    path = spec.path.with_name(f"{spec.path.stem}.{kind}-{_key(spec, outcomes, question)}.npz")
    try:
        arrays = load(path)
        if arrays is not None:
            return from_arrays(arrays)
    except (ValueError, KeyError, IndexError, TypeError) as error:
        warnings.append(f"W:cache {path} is damaged and was not used ({error}); the {kind} was computed again")
    answer = compute()
    try:
        save(path, to_arrays(answer))
    except OSError as error:
        warnings.append(f"W:cache the {kind} cannot be kept in {path}: {error}")
    return answer


def _key(spec: StudySpec, outcomes: Sequence[Outcome], question: Mapping[str, Any]) -> str:
    """Hash of all that an answer depends on: a new outcome changes it, a reservation does not."""
    budget = [spec.budget.total, spec.budget.per_run_max]  # they bound the generated designs
    told = [dataclasses.asdict(outcome) for outcome in outcomes]
    limits = [limit.model_dump() for limit in spec.limits]  # so do they, and recipes keep to them
    content = [planner.__version__, spec.digest, spec.seed, budget, limits, dict(question), told]
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


def values_to_arrays(values: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Plain values as one array of text; `values_from_arrays` is the inverse."""
    return {"values": np.array(json.dumps(values))}


def values_from_arrays(arrays: Mapping[str, np.ndarray]) -> dict[str, Any]:
    """The values that `values_to_arrays` wrote."""
    values: dict[str, Any] = json.loads(str(arrays["values"]))
    return values


def load(path: Path) -> dict[str, np.ndarray] | None:
    """The arrays in `path`, None where there is no file.  Raises `ValueError` for a file that is not whole."""
    try:
        # Opened here because numpy leaves the file open when it is not whole.
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(str(error)) from error


def save(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes `path` as a whole, and forgets all but the newest files beside it.  Raises `OSError`."""
    handle, temporary = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".new", dir=path.parent)
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, allow_pickle=False, **arrays)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    finally:
        Path(temporary).unlink(missing_ok=True)
    pattern = path.name.rpartition("-")[0] + "-*.npz"
    others = sorted(path.parent.glob(pattern), key=_age)
    for old in others[KEPT:]:
        with contextlib.suppress(OSError):
            old.unlink()


def _age(path: Path) -> float:
    try:
        return -path.stat().st_mtime
    except OSError:
        return 0.0
