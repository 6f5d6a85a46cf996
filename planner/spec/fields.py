"""Field types of the study file, and how one section complains about several keys at once."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, NamedTuple

import pydantic
from pydantic import AfterValidator, BeforeValidator
from pydantic_core import PydanticCustomError


class Section(pydantic.BaseModel):
    """Settings shared by all sections: immutable, no unknown keys, no silent conversions."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid", strict=True)


class Complaint(NamedTuple):
    """One mistake inside a section: `key` is relative to the section, dotted with indices."""

    key: str
    value: Any
    rule: str
    fix: str


def refuse(complaints: Iterable[Complaint]) -> None:
    """Raises one pydantic error that carries every complaint; returns quietly when there is none."""
    found = list(complaints)
    if found:
        text = "; ".join(f"{c.key}: {c.rule}; {c.fix}" if c.fix else f"{c.key}: {c.rule}" for c in found)
        raise PydanticCustomError("complaints", "{text}", {"text": text, "complaints": found})


def complain(rule: str, fix: str) -> PydanticCustomError:
    """The error to raise for the value under validation."""
    return PydanticCustomError("complaint", "{rule}; {fix}", {"rule": rule, "fix": fix})


def read_number(value: Any) -> float:
    """A finite float from a TOML integer of any size or a TOML float.

    Booleans, text, NaN and infinities are refused: `true` would become 1 and "1e9" is a unit mistake waiting.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        if isinstance(value, str):
            try:
                float(value)
            except ValueError:
                fix = "write a number such as 1e9"
            else:
                fix = f"write {value.strip()} without quotes"
            raise complain("must be a number, not text", fix)
        raise complain(f"must be a number, not {describe_type(value)}", "write a number such as 1e9")
    try:
        number = float(value)
    except OverflowError:
        raise complain("must fit a double, that is be below 1.8e308", "choose a larger unit") from None
    if not math.isfinite(number):
        raise complain("must be finite", "write a finite number, or remove the key to leave it open")
    return number


def read_whole(value: Any) -> int:
    """An integer, also when written as 256.0 or 1e3."""
    number = read_number(value)
    if number != math.floor(number):
        raise complain("must be a whole number", f"write {math.floor(number)} or {math.ceil(number)}")
    return int(value)


def describe_type(value: Any) -> str:
    """The TOML word for a value's type."""
    words = {bool: "true or false", str: "text", int: "a number", float: "a number", list: "a list", dict: "a table"}
    return words.get(type(value), type(value).__name__)


def _check_positive(value: float) -> float:
    if not value > 0:
        raise complain("must be greater than 0", "write a positive number")
    return value


def _check_seed(value: int) -> int:
    if not 0 <= value < 2**31:
        raise complain("must be between 0 and 2147483647", "choose another seed")
    return value


def _check_label(value: str) -> str:
    if not value or value != value.strip() or not value.isprintable():
        raise complain(
            "must be printable text, not empty, without blanks at its ends", "write a short name such as 'web'"
        )
    return value


def _check_axis_name(value: str) -> str:
    # The command line reads `--at N=1e9,D=2e10`.
    if any(mark in value for mark in "=,") or any(mark.isspace() for mark in value):
        raise complain("must not hold '=', ',' or blanks", f"write {_plain(value)!r}")
    return value


def _plain(value: str) -> str:
    return "_".join(value.replace("=", " ").replace(",", " ").split())


Number = Annotated[float, BeforeValidator(read_number)]
Positive = Annotated[Number, AfterValidator(_check_positive)]
Whole = Annotated[int, BeforeValidator(read_whole)]
Count = Annotated[Whole, AfterValidator(_check_positive)]
Seed = Annotated[Whole, AfterValidator(_check_seed)]
Label = Annotated[str, AfterValidator(_check_label)]
AxisName = Annotated[Label, AfterValidator(_check_axis_name)]
