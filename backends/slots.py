"""Named slots of this machine: how many runs at once, and what environment each gets."""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from planner.execution import BackendError


def number(options: Mapping[str, Any], name: str, default: float) -> float:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < float("inf"):
        raise BackendError(f"backend.{name} is {value!r}; it must be a number that is not negative")
    return float(value)


def whole(options: Mapping[str, Any], name: str, default: int) -> int:
    value = options.get(name, default)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise BackendError(f"backend.{name} is {value!r}; it must be a whole number, at least 1")
    return value


def checkout() -> Path | None:
    """The folder from which this package is imported where it is not installed: workers must be told of it."""
    root = Path(__file__).resolve().parents[1]
    return None if root.name in ("site-packages", "dist-packages") else root


def worker_environment(options: Mapping[str, Any], inherited: str | None) -> dict[str, str]:
    """What `env` in the options of a job and a checkout add to a worker's environment.

    Args:
        inherited: PYTHONPATH of the process that starts the worker.
    """
    environment = {str(name): str(value) for name, value in (options.get("env") or {}).items()}
    if (root := checkout()) is not None:
        known = environment.get("PYTHONPATH", inherited)
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [known, str(root)]))
    return environment


def _num_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _visible_gpus() -> list[str]:
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() not in ("", "-1")]
    found = [re.fullmatch(r"nvidia(\d+)", path.name) for path in Path("/dev").glob("nvidia[0-9]*")]
    return sorted((match[1] for match in found if match), key=int)


def slots_from(options: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    """Slot name -> environment variables of the runs in it."""
    slots, gpus, cores = options.get("slots"), options.get("gpus"), _num_cores()
    if slots is not None and gpus is not None:
        raise BackendError(f"backend.slots is {slots!r} and backend.gpus is {gpus!r}; give one (each GPU is one slot)")
    if slots is not None and (isinstance(slots, bool) or not isinstance(slots, int) or slots < 1):
        raise BackendError(f"backend.slots is {slots!r}; it must be a whole number, at least 1")
    if gpus is None:
        gpus = _visible_gpus() if slots is None else []
    elif isinstance(gpus, str) or not isinstance(gpus, Sequence) or not gpus:
        raise BackendError(f'backend.gpus is {gpus!r}; it must be a list such as [0, 1] or ["MIG-..."]')
    environments: dict[str, dict[str, str]] = {}
    for gpu in gpus:
        repeats = sum(env["CUDA_VISIBLE_DEVICES"] == str(gpu) for env in environments.values())
        name = f"gpu{gpu}" + (f".{repeats + 1}" if repeats else "")
        environments[name] = {"CUDA_VISIBLE_DEVICES": str(gpu)}
    if not gpus:
        environments = {f"cpu{index}": {} for index in range(slots or cores)}
    shared_out = max(1, cores // len(environments))
    threads = int(number(options, "threads_per_slot", 0 if shared_out == cores else shared_out))
    return {name: env | _thread_environment(threads) for name, env in environments.items()}


def _thread_environment(threads: int) -> dict[str, str]:
    if not threads:
        return {}
    # NPROC is what XLA's CPU client sizes its thread pools by.
    names = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMEXPR_NUM_THREADS", "NPROC")
    environment = dict.fromkeys(names, str(threads))
    if threads == 1:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_cpu_multi_thread_eigen=false"
        environment["XLA_FLAGS"] = flags.strip()
    return environment
