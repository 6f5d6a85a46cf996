"""What a question returns: plain numbers, tables, and what to know before using them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd

LEVELS: Mapping[str, float] = {"q05": 0.05, "q25": 0.25, "median": 0.5, "q75": 0.75, "q95": 0.95}


@dataclass(frozen=True, kw_only=True)
class Answer:
    """The answer to one question in one domain.

    `values` are single numbers, `tables` what has rows.  `document()` puts both side by side; docs/recipes.md lists its
    keys for each question.
    """

    question: str
    domain: str
    values: Mapping[str, Any]
    tables: Mapping[str, pd.DataFrame]
    notes: Sequence[str] = ()

    def __getitem__(self, name: str) -> Any:
        """A table or a value by its name."""
        return self.tables[name] if name in self.tables else self.values[name]

    def document(self) -> dict[str, Any]:
        """The answer as plain values: missing numbers None."""
        tables = {name: _records(table) for name, table in self.tables.items()}
        head = {"question": self.question, "domain": self.domain}
        return head | {k: plain(v) for k, v in self.values.items()} | tables | {"notes": list(self.notes)}

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything, as one array of text; `from_arrays` is the inverse."""
        tables = {name: {"columns": list(t), "rows": _records(t)} for name, t in self.tables.items()}
        values = {k: plain(v) for k, v in self.values.items()}
        content = {"question": self.question, "domain": self.domain, "values": values, "notes": list(self.notes)}
        return {"answer": np.array(json.dumps(content | {"tables": tables}))}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Answer:
        """The answer that `to_arrays` wrote."""
        import pandas as pd

        content = json.loads(str(arrays["answer"]))
        tables = {name: pd.DataFrame(t["rows"], columns=t["columns"]) for name, t in content.pop("tables").items()}
        return cls(tables=tables, **content)


def plain(value: Any) -> Any:
    """A number or text as JSON has it: None for what is not finite."""
    if isinstance(value, Mapping):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return [plain(v) for v in value]
    if isinstance(value, bool | np.bool_):
        return bool(value)
    if isinstance(value, int | float | np.number):
        number = value.item() if isinstance(value, np.number) else value
        return number if np.isfinite(number) else None
    return value


def _records(table: pd.DataFrame) -> list[dict[str, Any]]:
    return [{str(k): plain(v) for k, v in row.items()} for row in table.to_dict(orient="records")]


def quantiles(values: np.ndarray, prefix: str = "") -> dict[str, float]:
    """Median, 50 % and 90 % interval; draws that are infinite count, NaN does not.  NaN without any draw."""
    known = np.sort(values[~np.isnan(values)])
    if not len(known):
        return {prefix + name: float("nan") for name in LEVELS}
    # Of draws, not between them: the mean of a number and infinity would be infinity.
    at = [known[min(int(np.ceil(level * len(known))) - 1, len(known) - 1)] for level in LEVELS.values()]
    return {prefix + name: float(value) for name, value in zip(LEVELS, at, strict=True)}


def raw_quantiles(scale: Any, eta: np.ndarray) -> dict[str, float]:
    """Quantiles of responses in raw units from draws on the scale of the laws."""
    return quantiles(scale.from_eta(eta))
