"""What the engines read: runs grouped by domain and padded, the laws' constants, and priors of the scales."""

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import numpy as np

from planner.inference.arrow import Hierarchy
from planner.laws.base import Context, Law


class FitData(NamedTuple):
    """Finished runs by domain, padded to a bucket of rows.  G domains, n rows, A axes, M features.

    `y` is on the scale where laws are written (link applied, smaller is better) and 0 where padded.
    """

    y: np.ndarray  # (G, n)
    coordinates: np.ndarray  # (G, n, A)
    is_real: np.ndarray  # (G, n)
    known_var: np.ndarray  # (G, n) squared standard errors that came with the runs
    order: np.ndarray  # (G, n) rank of each run by cost over all domains; padded rows last
    phi: np.ndarray  # (G, n, M) discrepancy features, 0 where padded
    missed: np.ndarray  # (G, n) unit variance that the features miss
    curve: np.ndarray  # (G, n, K) which training run each row is a checkpoint of; K = 0 where none has two rows
    height: np.ndarray  # (G, n, 1) above the best response, 0 where padded; (G, n, 0): errors are of one size
    design: np.ndarray  # (G, Q) rows of the shared parameters that each domain adds up
    context: Context


class Scales(NamedTuple):
    """Hyperparameters; the natural logarithms are of sizes in units of the response scale.  N nodes."""

    log_noise: np.ndarray  # (N,) at height 0, as are all sizes
    log_discrepancy: np.ndarray  # (N,)
    growth: np.ndarray  # (N,) of the errors with height; 0 where they are of one size
    log_curve: np.ndarray  # (N,) effect of a training run on all its checkpoints; -inf where no run has two
    log_domain: np.ndarray  # (N, p) multiplies the prior distance between domains; no columns with one domain


LOG_NOISE_PRIOR = (float(np.log(0.03)), 1.2)
LOG_DISCREPANCY_PRIOR = (float(np.log(0.1)), 1.0)
GROWTH_PRIOR = (0.75, 0.5)
LOG_CURVE_PRIOR = (float(np.log(0.03)), 1.2)
LOG_DOMAIN_PRIOR = (0.0, 0.7)
BEND = 0.5  # what all runs of a region share (discrepancy, effects of training runs) grows by this power of the noise's


def error_scales(data: FitData) -> dict[str, tuple[float, float]]:
    """Means and standard deviations of the normal priors of the sizes of errors that these runs have."""
    priors = {"log_noise": LOG_NOISE_PRIOR, "log_discrepancy": LOG_DISCREPANCY_PRIOR}
    if data.height.shape[-1]:
        priors["growth"] = GROWTH_PRIOR
    if data.curve.shape[-1]:
        priors["log_curve"] = LOG_CURVE_PRIOR
    return priors


def unpack_scales(nodes: np.ndarray, data: FitData) -> Scales:
    """Named scales of nodes (N, H) whose columns are those of `error_scales`, then the distances between domains."""
    names = list(error_scales(data))
    named = dict(zip(names, nodes.T, strict=False))
    num = len(nodes)
    return Scales(
        named["log_noise"],
        named["log_discrepancy"],
        named.get("growth", np.zeros(num)),
        named.get("log_curve", np.full(num, -np.inf)),
        nodes[:, len(names) :],
    )


class RunSizes(NamedTuple):
    """What the scales make of every run, (N, G, n)."""

    noise_var: np.ndarray  # squared scale of its heavy-tailed noise
    missed_var: np.ndarray  # discrepancy that the features miss, where they miss all
    bend: np.ndarray  # by how much what runs share is larger there than at the best response


def swell(growth: np.ndarray, height: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What noise, and what runs share, are multiplied by at heights (...) under growths (N,); (N, ...) each."""
    swollen = np.exp(growth.reshape(-1, *[1] * height.ndim) * height)
    return swollen, swollen**BEND


def run_sizes(scales: Scales, height: np.ndarray, unit: np.ndarray) -> RunSizes:
    """Sizes of runs at heights (G, n, 1), or (G, n, 0) where errors are of one size; `unit` of the scales."""
    swollen, bend = swell(scales.growth, height.sum(-1))
    noise, discrepancy = (
        unit**2 * np.exp(2.0 * log_scale)[:, None, None] for log_scale in (scales.log_noise, scales.log_discrepancy)
    )
    return RunSizes(noise * swollen**2, discrepancy * bend**2, bend)


def of_one_size(data: FitData) -> FitData:
    """The same runs, their errors taken to be as large everywhere."""
    return data._replace(height=data.height[..., :0])


_MIN_ROWS = 8


def bucket(size: int, *, smallest: int = _MIN_ROWS) -> int:
    """The padded length for `size` rows: the next power of two, so that a growing ledger reuses compiled code."""
    return max(smallest, 1 << max(int(size) - 1, 0).bit_length())


class Compiled(NamedTuple):
    """Jitted evaluations of one law over batches."""

    value: object
    value_and_jacobian: object
    value_at: object
    jacobian_at: object


TRACES: dict[str, int] = {}


def _counted(name: str, function):  # type: ignore[no-untyped-def]
    """Counts how often JAX traces a function: one trace a size bucket is the rule, and a test holds us to it."""

    def traced(*arguments):  # type: ignore[no-untyped-def]
        TRACES[name] = TRACES.get(name, 0) + 1
        return function(*arguments)

    return jax.jit(traced)


@functools.cache
def _compiled(law: Law) -> Compiled:
    def over_rows(function):  # type: ignore[no-untyped-def]
        by_row = jax.vmap(function, (None, 0, None))
        by_domain = jax.vmap(by_row, (0, 0, None))
        return jax.vmap(by_domain, (0, None, None))

    def over_points(function):  # type: ignore[no-untyped-def]
        return jax.vmap(jax.vmap(function, (0, 0, None)), (0, None, None))

    derivative = jax.value_and_grad(law.mean)
    return Compiled(
        value=_counted(f"{law.name}.value", over_rows(law.mean)),
        value_and_jacobian=_counted(f"{law.name}.jacobian", over_rows(derivative)),
        value_at=_counted(f"{law.name}.value_at", over_points(law.mean)),
        jacobian_at=_counted(f"{law.name}.jacobian_at", over_points(derivative)),
    )


_CHUNK = 256  # draws evaluated by one call
_WALKER_CHUNK = 64  # walkers, likewise
_POINT_CHUNK = 2
_JACOBIAN_CHUNK = 16  # starts or nodes whose derivatives are evaluated by one call


def _call(function, chunk: int, theta: np.ndarray, *arguments):  # type: ignore[no-untyped-def]
    """`function` over the first axis of theta in chunks of one fixed length, so that any number of draws reuses it."""
    num = len(theta)
    padded = np.concatenate([theta, np.repeat(theta[-1:], -num % chunk, axis=0)])
    # The processor is the right device for arrays this small, and a planner must not hold a trainer's accelerator.
    with jax.enable_x64(True), jax.default_device(jax.local_devices(backend="cpu")[0]):
        pieces = [function(padded[i : i + chunk], *arguments) for i in range(0, len(padded), chunk)]
        return jax.tree.map(lambda *p: np.concatenate([np.asarray(one) for one in p])[:num], *pieces)


def _pad_points(theta: np.ndarray, coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    padding = bucket(len(coordinates), smallest=64) - len(coordinates)
    theta = np.pad(theta, ((0, 0), (0, padding), (0, 0)), mode="edge")
    return theta, np.pad(coordinates, ((0, padding), (0, 0)), mode="edge")


class BoundLaw(NamedTuple):
    """A law with its priors for one study.  p parameters."""

    law: Law
    context: Context
    prior_mean: np.ndarray  # (p,)
    prior_sd: np.ndarray  # (p,)
    domain_sd: np.ndarray  # (p,)

    @property
    def num_parameters(self) -> int:
        return len(self.prior_mean)

    def value(self, theta: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        """Mean responses (S, G, n) of parameters (S, G, p) at coordinates (G, n, A)."""
        chunk = _CHUNK if len(theta) > _WALKER_CHUNK else _WALKER_CHUNK
        return _call(_compiled(self.law).value, chunk, theta, coordinates, self.context)

    def value_and_jacobian(self, theta: np.ndarray, coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean responses (S, G, n) and their derivatives (S, G, n, p)."""
        chunk = _JACOBIAN_CHUNK if len(theta) < _WALKER_CHUNK else _WALKER_CHUNK
        return _call(_compiled(self.law).value_and_jacobian, chunk, theta, coordinates, self.context)

    def value_at(self, theta: np.ndarray, coordinates: np.ndarray) -> np.ndarray:
        """Mean responses (S, P) where draw s has parameters theta[s, i] at point i of (P, A)."""
        theta, padded = _pad_points(theta, coordinates)
        return _call(_compiled(self.law).value_at, _CHUNK, theta, padded, self.context)[:, : len(coordinates)]

    def jacobian_at(self, theta: np.ndarray, coordinates: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean responses (S, P) and derivatives (S, P, p), parameters as for `value_at`; meant for a few draws."""
        theta, padded = _pad_points(theta, coordinates)
        value, jacobian = _call(_compiled(self.law).jacobian_at, _POINT_CHUNK, theta, padded, self.context)
        return value[:, : len(coordinates)], jacobian[:, : len(coordinates)]

    def hierarchy(self, design: np.ndarray, log_domain: np.ndarray) -> Hierarchy:
        """Priors of the parameters given the logs of the domain scales (..., p); one domain collapses to one level."""
        num_domains, num_shared = design.shape
        if num_domains == 1:
            variance = np.broadcast_to(self.prior_sd**2, (*log_domain.shape[:-1], self.num_parameters))
            shared_var = np.zeros((*variance.shape[:-1], 0, self.num_parameters))
            return Hierarchy(
                np.zeros((1, 0)), np.zeros((0, self.num_parameters)), shared_var, self.prior_mean, variance
            )
        local_var = (self.domain_sd * np.exp(log_domain)) ** 2
        factor_var = np.repeat(local_var[..., None, :], num_shared - 1, axis=-2)
        population = np.broadcast_to(self.prior_sd**2, (*local_var.shape[:-1], 1, self.num_parameters))
        shared_mean = np.zeros((num_shared, self.num_parameters))
        shared_mean[0] = self.prior_mean
        return Hierarchy(
            design,
            shared_mean,
            np.concatenate([population, factor_var], axis=-2),
            np.zeros(self.num_parameters),
            local_var,
        )


def bind(law: Law, context: Context) -> BoundLaw:
    """The law with its priors evaluated for a study."""
    priors: Sequence = law.parameters(context)
    columns = [np.array([getattr(p, key) for p in priors]) for key in ("mean", "sd", "domain_sd")]
    return BoundLaw(law, context, *columns)
