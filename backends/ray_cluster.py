"""Runs on a Ray cluster: a detached, named actor for every attempt, which runs a worker on the job folder.

The actor outlives the planner: a planner that starts again finds it by its name.  The worker is a process of its own
that dies with the actor, and all it has to tell is in the job folder, which must be on storage that the nodes see under
the same path.

Options: `address` ("auto", a cluster's address, or none: a Ray of this machine that lives as long as the planner);
`num_cpus` (default 1), `num_gpus`, `memory` (bytes) and `resources` (names and amounts) of one run; `bundles` (a list
of resource tables) and `strategy` (default "PACK") for a trainer that spans several GPUs or nodes: they are reserved
as one placement group, the worker runs in the first, and what it starts through Ray in the others; `runtime_env`;
`slots` (default: as many as the cluster holds); `latency_seconds`, `grace_seconds`, `env`, `trainer` or `command` as in
`slurm`.

Ray itself never repeats a run: the planner does, as a new attempt that finds the checkpoints of the last.
"""

import contextlib
import logging
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from backends import slots
from backends.engines import EngineBackend, Sight
from backends.jobfile import JobFolder
from planner.execution import BackendError

try:
    import ray
    from ray.exceptions import RayError
    from ray.util.placement_group import PlacementGroup, get_placement_group, placement_group, remove_placement_group
    from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
except ImportError as error:
    raise BackendError(
        f'backend.kind = "ray" needs Ray, which is not there ({error}): install scaling-planner[ray]'
    ) from error

NAMESPACE = "scaling-planner"
_FAULTS = (RayError, ConnectionError, TimeoutError, RuntimeError)


def _worker_class() -> Any:
    """The actor: runs one worker to its end and goes.  Made here so that it travels by value, imports and all.

    All is done at its creation, which the cluster owns: a method call would die with a planner that dies after it.
    """

    class Worker:
        def __init__(self, folder: str, log: str, environment: dict[str, str]) -> None:
            import threading

            threading.Thread(target=self._run, args=(folder, log, environment)).start()

        def _run(self, folder: str, log: str, environment: dict[str, str]) -> None:
            import ctypes
            import os
            import signal
            import subprocess
            import sys

            def die_with_parent() -> None:
                # SIGTERM for the worker, which ends its trainer, when the actor or its node's daemon dies.
                if sys.platform == "linux":
                    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # 1: PR_SET_PDEATHSIG

            try:
                with open(log, "ab") as file:
                    subprocess.run(
                        [sys.executable, "-P", "-m", "backends.worker", folder],
                        env=dict(os.environ) | environment,
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        stderr=file,
                        start_new_session=True,
                        preexec_fn=die_with_parent,
                        check=False,
                    )
            finally:
                os._exit(0)

    return Worker


class Ray(EngineBackend):
    """Backend "ray"; see the module."""

    kind = "ray"

    def __init__(self, options: Mapping[str, Any], study_dir: Path) -> None:
        super().__init__(options, study_dir)
        self._demand = _demand(self.options)
        self._bundles = _bundles(self.options)
        num_slots = slots.whole(self.options, "slots", 1) if "slots" in self.options else None
        self._connect()
        self.slots = num_slots if num_slots is not None else self._room()

    def find(self, name: str) -> str | None:
        try:
            ray.get_actor(name, namespace=NAMESPACE)
        except ValueError:
            return None  # also of an actor that is dead
        except _FAULTS as error:
            raise BackendError(f"Ray does not answer, so that a run may exist already: {error}") from error
        return name

    def launch(self, folder: JobFolder, name: str, content: Mapping[str, Any]) -> str:
        try:
            (
                ray.remote(_worker_class())
                .options(
                    name=name,
                    namespace=NAMESPACE,
                    lifetime="detached",
                    get_if_exists=True,
                    max_restarts=0,
                    runtime_env=self.options.get("runtime_env"),
                    **self._where(name),
                )
                .remote(str(folder.path), str(folder.log), self._environment(content["options"], name))
            )
        except (*_FAULTS, ValueError, TypeError) as error:
            raise BackendError(f"Ray did not take run {name}: {error}") from error
        return name

    def look(self, ids: Sequence[str]) -> Mapping[str, Sight]:
        sights = {}
        for name in ids:
            try:
                ray.get_actor(name, namespace=NAMESPACE)
                sights[name] = Sight("working")
            except ValueError:
                sights[name] = Sight("gone", "its Ray actor is dead and left no record")
            except _FAULTS as error:
                sights[name] = Sight("unknown", f"Ray does not answer: {str(error)[:200]}")
        return sights

    def kill(self, ids: Sequence[str]) -> None:
        for name in ids:
            with contextlib.suppress(ValueError, *_FAULTS):
                ray.kill(ray.get_actor(name, namespace=NAMESPACE))
            self.release(name)

    def release(self, name: str) -> None:
        if self._bundles:
            with contextlib.suppress(ValueError, *_FAULTS):
                group = self._group(name)
                if group is not None:
                    remove_placement_group(group)

    # ---- the cluster ----

    def _connect(self) -> None:
        if ray.is_initialized():
            return
        try:
            ray.init(
                address=self.options.get("address"),
                namespace=NAMESPACE,
                log_to_driver=False,
                include_dashboard=None if self.options.get("address") else False,
                logging_level=logging.ERROR,
            )
        except (*_FAULTS, ValueError) as error:
            where = self.options.get("address") or "on this machine"
            raise BackendError(f"no Ray cluster at {where}: {error}") from error

    def _room(self) -> int:
        """How many runs the cluster holds at once."""
        demand = self._demand
        if self._bundles:
            demand = {}
            for bundle in self._bundles:
                demand = {key: demand.get(key, 0.0) + bundle.get(key, 0.0) for key in demand | bundle}
        have = ray.cluster_resources()
        room = min(int(have.get(key, 0.0) / amount) for key, amount in demand.items() if amount > 0)
        if room < 1:
            raise BackendError(f"one run needs {demand}, and the whole Ray cluster has {have}")
        return room

    def _where(self, name: str) -> dict[str, Any]:
        """Options of the actor that say what it is given and where it goes."""
        if not self._bundles:
            amounts = dict(self._demand)
            named = {"CPU": "num_cpus", "GPU": "num_gpus", "memory": "memory"}
            known = {named[key]: amounts.pop(key) for key in list(amounts) if key in named}
            return known | ({"resources": amounts} if amounts else {})
        group = self._group(name) or placement_group(
            [dict(bundle) for bundle in self._bundles],
            strategy=str(self.options.get("strategy", "PACK")),
            name=name,
            lifetime="detached",
        )
        first = self._bundles[0]
        strategy = PlacementGroupSchedulingStrategy(group, 0, placement_group_capture_child_tasks=True)
        # A processor for the worker; the rest of the bundle is for what it starts through Ray.
        return {"num_cpus": min(1.0, first.get("CPU", 0.0)), "scheduling_strategy": strategy}

    def _group(self, name: str) -> PlacementGroup | None:
        try:
            return get_placement_group(name)
        except ValueError:
            return None

    def _environment(self, options: Mapping[str, Any], name: str) -> dict[str, str]:
        environment = slots.worker_environment(options, os.environ.get("PYTHONPATH"))
        if self._bundles:
            environment["PLANNER_PLACEMENT_GROUP"] = name
        return environment


def _amounts(value: Any, name: str) -> dict[str, float]:
    is_table = isinstance(value, Mapping) and value
    if not is_table or not all(
        isinstance(v, int | float) and not isinstance(v, bool) and v >= 0 for v in value.values()
    ):
        raise BackendError(f"backend.{name} is {value!r}; it must be a table of resources and amounts")
    return {str(key): float(amount) for key, amount in value.items()}


def _demand(options: Mapping[str, Any]) -> dict[str, float]:
    """Ray resources of one run without bundles."""
    demand = {"CPU": slots.number(options, "num_cpus", 1.0)}
    if "num_gpus" in options:
        demand["GPU"] = slots.number(options, "num_gpus", 0.0)
    if "memory" in options:
        demand["memory"] = slots.number(options, "memory", 0.0)
    if "resources" in options:
        demand |= _amounts(options["resources"], "resources")
    if not any(demand.values()):
        raise BackendError("one run asks for no resource at all: give num_cpus, num_gpus or resources")
    return demand


def _bundles(options: Mapping[str, Any]) -> list[dict[str, float]]:
    value = options.get("bundles", [])
    if isinstance(value, str | Mapping) or not isinstance(value, Sequence):
        raise BackendError(f"backend.bundles is {value!r}; it must be a list of tables of resources")
    return [_amounts(bundle, "bundles") for bundle in value]
