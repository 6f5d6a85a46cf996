"""What the published forms share: priors free of units, raw parameters from them, and the response from those.

A form is written once, in raw units as published.  Its priors are on numbers without units, and `Form.raw` turns
these into the published parameters:

- the parameter of a positive term `a` is the log of that term at the centre of the runs, in units of the height of the
  reference response above the floor; raw `log_a` is the log of its amplitude;
- `log_x` is the log of a positive shape parameter x (an exponent, a rate);
- `unit_x` is a signed coefficient x in units of the spread of the responses, `log_unit_x` a positive one;
- any other name is the raw parameter itself, unless the form says in `make` how to get it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any, Literal

import jax
import jax.numpy as jnp
import numpy as np

from planner.laws.base import (
    Context,
    LawAxis,
    LawFamily,
    Parameter,
    floor_and_height,
    floor_parameter,
    log_exponent_parameter,
)
from planner.laws.roles import Mean, Parameters, bounded_exp, positive

Raw = SimpleNamespace  # raw parameters by name
Part = Callable[[Any, jax.Array], jax.Array]  # (raw parameters, coordinates (A,)) -> ()

# Keeps the log of an amplitude finite where a search drives the floor on to the reference.
_LEAST_HEIGHT = 1e-12


class At(SimpleNamespace):
    """Where a form is anchored: `centre` (A,), `spread` (A,) at least .3 on log axes, `scale`, `level` (the positive
    size of a response), `floor`, `height` and its log, all arrays.
    """


@dataclasses.dataclass(frozen=True, kw_only=True)
class Form:
    """response = c + sum of positive terms + centred(x) - centred(centre) + rest(x), c the anchor.

    `anchor` says what the constant is: "floor" as in the laws of the house; "share" where the floor is itself a
    positive term `c`, the floor's parameter dividing the level of the responses; "free" for a constant of any sign,
    whose parameter `c` is the response at the centre, off the reference in spreads; "none" for no constant, the terms
    then being in units of the level.  `terms` gives the log of each positive term but for its amplitude; `make` adds
    or replaces raw parameters.
    """

    formula: str
    anchor: Literal["floor", "share", "free", "none"]
    parameters: Sequence[Parameter]
    terms: Mapping[str, Part] = dataclasses.field(default_factory=dict)
    make: Callable[[Any, At], Mapping[str, Any]] = lambda raw, at: {}
    centred: Part | None = None
    rest: Part | None = None

    def raw(self, theta: jax.Array, context: Context) -> Raw:
        """The published parameters of theta (p,)."""
        given = {p.name: theta[i] for i, p in enumerate(self.parameters)}
        at = self._anchored(given.get("floor", jnp.zeros(())), context)
        raw = Raw(**{k: v for name, t in given.items() for k, v in _natural(name, t, at) if name not in self.terms})
        vars(raw).update(self.make(raw, at))
        for name, part in self.terms.items():
            is_floor = self.anchor == "share" and name == "c"
            size = at.log_floor if is_floor else at.log_height + given[name]
            setattr(raw, f"log_{name}", size - part(raw, at.centre))
        if self.anchor in ("floor", "free"):
            base = at.floor if self.anchor == "floor" else context.reference + at.scale * given["c"]
            raw.c = base - (self.centred(raw, at.centre) if self.centred else 0.0)
        return raw

    def response(self, raw: Raw, x: jax.Array) -> jax.Array:
        """The response at coordinates x (A,)."""
        result = raw.c if self.anchor in ("floor", "free") else jnp.zeros(())
        for name, part in self.terms.items():
            result = result + bounded_exp(getattr(raw, f"log_{name}") + part(raw, x))
        for extra in (self.centred, self.rest):
            if extra is not None:
                result = result + extra(raw, x)
        return result

    def family(self, name: str, source: str, axes: Sequence[tuple[str, bool]]) -> LawFamily:
        """The form as a law of exactly these axes (name, is it on a log scale), used only where it is named."""

        def suits(found: tuple[LawAxis, ...]) -> str | None:
            return source if [(a.name, a.is_log) for a in found] == list(axes) else None

        return LawFamily(
            name=name,
            formula=self.formula,
            source=source,
            suits=suits,
            build=lambda found: self._law(),
            automatic=False,
        )

    def _law(self) -> tuple[Mean, Parameters]:
        def mean(theta: jax.Array, coordinates: jax.Array, context: Context) -> jax.Array:
            return self.response(self.raw(theta, context), coordinates)

        def parameters(context: Context) -> list[Parameter]:
            return [floor_parameter(context) if p is FLOOR else p for p in self.parameters]

        return mean, parameters

    def _anchored(self, phi: jax.Array, context: Context) -> At:
        scale, reference = jnp.asarray(context.scale), jnp.asarray(context.reference)
        # A form without a signed constant is positive; where responses are not, it can but be small.
        level = jnp.maximum(reference, scale)
        at = At(centre=jnp.asarray(context.centre), spread=jnp.maximum(jnp.asarray(context.spread), 0.3), scale=scale)
        if self.anchor == "floor":
            floor, height = floor_and_height(phi, context)
        elif self.anchor == "share":
            floor, height = level * jax.nn.sigmoid(phi), level * jax.nn.sigmoid(-phi)
        else:
            floor, height = jnp.zeros(()), level
        at.level, at.floor, at.height = level, floor, height
        at.log_height = jnp.log(jnp.maximum(height, _LEAST_HEIGHT * scale))
        at.log_floor = jnp.log(jnp.maximum(floor, _LEAST_HEIGHT * scale)) if self.anchor == "share" else None
        return at


def _natural(name: str, t: jax.Array, at: At) -> list[tuple[str, jax.Array]]:
    """The raw parameter of a unit-free one, by the rule of its name."""
    if name.startswith("log_unit_"):
        return [(name.removeprefix("log_unit_"), at.scale * positive(t))]
    if name.startswith("log_"):
        return [(name.removeprefix("log_"), positive(t))]
    if name.startswith("unit_"):
        return [(name.removeprefix("unit_"), at.scale * t)]
    return [(name, t)]


# --- priors ----------------------------------------------------------------------------------------------------------

FLOOR = Parameter(name="floor", mean=0.0, sd=1.0, domain_sd=0.3)  # stands for `floor_parameter`, which needs a context
_OF_SCALE = log_exponent_parameter(LawAxis(name="", role="parameters"))
_OF_OTHERS = log_exponent_parameter(LawAxis(name=""))


def amplitude(name: str, num_terms: int = 1, *, sd: float = 1.0) -> Parameter:
    """A positive term that has an equal part of the height with others."""
    return Parameter(name=name, mean=-float(np.log(num_terms)), sd=sd, domain_sd=0.3)


def exponent(name: str) -> Parameter:
    """Exponent of model size or data, median .35; see `planner.laws.base.log_exponent_parameter`."""
    return dataclasses.replace(_OF_SCALE, name=f"log_{name}")


def product_exponent(name: str) -> Parameter:
    """Exponent of an axis that acts on the whole excess together with others, hence half as large."""
    return Parameter(name=f"log_{name}", mean=_OF_SCALE.mean - float(np.log(2.0)), sd=0.8, domain_sd=0.15)


def other_exponent(name: str) -> Parameter:
    """Exponent of an axis that is neither size nor data, median .25 and wide."""
    return dataclasses.replace(_OF_OTHERS, name=f"log_{name}")


def log_of(name: str, median: float, sd: float) -> Parameter:
    """A positive number known to within a factor; `name` with its prefix."""
    return Parameter(name=name, mean=float(np.log(median)), sd=sd, domain_sd=0.3 * sd)


def signed(name: str, mean: float, sd: float) -> Parameter:
    """A number of either sign."""
    return Parameter(name=name, mean=mean, sd=sd, domain_sd=0.3 * sd)
