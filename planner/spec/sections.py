"""The sections of a study file as frozen models; each checks itself, `checks.py` what they say of one another."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any, Literal, Self

import pydantic

from planner.spec.fields import AxisName, Complaint, Count, Label, Number, Positive, Seed, complain, read_whole, refuse

KNOWN_ROLES = (
    "parameters", "active_parameters", "tokens", "unique_tokens", "learning_rate", "batch_size", "experts", "sparsity",
    "vocabulary", "precision", "mixture", "streams", "examples", "compute", "environments", "worlds", "structures",
    "tasks", "trajectories", "reward_density", "rollouts", "problems", "updates", "tools", "databases", "complexity",
    "width", "depth", "routing_frequency",
)  # fmt: skip

# A step count this far from whole is a mistake in the file, not rounding in decimal fractions.
STEP_TOLERANCE = 1e-6


class Section(pydantic.BaseModel, frozen=True, extra="forbid", strict=True):
    """Settings shared by all sections: immutable, no unknown keys, no silent conversions."""


class StudySection(Section):
    """`[study]`: the study's name, part of every run id, and the seed of every random choice."""

    name: Label
    seed: Seed = 0


class Response(Section):
    """`[response]`: what is measured.  `lower`, `upper` and `expect` are in raw units, before the link.

    After loading, `goal`, `lower` and `upper` hold what the link implies where the file is silent.
    """

    name: Label = "loss"
    unit: str = ""
    link: Literal["identity", "log", "neg_log", "logit"] = "identity"
    goal: Literal["minimise", "maximise"] = "minimise"
    lower: Number | None = None
    upper: Number | None = None
    noise: Literal["student_t", "gaussian", "binomial"] = "student_t"
    se: Label | None = None
    trials: int | str | None = None
    expect: tuple[Number, Number] | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _fill_from_link(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        spelling = {"minimize": "minimise", "maximize": "maximise"}
        if isinstance(data.get("goal"), str):
            data["goal"] = spelling.get(data["goal"], data["goal"])
        if isinstance(data.get("expect"), list):
            data["expect"] = tuple(data["expect"])
        share = data.get("link") in ("neg_log", "logit") or data.get("noise") == "binomial"
        if data.get("link") in ("neg_log", "logit"):
            data.setdefault("goal", "maximise")
        if share:
            data.setdefault("lower", 0.0)
            data.setdefault("upper", 1.0)
        elif data.get("link") == "log":
            data.setdefault("lower", 0.0)
        return data

    @pydantic.field_validator("trials", mode="before")
    @classmethod
    def _read_trials(cls, value: Any) -> Any:
        if isinstance(value, str | None):
            return value
        count = read_whole(value)
        if count < 1:
            raise complain("must be at least 1", "write the number of trials behind each rate, or a column's name")
        return count

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        refuse(self._complaints())
        return self

    def _complaints(self) -> Iterator[Complaint]:
        yield from self._bound_complaints()
        if self.noise == "binomial" and self.trials is None:
            yield Complaint(
                "trials", None, "binomial noise needs the number of trials", "add trials = 200, or the column's name"
            )
        if self.noise != "binomial" and self.trials is not None:
            yield Complaint(
                "trials", self.trials, "is read only with binomial noise", 'add noise = "binomial", or remove trials'
            )
        if self.noise == "binomial" and self.se is not None:
            yield Complaint("se", self.se, "binomial noise follows from trials", "remove se, or choose another noise")
        if self.link == "neg_log" and self.goal == "minimise":
            yield Complaint(
                "goal",
                self.goal,
                "link neg_log is -log of a success rate, which is better when higher",
                'write goal = "maximise"; for an error rate use link = "log"',
            )

    def _bound_complaints(self) -> Iterator[Complaint]:
        lower, upper = self.lower, self.upper
        if self.link == "log" and lower is not None and lower < 0:
            yield Complaint(
                "lower", lower, "link log needs responses above 0", 'use link = "identity", or raise lower to 0'
            )
        if self.link in ("neg_log", "logit") or self.noise == "binomial":
            why = f"link {self.link}" if self.link in ("neg_log", "logit") else "binomial noise"
            fix = 'give rates as shares of 1 (divide per cent by 100), or use link = "identity"'
            if lower is not None and not 0 <= lower < 1:
                yield Complaint("lower", lower, f"{why} needs responses between 0 and 1", fix)
            if upper is not None and not 0 < upper <= 1:
                yield Complaint("upper", upper, f"{why} needs responses between 0 and 1", fix)
        if lower is not None and upper is not None and not lower < upper:
            yield Complaint("lower", lower, f"must be below upper = {upper:g}", "exchange or widen the two bounds")
        if self.expect is None:
            return
        low, high = self.expect
        if not low < high:
            yield Complaint("expect", [low, high], "must be [low, high] with low < high", "exchange the two numbers")
        elif (lower is not None and low < lower) or (upper is not None and high > upper):
            bounds = f"[{'-inf' if lower is None else f'{lower:g}'}, {'inf' if upper is None else f'{upper:g}'}]"
            yield Complaint(
                "expect",
                [low, high],
                f"must lie within the response's bounds {bounds}",
                "narrow expect, or move lower or upper",
            )
        elif self.link != "identity" and low <= 0:
            yield Complaint(
                "expect",
                [low, high],
                f"link {self.link} needs expect above 0",
                "raise its first number a little above 0",
            )
        elif self.link == "logit" and high >= 1:
            yield Complaint(
                "expect", [low, high], "link logit needs expect below 1", "lower its second number a little"
            )


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
        values = data.get("values")
        if isinstance(values, list):
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
        yield from self._range_complaints()
        if self.values is not None:
            yield from self._value_complaints(self.values)
        else:
            yield from self._step_complaints()

    def _range_complaints(self) -> Iterator[Complaint]:
        name, low, high = self.name, self.low, self.high
        share = self.role == "mixture" or self.simplex is not None
        if self.scale == "log":
            for key, bound in (("low", low), ("high", high)):
                if bound is not None and bound <= 0:
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


class DomainSection(Section):
    """`[[domains]]`: a context with its own law parameters; `factors` say what it shares with others."""

    name: Label
    factors: dict[Label, str] = {}

    @pydantic.field_validator("factors", mode="before")
    @classmethod
    def _stringify(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: str(v) if isinstance(v, int | float) else v for k, v in value.items()}
        return value


class CostTerm(Section):
    """One term, `coefficient * prod_a x_a ** powers[a]`; `domains` replaces the coefficient in some domains."""

    coefficient: Positive
    powers: dict[str, Number] = {}
    domains: dict[str, Positive] = {}


class Cost(Section):
    """`[cost]`: what one run is charged, in `unit`: a sum of terms, or a column of the pool file."""

    unit: str = "FLOP"
    terms: tuple[CostTerm, ...] = ()
    column: Label | None = None

    @pydantic.field_validator("terms", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


class Budget(Section):
    """`[budget]`, in the cost's unit."""

    total: Positive
    per_run_max: Positive | None = None


TARGET_KEYS = {
    "prediction": ("points", "file", "where", "domain"),
    "recipe": ("budgets", "domain"),
    "exponent": ("axis", "domain"),
    "threshold": ("response", "probability", "axis", "domain"),
}


class Target(Section):
    """`[[targets]]`: what must be learned.  Which keys go with which kind: `TARGET_KEYS`."""

    kind: Literal["prediction", "recipe", "exponent", "threshold"]
    points: tuple[dict[str, Any], ...] = ()
    file: Label | None = None
    where: dict[str, Any] = {}
    budgets: tuple[Positive, ...] = ()
    domain: Label | None = None
    axis: str | None = None
    response: Number | None = None
    probability: Number | None = None

    @pydantic.model_validator(mode="before")
    @classmethod
    def _fill(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = {k: tuple(v) if k in ("points", "budgets") and isinstance(v, list) else v for k, v in data.items()}
        if data.get("kind") == "threshold":
            data.setdefault("probability", 0.9)
        return data

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        refuse(self._complaints())
        return self

    def _complaints(self) -> Iterator[Complaint]:
        allowed = ("kind", *TARGET_KEYS[self.kind])
        for key in sorted(self.model_fields_set - set(allowed)):
            kinds = [kind for kind, keys in TARGET_KEYS.items() if key in keys]
            yield Complaint(
                key,
                getattr(self, key),
                f"does not belong to a target of kind {self.kind!r}",
                f"remove it, or use kind = {' or '.join(map(repr, kinds))}",
            )
        if self.kind == "recipe" and not self.budgets:
            yield Complaint("budgets", None, "a recipe target needs budgets", "add budgets = [1e21, 1e22]")
        if self.kind == "exponent" and self.axis is None:
            yield Complaint("axis", None, "an exponent target needs an axis", 'add axis = "N"')
        if self.kind == "threshold" and self.response is None:
            yield Complaint("response", None, "a threshold target needs a response", "add the value to be reached")
        if self.kind == "threshold" and self.probability is not None and not 0 < self.probability < 1:
            yield Complaint("probability", self.probability, "must be between 0 and 1", "write 0.9, say")
        if self.points and self.file is not None:
            yield Complaint("file", self.file, "cannot be combined with points", "use two targets")
        if self.where and self.file is None:
            yield Complaint(
                "where", self.where, "selects rows of a file, and no file is given", 'add file = "FILE.csv"'
            )


class Laws(Section):
    """`[laws]`: names of the laws to average over, or "auto"."""

    use: Literal["auto"] | tuple[Label, ...] = "auto"

    @pydantic.field_validator("use", mode="before")
    @classmethod
    def _check_list(cls, value: Any) -> Any:
        if value == "auto":
            return value
        if not isinstance(value, list | tuple) or not value or not all(isinstance(law, str) and law for law in value):
            fix = f'write use = ["{value}"]' if isinstance(value, str) else 'write use = "auto", or ["law", "law"]'
            raise complain('must be "auto" or a list of law names', fix)
        repeated = [law for i, law in enumerate(value) if law in value[:i]]
        if repeated:
            raise complain(f"lists {repeated[0]!r} twice", "remove the repeated one")
        return tuple(value)


class Pool(Section):
    """`[pool]`: the allowed designs, rows of `file`; without a file, `size` bounds the generated grid."""

    file: Label | None = None
    domain: Label | None = None
    where: dict[str, Any] = {}
    size: Count = 3000

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.file is None:
            extra = [key for key in ("domain", "where") if key in self.model_fields_set]
            refuse(
                Complaint(key, getattr(self, key), "belongs to a pool file", 'add file = "FILE.csv"') for key in extra
            )
        return self


class Backend(pydantic.BaseModel, frozen=True, extra="allow"):
    """`[backend]`: where runs happen.  Every key but `kind` is an option of that backend."""

    kind: Label = "simulator"

    @property
    def options(self) -> dict[str, Any]:
        """The free options, without `kind`."""
        return dict(self.model_extra or {})


class Policy(pydantic.BaseModel, frozen=True, extra="allow"):
    """`[policy]`: which rule chooses designs.  Every key but `name` is an option of that rule."""

    name: Label = "planner"

    @property
    def options(self) -> dict[str, Any]:
        """The free options, without `name`."""
        return dict(self.model_extra or {})


class Store(Section):
    """`[store]`: database url of the ledger; by default an SQLite file beside the study."""

    url: Label | None = None


__all__ = [
    "KNOWN_ROLES", "AxisSection", "Backend", "Budget", "Cost", "CostTerm", "DomainSection", "Laws", "Policy", "Pool",
    "Response", "Section", "Store", "StudySection", "Target",
]  # fmt: skip
