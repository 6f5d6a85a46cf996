"""The laws of the house: a registry of families, and the choice of those that suit a study.

A user's law is one file: define a `LawFamily` and call `register`, or name it under the entry point group
`planner.laws` of a package.
"""

import functools
import importlib.metadata
from collections.abc import Sequence

from planner.errors import InputError
from planner.laws import sources
from planner.laws.agentic import GATED_POWERS, SCALED_POWERS
from planner.laws.base import Context, Law, LawAxis, LawFamily, Parameter, law_axes
from planner.laws.coupled import COUPLED_POWERS
from planner.laws.curves import BROKEN_POWER, RECTIFIED, SIGMOID, U_SHAPE
from planner.laws.downstream import LATENT_LOSS
from planner.laws.experts import EXPERTS, SPARSITY
from planner.laws.exponential import EXP_BILINEAR, EXP_QUADRATIC
from planner.laws.learning import LEARNING
from planner.laws.mixture import MIXTURE_BENT, MIXTURE_EXPONENTIAL, MIXTURE_POWERS
from planner.laws.powers import POWER_OF_SUM, PRODUCT_OF_POWERS, SUM_OF_POWERS
from planner.laws.precision import PRECISION
from planner.laws.repetition import CAPPED_TOKENS, EFFECTIVE_TOKENS
from planner.laws.rollouts import ROLLOUT_SIGMOID
from planner.laws.streams import STREAMS
from planner.laws.valley import VALLEY, VALLEY_PRODUCT
from planner.laws.vocabulary import VOCABULARY

__all__ = ["Context", "Law", "LawAxis", "LawFamily", "Parameter", "families", "law_axes", "register", "select"]

_REGISTRY: dict[str, LawFamily] = {}


def register(family: LawFamily) -> LawFamily:
    """Adds a family under its name; a second family of the same name is refused."""
    known = _REGISTRY.get(family.name)
    if known is not None and known is not family:
        raise InputError(f"law {family.name!r} is registered already; give yours another name")
    _REGISTRY[family.name] = family
    return family


_GENERAL = (SUM_OF_POWERS, PRODUCT_OF_POWERS, POWER_OF_SUM, EXP_QUADRATIC, EXP_BILINEAR, COUPLED_POWERS)
_CURVES = (BROKEN_POWER, SIGMOID, RECTIFIED, U_SHAPE)
_OF_ROLES = (
    VALLEY,
    VALLEY_PRODUCT,
    EFFECTIVE_TOKENS,
    CAPPED_TOKENS,
    EXPERTS,
    SPARSITY,
    VOCABULARY,
    STREAMS,
    MIXTURE_EXPONENTIAL,
    MIXTURE_BENT,
    MIXTURE_POWERS,
    PRECISION,
    LATENT_LOSS,
    LEARNING,
    ROLLOUT_SIGMOID,
    GATED_POWERS,
    SCALED_POWERS,
)
for _family in (*_GENERAL, *_CURVES, *_OF_ROLES):
    register(_family)


@functools.cache
def _load_entry_points() -> None:
    for entry in importlib.metadata.entry_points(group="planner.laws"):
        register(entry.load())


def families() -> dict[str, LawFamily]:
    """All registered families by name, those of installed packages included."""
    _load_entry_points()
    return dict(_REGISTRY)


@functools.cache
def _write(family: LawFamily, axes: tuple[LawAxis, ...]) -> Law:
    real = sources.real_axes(axes)
    mean, parameters = family.build(real)
    reason = family.suits(real) or ""
    law = Law(name=family.name, axes=real, mean=mean, parameters=parameters, reason=reason, unimodal=family.unimodal)
    return law if len(real) == len(axes) else sources.with_sources(law, axes)


def select(axes: Sequence[LawAxis], use: str | Sequence[str] = "auto", *, is_score: bool = True) -> list[Law]:
    """The laws for these axes: every automatic family that suits them ("auto"), or those named.

    `is_score` says whether the response may be a score between chance and a ceiling; if not, "auto" leaves out the
    laws that are made for one.

    Sources are no axes to a family: what they are worth is added to the axis that they are a source of.

    The same axes give the same `Law` objects, so that compiled code is found again.

    Raises:
        InputError: an unknown name, or a named law that cannot be written for these axes.
    """
    known = families()
    axes = tuple(axes)
    real = sources.real_axes(axes)
    if use == "auto":
        offered = (f for f in known.values() if f.automatic and (is_score or not f.of_scores))
        return [_write(family, axes) for family in offered if family.suits(real) is not None]
    names = [use] if isinstance(use, str) else list(use)
    unknown = [name for name in names if name not in known]
    if unknown:
        raise InputError(f"unknown law {', '.join(map(repr, unknown))}; known laws: {', '.join(sorted(known))}")
    unfit = [name for name in names if known[name].suits(real) is None]
    if unfit:
        described = ", ".join(f"{axis.name} ({'log' if axis.is_log else 'linear'})" for axis in axes)
        raise InputError(f"law {', '.join(map(repr, unfit))} cannot be written for the axes {described}")
    return [_write(known[name], axes) for name in names]
