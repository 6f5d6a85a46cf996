"""Where runs happen.  A backend has three verbs (`planner.execution.Backend`) and knows nothing of statistics."""

import importlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.execution import Backend

KINDS: Mapping[str, tuple[str, str]] = {
    "command": ("backends.local", "Command"),
    "local": ("backends.local", "Local"),
    "ray": ("backends.ray_cluster", "Ray"),
    "replay": ("backends.replay", "Replay"),
    "simulator": ("backends.simulator", "Simulator"),
    "slurm": ("backends.slurm", "Slurm"),
}
# Options of the loop and of other backends: a backend that knows all its own lets them pass, so that a study can
# change its backend by one word.
FOREIGN = frozenset(
    {"trainer", "command", "gpus", "threads_per_slot", "grace_seconds", "env"}
    | {"deadline_seconds", "max_overrun", "predicted_cost", "memory_gb"}
)


def open_backend(kind: str, options: Mapping[str, Any], study_dir: Path) -> "Backend":
    """The backend `kind` with the options of the study's [backend] section.

    Relative paths in the options start at `study_dir`.  Raises `BackendError` for an unknown kind or a wrong option.
    """
    # Trainers import `backends.jobfile`, and with it this file, where `planner` need not be installed.
    from planner.execution import BackendError

    if kind not in KINDS:
        known = ", ".join(sorted(KINDS))
        raise BackendError(f"backend.kind is {kind!r}, which is unknown. Available: {known}")
    module_name, class_name = KINDS[kind]
    backend_class = getattr(importlib.import_module(module_name), class_name)
    chosen = {name: value for name, value in options.items() if name != "kind"}
    backend: Backend = backend_class(chosen, Path(study_dir))
    return backend
