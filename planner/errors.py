"""Errors a user can meet, each with the exit code of the command line.

Everything raised on purpose towards a user derives from `PlannerError`; `str(error)` is a complete sentence that names
the thing, the value, the rule and the next step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


class PlannerError(Exception):
    """Something the user can understand and act on.  `exit_code` is what the command line ends with."""

    exit_code: int = 1


@dataclass(frozen=True, kw_only=True)
class Problem:
    """One thing wrong with an input file; `message` says what and why, `hint` what to do about it."""

    message: str
    file: str = ""
    line: int | None = None
    key: str = ""  # dotted path inside the file, such as "axes[1].low", or a column name
    value: str = ""
    hint: str = ""

    def __str__(self) -> str:
        place = self.file + (f":{self.line}" if self.line is not None else "")
        what = ": ".join(part for part in (place, self.key, self.message) if part)
        if self.value and self.value not in self.message:
            what += f" (got {self.value})"
        return f"{what}. {self.hint}".rstrip() if self.hint else what


class InputError(PlannerError):
    """What the user gave is wrong; nothing was changed.  `problems` lists each, empty when the message is all."""

    exit_code = 2

    def __init__(self, problems: str | Problem | Sequence[Problem]) -> None:
        if isinstance(problems, Problem):
            problems = [problems]
        self.problems: list[Problem] = [] if isinstance(problems, str) else list(problems)
        super().__init__(problems if isinstance(problems, str) else "\n".join(map(str, self.problems)))


class SpecError(InputError):
    """The study file is wrong; `problems` holds all of them, not the first."""


class UnknownRun(InputError):
    """No run has this id."""


class ConflictingResult(InputError):
    """A run that already ended was told something else."""


class NothingAffordable(PlannerError):
    """No design can be bought with what is left."""

    exit_code = 3


class BudgetExceeded(PlannerError):
    """A reservation would exceed the budget; nothing was reserved for it."""

    exit_code = 3


class UnreliableFit(PlannerError):
    """The posterior is not to be trusted."""

    exit_code = 4


class StoreError(PlannerError):
    """The store could not be read or written; what was acknowledged before is still there."""

    exit_code = 5


class StoreBusy(StoreError):
    """Another process kept the store locked for longer than the timeout."""


class StoreDamaged(StoreError):
    """The store is not readable as what we wrote; it is left as it is."""


class StoreTooNew(StoreError):
    """The store was written by a newer version of this program."""
