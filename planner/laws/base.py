"""What a law is: the mean response of one run, its parameters and their priors."""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

OPTIMUM_ROLES = frozenset({"learning_rate", "batch_size"})


@dataclasses.dataclass(frozen=True, kw_only=True)
class LawAxis:
    """What a law may know of an axis before any run; hashable, so that built laws and compiled code are reused."""

    name: str
    role: str | None = None
    is_log: bool = True
    source_of: str | None = None  # the axis that this one is another way to buy
    log_zero: float | None = None  # coordinate of a source of which nothing is bought
    discount: tuple[float, float] | None = None  # see `planner.laws.sources`
    break_even: tuple[float, float] | None = None

    @property
    def has_optimum(self) -> bool:
        """True where more is not always better (learning rate, batch size)."""
        return self.role in OPTIMUM_ROLES


def law_axes(axes: Iterable[Any]) -> tuple[LawAxis, ...]:
    """What laws may know of the axes of a study (`planner.spec.Axis`)."""
    known = [field.name for field in dataclasses.fields(LawAxis)]
    return tuple(LawAxis(**{name: getattr(axis, name) for name in known}) for axis in axes)


class Context(NamedTuple):
    """Constants of one study that every law sees; arrays, so that studies of one shape share compiled code.

    A = number of axes.  Coordinates are natural logarithms for log axes and raw values for linear ones.
    """

    centre: np.ndarray  # (A,) coordinates of the middle of the runs bought so far
    spread: np.ndarray  # (A,) standard deviation of the coordinates over the designs of the study
    reference: np.ndarray  # () response near the centre, on the scale where laws are written
    scale: np.ndarray  # () spread of the responses, > 0
    lower: np.ndarray  # () physical lower bound of the response (0 for a loss), -inf if there is none


@dataclasses.dataclass(frozen=True, kw_only=True)
class Parameter:
    """One unconstrained parameter: Normal prior over the study, and how far domains lie apart."""

    name: str
    mean: float
    sd: float
    domain_sd: float


@dataclasses.dataclass(frozen=True, kw_only=True)
class Law:
    """A parametric form of the mean response, written for the axes of one study.

    `mean(theta (p,), coordinates (A,), context) -> ()` is pure JAX and smaller is better; `parameters(context)` gives
    p priors.  `reason` says in words why the law suits the axes.
    """

    name: str
    axes: tuple[LawAxis, ...]
    mean: Callable[[jax.Array, jax.Array, Context], jax.Array]
    parameters: Callable[[Context], Sequence[Parameter]]
    reason: str = ""
    unimodal: bool = False  # see `LawFamily`


@dataclasses.dataclass(frozen=True, kw_only=True)
class LawFamily:
    """A named form that can be written for many sets of axes.

    `suits(axes)` returns why the form may be used with these axes, or None if it does not suit; `build(axes)` returns
    the mean and parameter functions.
    """

    name: str
    formula: str
    source: str
    suits: Callable[[tuple[LawAxis, ...]], str | None]
    build: Callable[
        [tuple[LawAxis, ...]],
        tuple[
            Callable[[jax.Array, jax.Array, Context], jax.Array],
            Callable[[Context], Sequence[Parameter]],
        ],
    ]
    monotone: bool = False  # never rises with an axis that has no interior optimum
    unimodal: bool = False  # its level sets are convex in the logs: under a posynomial cost there is one minimum
    of_scores: bool = False  # describes scores between chance and a ceiling, not losses
    automatic: bool = True  # False: used only where a study names it, never by `use = "auto"`


# --- the floor, shared by every law that has one ---------------------------------------------------------------------


def floor_parameter(context: Context) -> Parameter:
    """Prior of the irreducible response.

    The floor decides extrapolation: cheap runs lie far above it, so its prior reaches from near the reference down to
    the physical bound, and is never tied to the spread of what was bought.
    """
    if np.isfinite(context.lower):
        return Parameter(name="floor", mean=0.4, sd=1.2, domain_sd=0.3)
    return Parameter(name="floor", mean=float(np.log(3.0)), sd=0.9, domain_sd=0.3)


def floor_and_height(phi: jax.Array, context: Context) -> tuple[jax.Array, jax.Array]:
    """The floor and its distance below the reference, from the floor's unconstrained parameter."""
    lower = jnp.asarray(context.lower)
    is_bounded = jnp.isfinite(lower)
    # Both branches are evaluated: a safe bound keeps the unused one finite, and its gradient with it.
    safe_lower = jnp.where(is_bounded, lower, context.reference - context.scale)
    height = jnp.where(
        is_bounded,
        (context.reference - safe_lower) * jax.nn.sigmoid(-phi),
        context.scale * jnp.exp(phi),
    )
    return jnp.asarray(context.reference) - height, height


def log_exponent_parameter(axis: LawAxis, suffix: str = "") -> Parameter:
    """Prior of log alpha: median .35, 90 % in .13-.94, which holds the published exponents of losses.

    Axes that are neither size nor data often have far smaller exponents, hence the wider prior.  Settings of one study
    differ by about a tenth (He et al. 2026, tables 2 and 13); the scale of that is learned.
    """
    name = f"log_exponent_{axis.name}{suffix}"
    if axis.role in {"parameters", "active_parameters", "tokens", "unique_tokens", "examples", "compute"}:
        return Parameter(name=name, mean=float(np.log(0.35)), sd=0.6, domain_sd=0.15)
    return Parameter(name=name, mean=float(np.log(0.25)), sd=0.9, domain_sd=0.15)
