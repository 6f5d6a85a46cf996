"""The posterior of a study, kept beside its file so that a question asked twice is answered at once.

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
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from planner.inference import StudyPosterior
    from planner.records import Outcome
    from planner.spec import StudySpec

KEPT = 4  # files of earlier states: asking the same of two budgets or engines must not evict each other


def posterior_of(
    spec: StudySpec,
    outcomes: Sequence[Outcome],
    *,
    stem: str,
    version: str,
    engine: str,
    num_draws: int,
    warnings: list[str],
) -> StudyPosterior:
    """The posterior given `outcomes`, from a file beside the study where there is one.

    `warnings` is told when a file was damaged or could not be written, which costs time and nothing else.
    """
    from planner import candidates, inference

    key = _key(spec, outcomes, engine=engine, num_draws=num_draws, version=version)
    path = None if spec.path is None else spec.folder / f"{stem}.posterior-{key}.npz"
    try:
        arrays = None if path is None else load(path)
        if arrays is not None:
            return inference.from_arrays(spec, arrays)
    except (ValueError, KeyError, IndexError) as error:
        warnings.append(f"W:cache {path} is damaged and was not used ({error}); the posterior was computed again")
    posterior = inference.fit_study(
        spec,
        outcomes,
        candidates.all_designs(spec),
        candidates.target_points(spec),
        engine=engine,
        num_draws=num_draws,
        seed=spec.seed,
    )
    try:
        if path is not None:
            save(path, posterior.to_arrays())
    except OSError as error:
        warnings.append(f"W:cache the posterior cannot be kept in {path}: {error}")
    return posterior


def _key(spec: StudySpec, outcomes: Sequence[Outcome], *, engine: str, num_draws: int, version: str) -> str:
    """Hash of all that a posterior depends on: a new outcome changes it, a reservation does not."""
    budget = [spec.budget.total, spec.budget.per_run_max]  # they bound the generated designs
    told = [dataclasses.asdict(outcome) for outcome in outcomes]
    text = json.dumps([version, spec.digest, spec.seed, budget, engine, num_draws, told], sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def load(path: Path) -> dict[str, np.ndarray] | None:
    """The arrays in `path`, None where there is no file.  Raises `ValueError` for a file that is not whole."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(str(error)) from error


def save(path: Path, arrays: dict[str, np.ndarray]) -> None:
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
