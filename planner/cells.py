"""Our own reader of numbers in table cells.

Table libraries turn 1e24-sized integers into objects, "1,234" into text and shift columns at a trailing comma, all
without a word.  Here a cell is a number, is missing, or is refused with a hint.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

MISSING_WORDS = frozenset({"", "nan", "na", "n/a", "null", "none", "<na>", "#n/a"})

# Trackers store infinities as the largest double.
FLOAT_LIMIT = 1.797e308

_THOUSANDS = re.compile(r"[+-]?\d{1,3}(?:,\d{3}){2,}(?:\.\d+)?|[+-]?\d{1,3},\d{3}\.\d+")
_DECIMAL_COMMA = re.compile(r"([+-]?\d*),(\d+)((?:[eE][+-]?\d+)?)")
_EUROPEAN = re.compile(r"[+-]?\d{1,3}(?:\.\d{3})+,\d+|[+-]?\d{1,3}(?:\.\d{3}){2,}")
_SUFFIX = re.compile(r"([+-]?\d+(?:\.\d+)?)\s*([kKmMbBgGtT])")
_POWER = {"k": 3, "m": 6, "b": 9, "g": 9, "t": 12}
_PLAIN = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?|[+-]?inf(?:inity)?", re.IGNORECASE)


class RefusedCell(NamedTuple):
    """A cell that is no number: its position in the column, what it holds, the rule and the hint."""

    position: int
    value: str
    rule: str
    hint: str


class NumberColumn(NamedTuple):
    """A column read as numbers: `values` (R,) float64 with NaN where missing, and what was odd about it."""

    values: np.ndarray
    refused: list[RefusedCell]
    thousands: list[int]  # positions of cells such as "1,234,567"
    infinite: list[int]
    blank: list[int]  # positions of empty cells, NA and null; a written NaN is not blank


def read_numbers(cells: Sequence[Any]) -> NumberColumn:
    """Numbers of a column of text cells or JSON values."""
    refused: list[RefusedCell] = []
    thousands: list[int] = []
    blank: list[int] = []
    try:
        # `float` also takes "1_000" and "１", which no table means.
        if not all(map(str.isascii, cells)) or "_" in "".join(cells):
            raise ValueError
        values = np.array(list(map(float, cells)), dtype=np.float64)
    except (TypeError, ValueError):
        values = np.array(list(_read_slowly(cells, refused, thousands, blank)), dtype=np.float64)
    values, infinite = flag_infinite(values)
    return NumberColumn(values, refused, thousands, infinite, blank)


def flag_infinite(values: np.ndarray) -> tuple[np.ndarray, list[int]]:
    """`values` with those at the limit of doubles made infinite, and the positions of all infinite ones."""
    limit = np.abs(values) >= FLOAT_LIMIT
    if limit.any():
        values = np.where(limit, np.copysign(np.inf, values), values)
    return values, np.flatnonzero(limit).tolist()


def _read_slowly(
    cells: Sequence[Any], refused: list[RefusedCell], thousands: list[int], blank: list[int]
) -> Iterator[float]:
    for index, cell in enumerate(cells):
        if cell is None:
            blank.append(index)
            yield math.nan
        elif isinstance(cell, bool) or not isinstance(cell, str | int | float):
            refused.append(RefusedCell(index, str(cell)[:40], "is not a number", "write a number, or leave it empty"))
            yield math.nan
        elif isinstance(cell, str):
            text = cell.strip()
            if _PLAIN.fullmatch(text):
                yield float(text)
            elif text.casefold() in MISSING_WORDS:
                if text.casefold() != "nan":
                    blank.append(index)
                yield math.nan
            elif _THOUSANDS.fullmatch(text):
                thousands.append(index)
                yield float(text.replace(",", ""))
            else:
                refused.append(RefusedCell(index, text[:40], "is not a number", hint_for(text)))
                yield math.nan
        else:
            try:
                yield float(cell)
            except OverflowError:
                yield math.inf if cell > 0 else -math.inf


def is_number(text: str) -> bool:
    """Whether a cell is a plain number, infinities included."""
    return _PLAIN.fullmatch(text.strip()) is not None


def hint_for(text: str) -> str:
    """What to write instead of a cell that is not a number."""
    comma = _DECIMAL_COMMA.fullmatch(text)
    if comma is not None and len(comma[2]) == 3 and 1 <= len(comma[1].lstrip("+-")) <= 3 and not comma[3]:
        return f"The comma is ambiguous: write {comma[1]}{comma[2]} or {comma[1]}.{comma[2]}"
    if comma is not None:
        return f"Decimal comma: write {comma[1] or '0'}.{comma[2]}{comma[3]}"
    if _EUROPEAN.fullmatch(text):
        return f"Write {text.replace('.', '').replace(',', '.')}, with a decimal point and no thousands separators"
    suffix = _SUFFIX.fullmatch(text)
    if suffix is not None:
        return f"Write {suffix[1]}e{_POWER[suffix[2].lower()]}"
    if text.endswith("%"):
        return "Write a share of 1 instead of per cent"
    if re.fullmatch(r"[+-]?\d[\d_ \u00a0\u2009\u202f']*(?:\.\d+)?", text):
        return f"Write {re.sub(r'[^0-9.+-]', '', text)} without separators"
    return "Write a number such as 1e9, or leave the cell empty"


def read_flag(text: str) -> bool | None:
    """Truth of a cell such as "true", "0" or "yes"; None when missing.  Raises `ValueError` for anything else."""
    word = text.strip().casefold()
    if word in MISSING_WORDS:
        return None
    if word in ("true", "1", "1.0", "yes", "t", "y"):
        return True
    if word in ("false", "0", "0.0", "no", "f", "n"):
        return False
    raise ValueError(text)
