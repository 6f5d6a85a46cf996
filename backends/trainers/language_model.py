"""Trainer `backends.trainers.language_model:train`: a small byte-level transformer on text every Python carries.

Response: held-out loss in nats per byte.  Cost: 6 N D FLOP, N the non-embedding parameters and D the bytes seen.
Domains `english` and `python` need no data; more come with the option `texts`.  This file starts no JAX when imported.
"""

import difflib
import hashlib
import math
import os
import platform
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from backends import jobfile

if TYPE_CHECKING:
    from backends.trainers.corpus import Corpus
    from backends.trainers.transformer_training import Ending, Plan, Progress, Settings

AXES = {"N": "parameters", "parameters": "parameters", "D": "tokens", "tokens": "tokens"}
SETTINGS = ("schedule", "lr_scale", "batch_size", "context", "weight_decay", "held_out_bytes")
# Options of the backends that run the trainer arrive with the trainer's own.
_NOT_TYPING_ERRORS = ("kind", "slots", "gpus", "env", "trainer", "threads_per_slot", "grace_seconds", "texts")


def train(job: jobfile.TrainerJob) -> jobfile.Result:
    """Runs one job.  Raises `BadJob` for a job that cannot be run and `Requeue` when told to stop half-way."""
    use_compilation_cache()
    from backends.trainers import corpus as texts
    from backends.trainers import transformer_training as training

    try:
        request, settings = read_request(job.axes, job.options)
        plan = _plan(job, request, training.Settings(**settings))
        corpus = texts.load_corpus(job.domain, _text_files(job.options, job.working_folder))
    except (TypeError, ValueError) as error:
        raise jobfile.BadJob(str(error)) from error
    started = time.monotonic()
    try:
        ending = training.train_model(
            plan,
            corpus,
            job.seed,
            checkpoint=job.checkpoints / "state.npz",
            parent=job.continues.checkpoints if job.continues is not None else None,
            on_progress=_append,
            stop_reason=jobfile.should_stop,
        )
    except (FileNotFoundError, ValueError) as error:
        if job.continues is None:
            raise
        raise jobfile.BadJob(f"cannot go on with run {job.continues.run_id}: {error}") from error
    if ending.stopped is not None:
        jobfile.append_metric(ending.step, None, ending.cost, False)  # what the attempt has cost so far
        raise jobfile.Requeue(f"{ending.stopped} after {ending.step} of {plan.steps} steps; a checkpoint is written")
    if ending.held_out is not None:
        jobfile.append_metric(ending.step, ending.held_out, ending.cost, True, train_loss=ending.train_loss)
    record = _record(plan, corpus, ending) | {"wall_seconds": time.monotonic() - started}
    return jobfile.Result(
        response=ending.held_out,
        cost=ending.cost,
        state="completed" if ending.diverged is None else "diverged",
        extra=record,
    )


def _plan(job: jobfile.TrainerJob, request: Mapping[str, float], settings: "Settings") -> "Plan":
    """The plan of a job.  Raises `ValueError`, also for one that cannot go on with the run that it names."""
    from backends.trainers import transformer_training as training

    told = job.continues
    if told is None:
        return training.plan_run(request["parameters"], request["tokens"], settings, max_cost=job.max_cost)
    if AXES.get(told.axis) != "tokens":
        raise ValueError(f"axis {told.axis!r} is not the length of a run of the language model, which is D")
    before, _ = read_request(told.axes, job.options)
    parent = training.plan_run(before["parameters"], before["tokens"], settings)
    plan = training.continued(training.plan_run(request["parameters"], request["tokens"], settings), parent)
    if abs(plan.begins * plan.bytes_per_step - told.begins) > 0.05 * told.begins:
        share = 1.0 - training.DECAY_SHARE
        raise ValueError(
            f'runs of schedule "wsd" go on from where the last fifth began, at {plan.begins * plan.bytes_per_step:g}'
            f" bytes, not at {told.begins:g}; write resume = {{ axis = {told.axis!r}, from = {share:g} }}"
        )
    return plan


def train_once(domain: str, parameters: float, tokens: float, seed: int = 0, **options: Any) -> dict[str, Any]:
    """Trains one model in this process, without a job folder.

    Returns response (None if diverged), cost, state and what the run really was.  Raises `ValueError` for a run that
    makes no sense.  `options` are those of `[backend]`.
    """
    from backends.trainers import corpus as texts
    from backends.trainers import transformer_training as training

    _, settings = read_request({"N": parameters, "D": tokens}, options)
    plan = training.plan_run(parameters, tokens, training.Settings(**settings))
    corpus = texts.load_corpus(domain, _text_files(options, Path()))
    ending = training.train_model(plan, corpus, seed)
    state = "completed" if ending.diverged is None else "diverged"
    return {"response": ending.held_out, "cost": ending.cost, "state": state} | _record(plan, corpus, ending)


def read_request(axes: Mapping[str, float], options: Mapping[str, Any]) -> tuple[dict[str, float], dict[str, Any]]:
    """Requested size and bytes, and the settings, from axes and options; an axis overrides an option.

    Raises `ValueError` for a missing, unknown or repeated axis and for an option that looks like a misspelt setting.
    """
    request: dict[str, float] = {}
    settings = {name: options[name] for name in SETTINGS if name in options}
    for name, value in axes.items():
        if name in AXES and AXES[name] not in request:
            request[AXES[name]] = value
        elif name in SETTINGS and name != "schedule":
            settings[name] = value
        else:
            known = ", ".join([*AXES, *(each for each in SETTINGS if each != "schedule")])
            raise ValueError(f"axis {name!r}: unknown to the language model, or given twice; known: {known}")
    for name in ("parameters", "tokens"):
        if name not in request:
            aliases = " or ".join(repr(alias) for alias, meaning in AXES.items() if meaning == name)
            raise ValueError(f"the study has no axis for {name}: name one {aliases}; it has {sorted(axes)}")
    for name in options:
        close = difflib.get_close_matches(name, SETTINGS, n=1, cutoff=0.75)
        if name not in SETTINGS and name not in _NOT_TYPING_ERRORS and close:
            raise ValueError(f"option {name!r} is unknown; did you mean {close[0]!r}?")
    for name in ("batch_size", "context", "held_out_bytes"):
        if settings.get(name) is not None:
            settings[name] = _whole(name, settings[name])
    return request, settings


def use_compilation_cache() -> None:
    """Keeps compiled programs in the user's cache folder, because compiling takes longer than the smallest runs.

    JAX reads these variables when it is imported; set them yourself for another folder, or
    JAX_ENABLE_COMPILATION_CACHE=false for none.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(root / "scaling-planner" / f"jax-{_processor()}"))
    os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.2")


def _processor() -> str:
    """Eight hex digits for this kind of processor, because a home folder may be shared by machines of several kinds."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        features = next(line for line in lines if line.startswith(("flags", "Features")))
    except (OSError, StopIteration):
        features = platform.processor()
    return hashlib.sha256(f"{platform.machine()} {features}".encode()).hexdigest()[:8]


def _whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float) or not float(value).is_integer():
        raise ValueError(f"{name}: {value!r} must be a whole number")
    return int(value)


def _text_files(options: Mapping[str, Any], folder: Path) -> dict[str, str]:
    files = options.get("texts") or {}
    if not isinstance(files, Mapping):
        raise ValueError(f"option 'texts' is {files!r}; it must map domains to text files")
    return {str(domain): str(folder / str(path)) for domain, path in files.items()}


def _append(progress: "Progress") -> None:
    jobfile.append_metric(progress.step, progress.held_out, progress.cost, False, train_loss=progress.train_loss)


def _record(plan: "Plan", corpus: "Corpus", ending: "Ending") -> dict[str, Any]:
    """What a run really was, for the record."""
    shape = plan.shape
    record = {
        "parameters": shape.parameters,
        "tokens": ending.step * plan.bytes_per_step,
        "steps": ending.step,
        "begins": plan.begins,
        "batch_size": plan.batch,
        "learning_rate": plan.learning_rate,
        "width": shape.width,
        "depth": shape.depth,
        "hidden": shape.hidden,
        "text_digest": corpus.digest,
        "train_loss": ending.train_loss if math.isfinite(ending.train_loss) else None,
    }
    return record | ({"diverged": ending.diverged} if ending.diverged else {})
