"""The sections of a study file as frozen models; each checks itself, `checks.py` what they say of one another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any, Literal, Self

import pydantic

from planner.errors import InputError
from planner.spec.fields import AxisName, Complaint, Count, Label, Number, Positive, Section, Seed, complain, refuse


class StudySection(Section):
    """`[study]`: the study's name, part of every run id, and the seed of every random choice."""

    name: Label
    seed: Seed = 0


class DomainSection(Section):
    """`[[domains]]`: a context with its own law parameters; `factors` say what it shares with others."""

    name: Label
    factors: dict[Label, str] = pydantic.Field(default_factory=dict)

    @pydantic.field_validator("factors", mode="before")
    @classmethod
    def _stringify(cls, value: Any) -> Any:
        if isinstance(value, dict):
            return {k: str(v) if isinstance(v, int | float) else v for k, v in value.items()}
        return value


class CostTerm(Section):
    """One term, `coefficient * prod_a x_a ** powers[a]`; `domains` replaces the coefficient in some domains.

    A power may also be that of one of `cost.constants`: `{ N = 1, tokens = 1, utilisation = -1 }`.  A `unit` of its own
    is converted to that of the study.
    """

    name: Label | None = None
    coefficient: Positive
    powers: dict[str, Number] = pydantic.Field(default_factory=dict)
    domains: dict[str, Positive] = pydantic.Field(default_factory=dict)
    unit: str | None = None


class Cost(Section):
    """`[cost]`: what one run is charged, in `unit`: a sum of terms, or a column of the pool file."""

    unit: str = "FLOP"
    terms: tuple[CostTerm, ...] = ()
    column: Label | None = None
    conversions: dict[Label, Positive] = pydantic.Field(default_factory=dict)  # other unit -> how many `unit` one is
    # What drives costs and is no axis (horizon, latency, utilisation): a number, or one for each domain.
    constants: dict[Label, Positive | dict[str, Positive]] = pydantic.Field(default_factory=dict)

    def coefficient(self, term: CostTerm, domain: str | None) -> float:
        """A term's coefficient in a domain (None: in none in particular), constants and unit counted in."""
        value = term.coefficient if domain is None else term.domains.get(domain, term.coefficient)
        for name, power in term.powers.items():
            if name in self.constants:
                constant = self.constants[name]
                if isinstance(constant, dict):
                    middle = math.exp(sum(map(math.log, constant.values())) / len(constant))
                    constant = constant.get(domain or "", middle)
                value *= constant**power
        return value * (1.0 if term.unit is None else self.factor(term.unit))

    def factor(self, unit: str) -> float:
        """How many of the study's cost units one `unit` is.  Raises `InputError` for one that it does not know."""
        if unit == self.unit:
            return 1.0
        if unit not in self.conversions:
            raise InputError(
                f"costs of this study are in {self.unit}, and it has no conversion from {unit!r}:"
                f' add conversions = {{ "{unit}" = NUMBER }} to [cost]'
            )
        return self.conversions[unit]

    @pydantic.field_validator("terms", mode="before")
    @classmethod
    def _as_tuple(cls, value: Any) -> Any:
        return tuple(value) if isinstance(value, list) else value


class Derived(Section):
    """`[[derived]]`: `coefficient * prod_a x_a ** powers[a]`, handed to the trainer beside the axes and not chosen."""

    name: AxisName
    coefficient: Positive
    powers: dict[str, Number]


class Limit(Section):
    """`[[limits]]`: designs with `low <= prod_a x_a ** powers[a] <= high` only, such as a batch that fits."""

    powers: dict[str, Number]
    low: Positive | None = None
    high: Positive | None = None

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.low is None and self.high is None:
            raise complain("bounds nothing", "add low = NUMBER, or high = NUMBER")
        if self.low is not None and self.high is not None and self.low > self.high:
            raise complain(f"has low = {self.low:g} above high = {self.high:g}", "exchange them")
        return self

    def words(self) -> str:
        """The limit as people write it: rollouts * problems <= 65536."""
        product = " * ".join(name if power == 1 else f"{name}^{power:g}" for name, power in self.powers.items())
        if self.low == self.high:
            return f"{product} = {self.low:.10g}"
        if self.high is None:
            return f"{product} >= {self.low:.10g}"
        low = "" if self.low is None else f"{self.low:.10g} <= "
        return f"{low}{product} <= {self.high:.10g}"


class Budget(Section):
    """`[budget]`, in the cost's unit."""

    total: Positive
    per_run_max: Positive | None = None


TARGET_KEYS = {
    "prediction": ("points", "file", "where", "domain"),
    "recipe": ("budgets", "domain"),
    "exponent": ("axis", "domain"),
    "threshold": ("response", "probability", "axis", "points", "domain"),
    "source": ("axis", "domain"),
}


class Target(Section):
    """`[[targets]]`: what must be learned.  Which keys go with which kind: `TARGET_KEYS`."""

    kind: Literal["prediction", "recipe", "exponent", "threshold", "source"]
    points: tuple[dict[str, Any], ...] = ()
    file: Label | None = None
    where: dict[str, Any] = pydantic.Field(default_factory=dict)
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
        if self.kind == "source" and self.axis is None:
            yield Complaint("axis", None, "a source target needs the axis of a source", 'add axis = "SOURCE"')
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
    where: dict[str, Any] = pydantic.Field(default_factory=dict)
    size: Count = 3000

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        if self.file is None:
            extra = [key for key in ("domain", "where") if key in self.model_fields_set]
            refuse(
                Complaint(key, getattr(self, key), "belongs to a pool file", 'add file = "FILE.csv"') for key in extra
            )
        return self


class Backend(pydantic.BaseModel):
    """`[backend]`: where runs happen.  Every key but `kind` is an option of that backend."""

    model_config = pydantic.ConfigDict(frozen=True, extra="allow")

    kind: Label = "simulator"

    @property
    def options(self) -> dict[str, Any]:
        """The free options, without `kind`."""
        return dict(self.model_extra or {})


class Policy(pydantic.BaseModel):
    """`[policy]`: which rule chooses designs.  Every key but `name` is an option of that rule."""

    model_config = pydantic.ConfigDict(frozen=True, extra="allow")

    name: Label = "planner"

    @property
    def options(self) -> dict[str, Any]:
        """The free options, without `name`."""
        return dict(self.model_extra or {})


class Store(Section):
    """`[store]`: database url of the ledger; by default an SQLite file beside the study."""

    url: Label | None = None


TRACKER_KEYS = {
    "mlflow": ("uri", "project"),
    "wandb": ("project", "entity", "mode", "directory"),
    "trackio": ("project", "space", "directory"),
}


class Tracker(Section):
    """`[[trackers]]`: where runs are shown as well.  Which keys go with which kind: `TRACKER_KEYS`.

    A kind of one's own is `module:function`, with free `settings` for the function.
    """

    kind: Label
    name: Label | None = None
    wait_seconds: Positive = 20.0  # at the end of `planner run`, for what the tracker has not got yet
    uri: Label | None = None
    project: Label | None = None
    entity: Label | None = None
    mode: Literal["online", "offline"] | None = None
    space: Label | None = None
    directory: Label | None = None
    settings: dict[str, Any] = pydantic.Field(default_factory=dict)

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        refuse(self._complaints())
        return self

    def _complaints(self) -> Iterator[Complaint]:
        if self.kind not in TRACKER_KEYS and ":" not in self.kind:
            known = ", ".join(TRACKER_KEYS)
            yield Complaint("kind", self.kind, "is no kind of tracker", f'write {known}, or "module:function"')
            return
        allowed = ("kind", "name", "wait_seconds", *TRACKER_KEYS.get(self.kind, ("settings",)))
        for key in sorted(self.model_fields_set - set(allowed)):
            fix = f"remove it; its keys are {', '.join(allowed)}"
            yield Complaint(key, getattr(self, key), f"does not belong to a tracker of kind {self.kind!r}", fix)
        if not self.label.replace("-", "").replace("_", "").replace(".", "").isalnum():
            yield Complaint("name", self.label, "is a file name too", "use letters, digits, '-' and '_'")

    @property
    def label(self) -> str:
        """What to call this tracker."""
        return self.name or self.kind.partition(":")[0]

    @property
    def options(self) -> dict[str, Any]:
        """The keys that go to the tracker of this kind."""
        keys = TRACKER_KEYS.get(self.kind)
        if keys is None:
            return dict(self.settings)
        return {key: getattr(self, key) for key in keys if getattr(self, key) is not None}
