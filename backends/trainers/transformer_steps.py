"""Compiled training steps of the small transformer: AdamW, schedules, evaluation."""

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from backends.trainers import transformer


class TrainState(NamedTuple):
    params: transformer.Parameters
    optimiser: optax.OptState
    step: transformer.Array  # () int32, steps done


def initial_state(seed: int, shape: transformer.Shape, weight_decay: float) -> TrainState:
    """State before the first step, in numpy: a dozen small JAX programs would take longer to compile than to train."""
    params = transformer.initial_parameters(np.random.default_rng([seed, 0xF00D]), shape)
    shapes = jax.eval_shape(_optimiser(weight_decay).init, params)
    zeros = jax.tree.map(lambda leaf: np.zeros(leaf.shape, leaf.dtype), shapes)  # AdamW starts from nothing but zeros
    return TrainState(params, zeros, np.zeros((), np.int32))


def learning_rate_at(step: transformer.Array, num_steps: jax.Array, schedule: str) -> jax.Array:
    """Fraction of the peak learning rate: a linear warm-up of 10 %, then cosine to 2 %, or flat with a last fifth that
    falls linearly (warm-up, stable, decay)."""
    done = (step + 0.5) / jnp.asarray(num_steps, jnp.float32)
    warm_up = jnp.minimum(1.0, done / 0.1)
    if schedule == "wsd":
        return warm_up * jnp.minimum(1.0, (1.0 - done) / 0.2)
    return warm_up * (0.02 + 0.98 * 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.clip((done - 0.1) / 0.9, 0.0, 1.0))))


def train_steps(
    state: TrainState,
    windows: jax.Array,
    count: jax.Array,
    num_steps: jax.Array,
    learning_rate: jax.Array,
    *,
    shape: transformer.Shape,
    schedule: str,
    weight_decay: float,
) -> tuple[TrainState, jax.Array]:
    """Takes `count` steps on `windows`, (chunk, B, T) uint8; returns the state and the mean training loss of the steps.

    Counts and rates are traced, so one compiled program serves every run of this shape and batch.
    """
    optimiser = _optimiser(weight_decay)

    def loss_of(params: transformer.Parameters, text: jax.Array) -> jax.Array:
        return transformer.byte_losses(params, text, shape).mean()

    def step(index: jax.Array, carry: tuple[TrainState, jax.Array]) -> tuple[TrainState, jax.Array]:
        (params, moments, done), total = carry
        loss, gradient = jax.value_and_grad(loss_of)(params, windows[index])
        update, moments = optimiser.update(gradient, moments, params)
        rate = learning_rate * learning_rate_at(done, num_steps, schedule)
        params = jax.tree.map(lambda p, u, scale: p - rate * scale * u, params, update, _rate_scales(params, shape))
        return TrainState(params, moments, done + 1), total + loss

    state, total = jax.lax.fori_loop(0, count, step, (state, jnp.zeros((), jnp.float32)))
    return state, total / count


def held_out_loss(params: transformer.Parameters, windows: jax.Array, *, shape: transformer.Shape) -> jax.Array:
    """Mean loss in nats per byte over `windows`, (groups, B, T) uint8."""
    return jax.lax.map(lambda text: transformer.byte_losses(params, text, shape).mean(), windows).mean()


@functools.cache
def compiled_train_steps() -> Callable[..., tuple[TrainState, jax.Array]]:
    """`train_steps`, compiled once per shape and batch."""
    statics = ("shape", "schedule", "weight_decay")
    return jax.jit(
        train_steps, static_argnames=statics, donate_argnames=("state",), compiler_options=_compiler_options()
    )


@functools.cache
def compiled_held_out_loss() -> Callable[..., jax.Array]:
    """`held_out_loss`, compiled once per shape."""
    return jax.jit(held_out_loss, static_argnames=("shape",), compiler_options=_compiler_options())


def _compiler_options() -> dict[str, bool | int] | None:
    """On a CPU most runs last seconds, and compiling the usual way takes 5.5 s of them; this way it takes 1.8 s and the
    steps are a tenth slower."""
    if jax.default_backend() != "cpu":
        return None
    return {"xla_backend_optimization_level": 1, "xla_cpu_use_fusion_emitters": False}


def _optimiser(weight_decay: float) -> optax.GradientTransformation:
    """AdamW without its learning rate, which depends on the leaf and on the step; only matrices decay."""
    return optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.scale_by_adam(b1=0.9, b2=0.98),
        optax.add_decayed_weights(weight_decay, mask=lambda params: jax.tree.map(lambda p: p.ndim == 3, params)),
    )


def _rate_scales(params: transformer.Parameters, shape: transformer.Shape) -> transformer.Parameters:
    """Learning rate of every leaf relative to the peak: matrices fall as 1/width, as in muP (arXiv:2203.03466)."""
    matrix = 32.0 / shape.width
    scales = jax.tree.map(lambda p: matrix if p.ndim == 3 else 1.0, params)
    return scales._replace(embedding=matrix**0.5)
