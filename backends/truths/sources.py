"""What units from other sources are truly worth: written here a second time, as the truths are.

`sources` maps a study axis to a table: `of` the axis it is a source of, `discount` its worth beside as many real
units, `break_even` the units per real one that are worth nothing together (above 1), `bend` how the worth falls in
between (0: with the logarithm of the ratio).
"""

from collections.abc import Mapping
from typing import Any

import numpy as np

_KEYS = {"of", "discount", "break_even", "bend"}
_LEAST = 1e-3  # part of the real units that is left at worst


def check_sources(sources: Any) -> None:
    """Raises `ValueError` saying what is wrong with the table of sources."""
    if not isinstance(sources, Mapping):
        raise ValueError(f"sources is {sources!r}; it must be a table of axes")
    for name, table in sources.items():
        if not isinstance(table, Mapping) or "of" not in table or not set(table) <= _KEYS:
            raise ValueError(f"sources.{name} is {table!r}; it needs of = AXIS and may have {', '.join(sorted(_KEYS))}")
        if not table.get("break_even", 8.5) > 1 or not -0.9 < table.get("bend", 0.0) < 5:
            raise ValueError(f"sources.{name}: break_even must exceed 1 and bend lie between -0.9 and 5")


def with_worth(sources: Mapping[str, Mapping[str, Any]], axes: Mapping[str, Any]) -> dict[str, Any]:
    """Axis values without the sources, the amounts they add to counted in."""
    real = {name: value for name, value in axes.items() if name not in sources}
    gained = {name: np.ones(()) for name in real}
    for name, table in sources.items():
        if name in axes:
            ratio = np.asarray(axes[name], dtype=float) / np.asarray(real[table["of"]], dtype=float)
            gained[table["of"]] = gained[table["of"]] + ratio * _discount(ratio, table)
    return {name: value * np.maximum(gained[name], _LEAST) for name, value in real.items()}


def _discount(ratio: Any, table: Mapping[str, Any]) -> Any:
    """kappa(r) = kappa_1 (1 - b(r) / b(R)), b the Box-Cox transform of power `bend`; 0 where nothing was bought."""
    bend, some = table.get("bend", -0.3), np.where(ratio > 0, ratio, 1.0)

    def box_cox(x: Any) -> Any:
        return np.log(x) if bend == 0 else (np.power(x, bend) - 1.0) / bend

    fall = box_cox(some) / box_cox(table.get("break_even", 8.5))
    return np.where(ratio > 0, table.get("discount", 0.71) * (1.0 - fall), 0.0)
