"""Line numbers of keys in a TOML text, which the standard parser does not give."""

from __future__ import annotations

import re

_HEADER = re.compile(r"^\s*(\[\[?)\s*([^\]#]+?)\s*\]\]?\s*(?:#.*)?$")
_KEY = re.compile(r"""^\s*((?:[\w-]+|"[^"]*"|'[^']*')(?:\s*\.\s*(?:[\w-]+|"[^"]*"|'[^']*'))*)\s*=""")
_PART = re.compile(r"""[\w-]+|"[^"]*"|'[^']*'""")


def line_of(text: str, key: str) -> int | None:
    """Line (from 1) of a key such as "axes[1].low", else of the nearest table or key around it.

    Keys inside inline tables are given the line on which the inline value begins.  None when nothing fits.
    """
    lines = _key_lines(text)
    while key:
        if key in lines:
            return lines[key]
        shorter = re.sub(r"(\[\d+\]|\.[^.\[\]]*|^[^.\[\]]*)$", "", key)
        key = shorter if len(shorter) < len(key) else key[:-1]
    return None


def _key_lines(text: str) -> dict[str, int]:
    """Every header and `key =` line under its dotted name with list indices; the first of a kind wins."""
    found: dict[str, int] = {}
    counts: dict[str, int] = {}
    table = ""
    for number, line in enumerate(text.splitlines(), start=1):
        header = _HEADER.match(line)
        if header is not None and not _KEY.match(line):
            table = _header_name(header[1], header[2], counts)
            found.setdefault(table, number)
            continue
        match = _KEY.match(line)
        if match is not None:
            name = ".".join(part.strip("\"'") for part in _PART.findall(match[1]))
            found.setdefault(f"{table}.{name}" if table else name, number)
    return found


def _header_name(brackets: str, dotted: str, counts: dict[str, int]) -> str:
    """The table's name with indices: the second [[axes]] is "axes[1]", a [axes.sub] below it "axes[1].sub"."""
    path = ""
    parts = [part.strip("\"'") for part in _PART.findall(dotted)]
    for position, part in enumerate(parts):
        path = f"{path}.{part}" if path else part
        if brackets == "[[" and position == len(parts) - 1:
            counts[path] = counts.get(path, -1) + 1
        if path in counts:
            path = f"{path}[{counts[path]}]"
    return path
