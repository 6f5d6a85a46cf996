"""The printed tables of the seed papers, read from a folder of text files that is never part of this repository.

Cells are separated by tabs; a table's rows stand before the line "Table K:" that explains it.  Numbers come with LaTeX
around them; a half-width after \\pm is that of a 95 % interval.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from planner.errors import InputError

_NUMBER = r"-?\d+(?:\{?,\}?\d{3})*(?:\.\d+)?"


class Value(NamedTuple):
    """One printed number and its half-width, if any."""

    value: float
    half_width: float | None = None


def read_tables(folder: Path) -> dict[int, list[list[str]]]:
    """Rows of cells of every table, by its number.  Raises `InputError` where the folder holds no tables."""
    tables: dict[int, list[list[str]]] = {}
    for file in sorted(folder.glob("*.txt")):
        rows: list[list[str]] = []
        for line in file.read_text(encoding="utf-8").splitlines():
            caption = re.match(r"Table (\d+):", line)
            if caption and rows:
                tables.setdefault(int(caption[1]), rows)
                rows = []
            elif line.count("\t") >= 2:
                rows.append([cell.strip() for cell in line.split("\t")])
    if not tables:
        raise InputError(
            f"{folder} holds no tables: text files with tabs between cells and lines such as 'Table 8: ...'"
        )
    return tables


def numbers(cell: str) -> list[Value]:
    """The numbers of a cell, LaTeX stripped."""
    text = cell.replace("\\mathbf", "").replace("$", "").replace("{,}", "").replace("\\%", "").replace("\\!", "")
    text = re.sub(r"(\d),(\d{3})", r"\1\2", text)
    found = re.findall(rf"({_NUMBER})(?:\s*\\pm\s*({_NUMBER}))?", text)
    return [Value(float(value), float(width) if width else None) for value, width in found]


def number(cell: str) -> Value:
    """The only (or first) number of a cell.  Raises `InputError` where there is none."""
    found = numbers(cell)
    if not found:
        raise InputError(f"no number in the cell {cell!r}")
    return found[0]
