"""Plans and trains one small language model: batch and learning rate by rule, the loop, checkpoints."""

import dataclasses
import json
import math
import os
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

import jax
import numpy as np

from backends.trainers import corpus as texts
from backends.trainers import transformer
from backends.trainers import transformer_steps as steps

CHUNK_STEPS = 16  # steps between two looks at the clock, the cancel file and the loss
CHECKPOINT_SECONDS = 20.0
HEARTBEAT_SECONDS = 5.0
EVALUATE_BYTES = 100_000  # training bytes between two evaluations, so that these stay a tenth of the work
EVALUATION_BATCH = 16
PEAK_RATE = 0.016  # learning rate of a model of width 32
MIN_STEPS = 40
DECAY_SHARE = 0.2  # of a "wsd" run, at its end: what comes before may go on longer
TRUNK = "trunk.npz"
UNIFORM_LOSS = math.log(transformer.VOCABULARY)  # nats per byte of a model that knows nothing


@dataclasses.dataclass(frozen=True, kw_only=True)
class Settings:
    """What a study may set in `[backend]`; the defaults give a clean scaling law from 1e4 parameters up."""

    schedule: Literal["cosine", "wsd"] = "cosine"
    lr_scale: float = 1.0
    batch_size: int | None = None  # windows per step; None: grows with the square root of the bytes seen
    context: int = 128
    weight_decay: float = 0.1
    held_out_bytes: int = 32768

    def __post_init__(self) -> None:
        if self.schedule not in ("cosine", "wsd"):
            raise ValueError(f"schedule: {self.schedule!r} is unknown; known: cosine, wsd")
        if not (math.isfinite(self.lr_scale) and self.lr_scale > 0):
            raise ValueError(f"lr_scale: {self.lr_scale!r} must be a positive number")
        if self.batch_size is not None and self.batch_size < 1:
            raise ValueError(f"batch_size: {self.batch_size!r} must be at least 1 window")
        if not 8 <= self.context <= texts.BLOCK_BYTES:
            raise ValueError(f"context: {self.context!r} must be between 8 and {texts.BLOCK_BYTES} bytes")
        if self.held_out_bytes < self.context:
            raise ValueError(f"held_out_bytes: {self.held_out_bytes!r} must be at least one context ({self.context})")


@dataclasses.dataclass(frozen=True)
class Plan:
    """One run worked out: what is trained, for how long, and what it costs."""

    shape: transformer.Shape
    batch: int  # windows per step
    steps: int
    learning_rate: float  # peak
    settings: Settings
    begins: int = 0  # step of the run that it goes on with

    @property
    def trunk_steps(self) -> int | None:
        """Steps before the learning rate falls, None where it always does."""
        return int((1.0 - DECAY_SHARE) * self.steps) if self.settings.schedule == "wsd" else None

    @property
    def bytes_per_step(self) -> int:
        return self.batch * self.settings.context

    def cost_after(self, step: int) -> float:
        """FLOPs of the steps up to `step`, 6 N D, beyond those of the run that it goes on with."""
        return 6.0 * self.shape.parameters * max(0, step - self.begins) * self.bytes_per_step

    def identity(self, corpus: texts.Corpus, seed: int, *, of_trunk: bool = False) -> str:
        """What a checkpoint belongs to; that of a trunk to runs of any length."""
        told = dataclasses.asdict(self)
        for name in ("steps", "begins") if of_trunk else ("begins",) if not self.begins else ():
            del told[name]
        return json.dumps([told, corpus.digest, seed], sort_keys=True)


def plan_run(parameters: float, tokens: float, settings: Settings, *, max_cost: float | None = None) -> Plan:
    """Plan nearest to a requested size and number of bytes.

    The batch is 2 windows at 1e5 bytes and grows with the square root of the bytes. With it one peak learning rate,
    scaled per leaf by width, is within 0.03 nats of the best from 1e4 to 1.6e5 parameters and 1e5 to 8e5 bytes, so
    that the law measured is not that of a mistuned optimiser. The steps are rounded so that the run costs no more than
    the 6 N D asked for, which is what a planner reserved for it. Raises `ValueError` for a run that makes no sense or
    costs more than `max_cost`.
    """
    shape = transformer.shape_for(float(parameters))
    if not (math.isfinite(tokens) and tokens > 0):
        raise ValueError(f"tokens: {tokens!r} must be a positive number of bytes")
    batch = settings.batch_size or max(1, round(2.0 * (tokens / 1e5) ** 0.5))
    one = Plan(shape, batch, 1, settings.lr_scale * PEAK_RATE, settings)
    affordable = int(6.0 * parameters * tokens / one.cost_after(1))
    plan = dataclasses.replace(one, steps=min(round(tokens / one.bytes_per_step), affordable))
    if max_cost is not None and plan.cost_after(plan.steps) > max_cost:
        raise ValueError(
            f"{parameters:g} parameters and {tokens:g} bytes cost {plan.cost_after(plan.steps):.4g} FLOP (6 N D),"
            f" more than max_cost = {max_cost:.4g}; [cost] of the study should read 6 N D"
        )
    if plan.steps < MIN_STEPS:
        raise ValueError(
            f"tokens: {tokens:g} bytes are {plan.steps} steps of {batch} x {settings.context} bytes, at least"
            f" {MIN_STEPS} are needed; ask for more tokens, or set a smaller batch_size"
        )
    return plan


def continued(plan: Plan, parent: Plan) -> Plan:
    """`plan` going on from where the learning rate of `parent` began to fall.  Raises `ValueError` where it cannot."""
    if parent.trunk_steps is None or plan.trunk_steps is None:
        raise ValueError(f'schedule: a {plan.settings.schedule!r} run cannot be gone on with; set schedule = "wsd"')
    if plan.batch != parent.batch:
        raise ValueError(f"batch_size: {parent.batch} windows became {plan.batch}; set batch_size, so that it stays")
    if plan.shape != parent.shape or plan.trunk_steps <= parent.trunk_steps:
        raise ValueError(f"{plan.steps} steps of {plan.shape} do not go on with {parent.steps} of {parent.shape}")
    return dataclasses.replace(plan, begins=parent.trunk_steps)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Progress:
    """What is known of a run on its way; `held_out` is None between evaluations."""

    step: int
    cost: float
    train_loss: float  # mean over the last steps
    held_out: float | None


@dataclasses.dataclass(frozen=True, kw_only=True)
class Ending:
    """How training ended: with a loss, diverged (why), or stopped half-way after a checkpoint (why)."""

    step: int
    cost: float
    train_loss: float
    held_out: float | None = None
    diverged: str | None = None
    stopped: str | None = None


def train_model(
    plan: Plan,
    corpus: texts.Corpus,
    seed: int,
    *,
    checkpoint: Path | None = None,
    parent: Path | None = None,
    on_progress: Callable[[Progress], None] = lambda progress: None,
    stop_reason: Callable[[], str | None] = lambda: None,
) -> Ending:
    """Trains from the checkpoint, or from the start, to the end of the plan or until `stop_reason` gives one.

    Stopping and going on changes nothing: data order and schedule depend on plan, corpus and seed only.  A plan that
    begins later begins with the trunk in the checkpoints `parent`; `ValueError` where it is not there.
    """
    starts = texts.train_windows(corpus, num=plan.steps * plan.batch, context=plan.settings.context, seed=seed)
    held_out = _held_out_groups(plan, corpus)
    identity = plan.identity(corpus, seed)
    state = steps.initial_state(seed, plan.shape, plan.settings.weight_decay)
    if checkpoint is not None:
        state = load_state(checkpoint, identity, like=state)
    if plan.begins and parent is not None and int(state.step) == 0:
        state = read_state(parent / TRUNK, plan.identity(corpus, seed, of_trunk=True), like=state)
    done, train_loss = int(state.step), math.nan
    evaluate_every = max(-(-plan.steps // 8), EVALUATE_BYTES // plan.bytes_per_step)
    saved_at = told_at = time.monotonic()
    while done < plan.steps:
        reason = stop_reason()
        if reason is not None or (checkpoint is not None and time.monotonic() - saved_at > CHECKPOINT_SECONDS):
            if checkpoint is not None:
                save_state(checkpoint, identity, state)
            saved_at = time.monotonic()
        if reason is not None:
            return Ending(step=done, cost=plan.cost_after(done), train_loss=train_loss, stopped=reason)
        # Chunks end where evaluations are due, counted from the start, so that a resumed run reports the same curve.
        due = min((done // evaluate_every + 1) * evaluate_every, plan.steps)
        trunk = plan.trunk_steps
        count = min(CHUNK_STEPS, due - done, trunk - done if trunk is not None and done < trunk else due)
        windows = _windows_of_chunk(plan, corpus, starts, done, count)
        state, mean_loss = _take_steps(plan, state, windows, count)
        done, train_loss = done + count, float(mean_loss)
        if done == trunk and checkpoint is not None:
            save_state(checkpoint.with_name(TRUNK), plan.identity(corpus, seed, of_trunk=True), state)
        trouble = _trouble(train_loss, is_late=2 * done > plan.steps)
        if trouble is not None:
            return Ending(step=done, cost=plan.cost_after(done), train_loss=train_loss, diverged=trouble)
        if done < plan.steps and (done == due or time.monotonic() - told_at > HEARTBEAT_SECONDS):
            value = _evaluate(plan, state, held_out) if done == due else None
            on_progress(Progress(step=done, cost=plan.cost_after(done), train_loss=train_loss, held_out=value))
            told_at = time.monotonic()
    loss = _evaluate(plan, state, held_out)
    trouble = _trouble(loss, is_late=True)
    return Ending(
        step=done,
        cost=plan.cost_after(done),
        train_loss=train_loss,
        held_out=None if trouble else loss,
        diverged=trouble,
    )


def _trouble(loss: float, *, is_late: bool) -> str | None:
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if is_late and loss >= UNIFORM_LOSS:
        # RMSNorm keeps a run finite whatever the learning rate, so not-a-number alone would miss most divergence.
        return f"the loss is {loss:.4g} nats per byte; guessing bytes evenly has {UNIFORM_LOSS:.4g}"
    return None


def _windows_of_chunk(plan: Plan, corpus: texts.Corpus, starts: np.ndarray, done: int, count: int) -> np.ndarray:
    """Training text of `count` steps, padded to a whole chunk: (chunk, batch, context) uint8."""
    context = plan.settings.context
    chunk = np.zeros((CHUNK_STEPS, plan.batch, context), np.uint8)
    chosen = starts[done * plan.batch : (done + count) * plan.batch].reshape(count, plan.batch)
    chunk[:count] = corpus.train[chosen[..., None] + np.arange(context)]
    return chunk


def _take_steps(
    plan: Plan, state: steps.TrainState, windows: np.ndarray, count: int
) -> tuple[steps.TrainState, jax.Array]:
    return steps.compiled_train_steps()(
        state,
        windows,
        np.int32(count),
        np.int32(plan.steps),
        np.float32(plan.learning_rate),
        shape=plan.shape,
        schedule=plan.settings.schedule,
        weight_decay=plan.settings.weight_decay,
    )


def _held_out_groups(plan: Plan, corpus: texts.Corpus) -> np.ndarray:
    """Held-out windows in groups that fit in memory, (groups, 16, context); what does not fill a group is left out."""
    context = plan.settings.context
    windows = texts.held_out_windows(corpus, num_bytes=plan.settings.held_out_bytes, context=context)
    size = min(EVALUATION_BATCH, len(windows))
    return windows[: len(windows) // size * size].reshape(-1, size, context)


def _evaluate(plan: Plan, state: steps.TrainState, held_out: np.ndarray) -> float:
    return float(steps.compiled_held_out_loss()(state.params, held_out, shape=plan.shape))


def save_state(path: Path, identity: str, state: steps.TrainState) -> None:
    """Writes a checkpoint as a whole, so that a run killed while writing keeps the one before."""
    leaves: dict[str, Any] = {f"leaf{index}": np.asarray(leaf) for index, leaf in enumerate(jax.tree.leaves(state))}
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with temporary.open("wb") as file:
        np.savez(file, identity=np.array(identity), **leaves)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)


def load_state(path: Path, identity: str, *, like: steps.TrainState) -> steps.TrainState:
    """State in a checkpoint; `like` where there is none, it is damaged, or it belongs to another run."""
    try:
        return read_state(path, identity, like=like)
    except FileNotFoundError:
        return like
    except ValueError as error:
        print(f"{error}; starting over", flush=True)
        return like


def read_state(path: Path, identity: str, *, like: steps.TrainState) -> steps.TrainState:
    """State in a checkpoint.  Raises `FileNotFoundError`, and `ValueError` for one damaged or of another run."""
    leaves, structure = jax.tree.flatten(like)
    try:
        with path.open("rb") as raw, np.load(raw) as file:
            found = str(file["identity"])
            stored = [file[f"leaf{index}"] for index in range(len(leaves))] if found == identity else None
    except FileNotFoundError:
        raise
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"checkpoint {path} cannot be read ({error})") from error
    if stored is None:
        raise ValueError(f"checkpoint {path} belongs to another plan, text or seed")
    return jax.tree.unflatten(structure, stored)
