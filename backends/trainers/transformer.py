"""A small decoder-only transformer over bytes, in plain JAX: shapes by parameter count, initial values, losses.

Pre-norm blocks (RMSNorm, causal attention with rotary positions, SwiGLU), input and output embedding tied. The blocks
are stacked and scanned, so compile time does not grow with depth.
"""

import dataclasses
import functools
import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

VOCABULARY = 256
SMALLEST, LARGEST = 5e3, 1e9  # non-embedding parameters
START = 0  # stands before every window; corpora hold no zero byte
ASPECT = 24.0  # width over depth at which the family aims
HIDDEN_RATIO = 8.0 / 3.0  # width of the MLP over width of the model

Array = jax.Array | np.ndarray


@dataclasses.dataclass(frozen=True)
class Shape:
    """Architecture of one model; hashable, so that it can be a static argument."""

    width: int
    depth: int
    hidden: int

    @property
    def heads(self) -> int:
        """Number of heads; a head is an even divisor of the width (rotary needs it even) near width / 4, 16 to 64."""
        aim = min(max(self.width / 4, 16), 64)
        sizes = [size for size in range(8, self.width + 1, 2) if self.width % size == 0]
        return self.width // min(sizes, key=lambda size: (abs(size - aim), size))

    @property
    def parameters(self) -> int:
        """Number of parameters without the embedding."""
        block = 4 * self.width**2 + 3 * self.width * self.hidden + 2 * self.width
        return self.depth * block + self.width


@functools.cache
def shape_for(parameters: float) -> Shape:
    """Member of the family nearest to a requested number of non-embedding parameters.

    Widths are multiples of 8 (of 16 above 64, for even heads), MLP widths multiples of 4. A steep penalty keeps the
    count within 4 % of the request (1 % above 5e4), a mild one keeps the aspect and MLP ratios. At least two blocks,
    because going from one to two bends the loss curve.
    Raises `ValueError` outside the sizes the family has.
    """
    if not SMALLEST <= parameters <= LARGEST:
        raise ValueError(
            f"parameters: {parameters:g} is outside {SMALLEST:g} to {LARGEST:g}, the sizes this model family has"
        )

    def badness(shape: Shape) -> float:
        miss = math.log(shape.parameters / parameters)
        aspect = math.log(shape.width / shape.depth / ASPECT)
        ratio = math.log(shape.hidden / shape.width / HIDDEN_RATIO)
        return 400.0 * miss**2 + aspect**2 + 2.0 * ratio**2

    ideal = (parameters * ASPECT / 12.0) ** (1.0 / 3.0)
    widths = range(max(8, int(0.6 * ideal) // 8 * 8), int(1.7 * ideal) + 9, 8)
    shapes = []
    for width in widths:
        if width > 64 and width % 16:
            continue
        for depth in range(2, max(2, round(2.5 * width / ASPECT)) + 1):
            hidden = ((parameters - width) / depth - 4 * width**2 - 2 * width) / (3 * width)
            for rounded in {math.floor(hidden / 4) * 4, math.ceil(hidden / 4) * 4}:
                if 1.25 * width <= rounded <= 6 * width:
                    shapes.append(Shape(width, depth, rounded))
    return min(shapes, key=lambda shape: (badness(shape), shape.width))


class Blocks(NamedTuple):
    """Parameters of all blocks, stacked: L = depth, W = width, F = hidden."""

    attention_norm: Array  # (L, W)
    query_key_value: Array  # (L, W, 3 W)
    attention_out: Array  # (L, W, W)
    mlp_norm: Array  # (L, W)
    gate_up: Array  # (L, W, 2 F)
    down: Array  # (L, F, W)


class Parameters(NamedTuple):
    embedding: Array  # (256, W)
    blocks: Blocks
    final_norm: Array  # (W,)


def initial_parameters(rng: np.random.Generator, shape: Shape) -> Parameters:
    """Parameters before training: unit-variance activations, residual branches damped by 1/sqrt(2 depth)."""
    depth, width, hidden = shape.depth, shape.width, shape.hidden

    def matrices(rows: int, columns: int, gain: float = 1.0) -> np.ndarray:
        return (gain * rows**-0.5 * rng.standard_normal((depth, rows, columns))).astype(np.float32)

    damping = (2 * depth) ** -0.5
    blocks = Blocks(
        attention_norm=np.ones((depth, width), np.float32),
        query_key_value=matrices(width, 3 * width),
        attention_out=matrices(width, width, damping),
        mlp_norm=np.ones((depth, width), np.float32),
        gate_up=matrices(width, 2 * hidden),
        down=matrices(hidden, width, damping),
    )
    embedding = (width**-0.5 * rng.standard_normal((VOCABULARY, width))).astype(np.float32)
    return Parameters(embedding, blocks, np.ones(width, np.float32))


def byte_logits(params: Parameters, text: Array, shape: Shape) -> jax.Array:
    """Logits of every byte of every window given the bytes before it: (B, T) uint8 -> (B, T, 256)."""
    before = jnp.pad(text[:, :-1], ((0, 0), (1, 0)), constant_values=START).astype(jnp.int32)
    # The embedding has rows of unit length, which makes good initial logits; its input side wants unit variance.
    stream = params.embedding[before] * shape.width**0.5
    rotation = _rotation(text.shape[1], shape.width // shape.heads)

    def block(stream: jax.Array, layer: Blocks) -> tuple[jax.Array, None]:
        stream = stream + _attention(_normalised(stream, layer.attention_norm), layer, shape.heads, rotation)
        gate, up = jnp.split(_normalised(stream, layer.mlp_norm) @ layer.gate_up, 2, axis=-1)
        return stream + (jax.nn.silu(gate) * up) @ layer.down, None

    stream, _ = jax.lax.scan(block, stream, params.blocks)
    return _normalised(stream, params.final_norm) @ params.embedding.T


def byte_losses(params: Parameters, text: Array, shape: Shape) -> jax.Array:
    """Negative log probability in nats of every byte: (B, T) uint8 -> (B, T)."""
    logits = byte_logits(params, text, shape)
    chosen = jnp.take_along_axis(logits, text[..., None].astype(jnp.int32), axis=-1)[..., 0]
    return jax.nn.logsumexp(logits, axis=-1) - chosen


def _normalised(x: jax.Array, gain: Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x**2, axis=-1, keepdims=True) + 1e-6) * gain


def _rotation(length: int, size: int) -> tuple[np.ndarray, np.ndarray]:
    """Cosine and sine of the rotary angles (Su et al. 2021, arXiv:2104.09864), (T, size / 2) each."""
    frequency = 1000.0 ** (-np.arange(0, size, 2) / size)
    angle = np.arange(length)[:, None] * frequency
    return np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)


def _attention(x: jax.Array, layer: Blocks, heads: int, rotation: tuple[np.ndarray, np.ndarray]) -> jax.Array:
    """Causal self-attention of one layer: (B, T, W) -> (B, T, W)."""
    batch, length, width = x.shape
    size = width // heads
    cos, sin = rotation

    def rotated(half_a: jax.Array, half_b: jax.Array) -> jax.Array:
        return jnp.concatenate([half_a * cos - half_b * sin, half_a * sin + half_b * cos], axis=-1)

    qkv = (x @ layer.query_key_value).reshape(batch, length, 3, heads, size).transpose(2, 0, 3, 1, 4)
    query, key = (rotated(*jnp.split(part, 2, axis=-1)) for part in qkv[:2])
    scores = query @ key.swapaxes(-1, -2) * size**-0.5
    is_past = jnp.arange(length)[:, None] >= jnp.arange(length)
    weights = jax.nn.softmax(jnp.where(is_past, scores, -1e30), axis=-1)
    return (weights @ qkv[2]).swapaxes(1, 2).reshape(batch, length, width) @ layer.attention_out
