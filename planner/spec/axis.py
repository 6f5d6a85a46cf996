"""`[[axes]]` as declared, and the roles that laws know."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal, Self

import pydantic

from planner.spec.fields import AxisName, Complaint, Label, Number, Positive, Section, refuse

KNOWN_ROLES = (
    "parameters", "active_parameters", "tokens", "unique_tokens", "learning_rate", "batch_size", "experts", "sparsity",
    "vocabulary", "precision", "mixture", "streams", "examples", "compute", "environments", "worlds", "structures",
    "tasks", "trajectories", "reward_density", "rollouts", "problems", "updates", "tools", "databases", "complexity",
    "width", "depth", "routing_frequency",
)  # fmt: skip

# A step count this far from whole is a mistake in the file, not rounding in decimal fractions.
STEP_TOLERANCE = 1e-6


class AxisSection(Section):
    """`[[axes]]` as declared: `low` and `high` may be left to `values`, to a share's 0 and 1, or to the pool."""

    name: AxisName
    unit: str = ""
    low: Number | None = None
    high: Number | None = None
    integer: bool = False
    step: Positive | None = None
    values: tuple[Number, ...] | None = None
    role: Label | None = None
    simplex: Label | None = None
    scale: Literal["log", "linear"] = "log"
    # How values are counted ("non-embedding"), and what a value in a table that counts otherwise is multiplied by.
    convention: Label | None = None
    conversions: dict[Label, Positive] = pydantic.Field(default_factory=dict)
    # Another way to buy the axis named here; none of it may be bought, so 0 is allowed beside `low` to `high`.
    source_of: AxisName | None = None
    discount: tuple[Positive, Positive] | None = None  # worth of a unit beside as many real ones, and its error
    break_even: tuple[Positive, Positive] | None = None  # units per real one that are worth nothing, and its error

    def has_room_for(self, value: float) -> bool:
        """Whether the axis has a place for a number, inside its bounds or not: log axes have none at 0 or below, but
        of a source nothing may be bought.
        """
        return self.scale == "linear" or value > 0 or (value == 0 and self.source_of is not None)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        if data.get("role") == "mixture" or data.get("simplex") is not None:
            data.setdefault("scale", "linear")
            if data.get("values") is None:
                data.setdefault("low", 0.0)
                data.setdefault("high", 1.0)
        for key in ("discount", "break_even"):
            if isinstance(data.get(key), list):
                data[key] = tuple(data[key])
        values = data.get("values")
        if isinstance(values, list):
            if data.get("source_of") is not None:
                values = [value for value in values if value != 0]  # allowed in any case
            numbers = all(isinstance(v, int | float) and not isinstance(v, bool) for v in values)
            data["values"] = tuple(sorted(values)) if numbers else tuple(values)
            if numbers and values:
                data.setdefault("low", min(values))
                data.setdefault("high", max(values))
        return data

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        refuse(self._complaints())
        return self

    def _complaints(self) -> Iterator[Complaint]:
        if self.conversions and self.convention is None:
            yield Complaint(
                "convention", None, "conversions need one to convert to", 'add convention = "non-embedding"'
            )
        yield from self._range_complaints()
        yield from self._source_complaints()
        if self.values is not None:
            yield from self._value_complaints(self.values)
        else:
            yield from self._step_complaints()

    def _range_complaints(self) -> Iterator[Complaint]:
        name, low, high = self.name, self.low, self.high
        share = self.role == "mixture" or self.simplex is not None
        if self.scale == "log":
            for key, bound in (("low", low), ("high", high)):
                # A bound taken from `values` is reported there.
                if bound is not None and bound <= 0 and bound not in (self.values or ()):
                    yield Complaint(
                        key,
                        bound,
                        f"axis {name!r} is on a log scale, so it must be greater than 0",
                        'raise the bound, or write scale = "linear" (role = "mixture" for a share)',
                    )
        if low is not None and high is not None and low > high:
            yield Complaint("low", low, f"must not be above high = {high:g}", "exchange low and high")
        if share:
            for key, bound in (("low", low), ("high", high)):
                if bound is not None and not 0 <= bound <= 1:
                    yield Complaint(key, bound, f"axis {name!r} is a share, between 0 and 1", "give shares of 1")
        if self.integer:
            for key, bound in (("low", low), ("high", high)):
                if bound is not None and bound != math.floor(bound):
                    yield Complaint(
                        key, bound, f"axis {name!r} is integer", f"write {math.floor(bound)} or {math.ceil(bound)}"
                    )

    def _source_complaints(self) -> Iterator[Complaint]:
        if self.source_of is None:
            for key in ("discount", "break_even"):
                if getattr(self, key) is not None:
                    yield Complaint(key, getattr(self, key), "describes a source", 'add source_of = "AXIS"')
            return
        for key, wrong in (("scale", self.scale != "log"), ("simplex", self.simplex is not None)):
            if wrong:
                yield Complaint(key, getattr(self, key), "does not go with source_of", f"remove {key}")
        if self.break_even is not None and self.break_even[0] <= 1:
            rule = "a source is worth something beside as many real units, so it breaks even above 1"
            yield Complaint("break_even", list(self.break_even), rule, "write a ratio above 1")

    def _value_complaints(self, values: tuple[float, ...]) -> Iterator[Complaint]:
        if not values:
            yield Complaint("values", [], "must hold at least one number", "list the allowed values, or remove the key")
        repeated = sorted({v for v, w in itertools.pairwise(values) if v == w})
        if repeated:
            yield Complaint("values", repeated[0], "holds the same number twice", "remove the repeated one")
        if self.step is not None:
            yield Complaint("step", self.step, "cannot be combined with values", "remove step or values")
        for value in values:
            if self.integer and value != math.floor(value):
                yield Complaint("values", value, f"axis {self.name!r} is integer", "list whole numbers")
            if self.scale == "log" and value <= 0:
                yield Complaint(
                    "values",
                    value,
                    f"axis {self.name!r} is on a log scale",
                    'list positive numbers, or scale = "linear"',
                )
            if (self.low is not None and value < self.low) or (self.high is not None and value > self.high):
                yield Complaint(
                    "values",
                    value,
                    f"must lie between low = {self.low:g} and high = {self.high:g}",
                    "widen low and high",
                )

    def _step_complaints(self) -> Iterator[Complaint]:
        if self.step is None:
            return
        if self.integer and self.step != math.floor(self.step):
            yield Complaint("step", self.step, f"axis {self.name!r} is integer", "write a whole step")
        if self.low is None or self.high is None or self.low >= self.high:
            return
        count = (self.high - self.low) / self.step
        if abs(count - round(count)) > STEP_TOLERANCE * max(1.0, count) or round(count) < 1:
            nearest = self.low + max(1, math.floor(count)) * self.step
            yield Complaint(
                "step",
                self.step,
                f"must divide high - low = {self.high - self.low:g} into whole steps",
                f"write high = {nearest:g}, or change step",
            )
