"""StudySpec: everything a user declares, checked, with what follows from it (names, costs, digest).

Parts that need the pool file (bounds left out, domains left out, prices in a column) are read on first use, so that
opening a study costs no table.
"""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np
import pydantic
from pydantic import Field, PrivateAttr

from planner.errors import InputError
from planner.events import is_finite
from planner.spec import checks
from planner.spec.axis import AxisSection
from planner.spec.fields import refuse
from planner.spec.response import Response
from planner.spec.sections import (
    Backend,
    Budget,
    Cost,
    Derived,
    DomainSection,
    Laws,
    Limit,
    Policy,
    Pool,
    Store,
    StudySection,
    Target,
    Tracker,
)

if TYPE_CHECKING:
    from planner.spec.poolfile import PoolRows

T = TypeVar("T")
MAX_RESPONSE = 1e50  # squares of variances of such are still numbers

# How far below `low` the logarithm of nothing is put: a finite coordinate, under half a per cent of the least amount.
NOTHING = 6.0


@dataclass(frozen=True, kw_only=True)
class Axis:
    """One quantity a run can be given more of; `low`, `high`, `step` and `values` in `unit`, never in logs."""

    name: str
    low: float
    high: float
    unit: str = ""
    integer: bool = False
    step: float | None = None
    values: tuple[float, ...] | None = None
    role: str | None = None
    simplex: str | None = None
    scale: Literal["log", "linear"] = "log"
    source_of: str | None = None
    discount: tuple[float, float] | None = None
    break_even: tuple[float, float] | None = None

    @property
    def log_zero(self) -> float | None:
        """Where a source of which nothing is bought stands among logarithms; None for axes that cannot be zero."""
        return None if self.source_of is None else float(np.log(self.low)) - NOTHING

    @property
    def is_log(self) -> bool:
        """Whether laws see the logarithm of this axis."""
        return self.scale == "log"

    @property
    def is_fixed(self) -> bool:
        """Whether only one value is allowed, so that nothing can be learned along this axis."""
        return self.low == self.high


@dataclass(frozen=True, kw_only=True)
class Domain:
    """A context with its own law parameters; `factors` say what it shares with other domains."""

    name: str
    factors: Mapping[str, str]


class StudySpec(pydantic.BaseModel):
    """A whole study file.  Built by `load_study_spec` or `parse_study_spec`, which report every mistake at once."""

    model_config = pydantic.ConfigDict(frozen=True, extra="forbid")

    study: StudySection
    response: Response = Response()
    declared_axes: tuple[AxisSection, ...] = Field(alias="axes", min_length=1)
    declared_domains: tuple[DomainSection, ...] = Field((), alias="domains")
    cost: Cost
    limits: tuple[Limit, ...] = ()
    derived: tuple[Derived, ...] = ()
    budget: Budget
    targets: tuple[Target, ...] = ()
    laws: Laws = Laws()
    pool: Pool | None = None
    backend: Backend = Backend()
    store: Store = Store()
    policy: Policy = Policy()
    trackers: tuple[Tracker, ...] = ()

    _path: Path | None = PrivateAttr(None)
    _cache: dict[str, Any] = PrivateAttr(default_factory=dict)

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        refuse(checks.reference_complaints(self.model_dump(by_alias=True, exclude_unset=True)))
        return self

    def __copy__(self) -> Self:
        # What was derived from the old sections must not outlive `model_copy(update=...)`.
        copied = super().__copy__()
        for name in set(copied.__dict__) - set(type(self).model_fields):
            del copied.__dict__[name]
        copied._cache = {}
        return copied

    @property
    def name(self) -> str:
        """The study's name."""
        return self.study.name

    @property
    def seed(self) -> int:
        """The seed of every random choice of the study."""
        return self.study.seed

    @property
    def path(self) -> Path | None:
        """The study file, None for a study that never was a file."""
        return self._path

    @property
    def folder(self) -> Path:
        """The folder against which relative paths of the study file are read."""
        return self._path.parent if self._path is not None else Path()

    def resolve(self, file: str) -> Path:
        """A path of the study file, relative ones against the study's folder."""
        return self.folder / Path(file).expanduser()

    def cached(self, key: str, make: Callable[[], T]) -> T:
        """`make()`, computed once per spec; for tables derived from a study that never changes."""
        if key not in self._cache:
            self._cache[key] = make()
        return self._cache[key]

    @property
    def axis_names(self) -> tuple[str, ...]:
        """Names of the axes in the order of every (C, A) array."""
        return tuple(axis.name for axis in self.declared_axes)

    @functools.cached_property
    def axes(self) -> tuple[Axis, ...]:
        """The axes with bounds filled in; reads the pool only where a bound was left to it."""
        resolved = []
        for index, axis in enumerate(self.declared_axes):
            low, high = axis.low, axis.high
            if low is None or high is None:
                column = self.pool_rows.x[:, index]
                column = column if axis.source_of is None or not column.any() else column[column > 0]
                low = float(column.min()) if low is None else low
                high = float(column.max()) if high is None else high
            resolved.append(
                Axis(**axis.model_dump(exclude={"low", "high", "convention", "conversions"}), low=low, high=high)
            )
        return tuple(resolved)

    @functools.cached_property
    def domains(self) -> tuple[Domain, ...]:
        """Declared domains, else those of the pool's column in order of appearance, else one called "default"."""
        if self.declared_domains:
            return tuple(Domain(name=d.name, factors=dict(d.factors)) for d in self.declared_domains)
        if self.pool is not None and self.pool.file is not None and self.pool.domain is not None:
            names = self.pool_rows.domain_names
            for index, term in enumerate(self.cost.terms):
                for name in term.domains:
                    if name not in names:
                        raise InputError(f"cost.terms[{index}].domains: {checks.unknown('domain', name, names)}")
            return tuple(Domain(name=name, factors={}) for name in names)
        return (Domain(name="default", factors={}),)

    @property
    def domain_names(self) -> tuple[str, ...]:
        """Names of the domains in the order that `DesignTable.domain` counts."""
        return tuple(domain.name for domain in self.domains)

    def domain_index(self, name: str) -> int:
        """Position of a domain.  Raises `InputError` naming the known ones."""
        names = self.domain_names
        if name not in names:
            raise InputError(checks.unknown("domain", name, names))
        return names.index(name)

    @property
    def low(self) -> np.ndarray:
        """Lower bounds, (A,), raw units; for a source the small amount that stands for none of it."""
        low = [axis.low if axis.log_zero is None else np.exp(axis.log_zero) for axis in self.axes]
        return np.array(low, dtype=np.float64)

    @property
    def high(self) -> np.ndarray:
        """Upper bounds, (A,), raw units."""
        return np.array([axis.high for axis in self.axes], dtype=np.float64)

    @property
    def simplex_groups(self) -> dict[str, tuple[int, ...]]:
        """For every simplex group, the positions of the axes whose values sum to 1."""
        groups: dict[str, list[int]] = {}
        for index, axis in enumerate(self.declared_axes):
            if axis.simplex is not None:
                groups.setdefault(axis.simplex, []).append(index)
        return {name: tuple(members) for name, members in groups.items()}

    @functools.cached_property
    def pool_rows(self) -> PoolRows:
        """The rows of the pool file that `where` selects.  Raises `InputError` when the file has mistakes."""
        from planner.spec import poolfile

        return poolfile.read_pool(self)

    def posynomial(self, domain: str | None = None) -> tuple[np.ndarray, np.ndarray]:
        """Cost of one domain as `sum_k coefficients[k] * prod_a x[a] ** powers[k, a]`.

        Returns:
            coefficients (K,) and powers (K, A), float64.

        Raises:
            InputError: the cost is only a column of the pool, or the domain is unknown.
        """
        if not self.cost.terms:
            raise InputError(
                f"cost: the price of a run is only known for rows of the pool (column {self.cost.column!r});"
                " add [[cost.terms]] to price other points"
            )
        if domain is not None:
            self.domain_index(domain)
        coefficients = [self.cost.coefficient(term, domain) for term in self.cost.terms]
        powers = [[term.powers.get(name, 0.0) for name in self.axis_names] for term in self.cost.terms]
        return np.array(coefficients, dtype=np.float64), np.array(powers, dtype=np.float64)

    def costs(self, domain_index: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Predicted cost of many designs, float64 whatever the integer type of the input.

        With `cost.column`, rows of the pool cost what the column says and other points what the terms say.

        Args:
            domain_index: positions in `domain_names`, (C,).
            x: axis values in raw units, (C, A).

        Returns:
            Cost in the study's unit, (C,); inf where it overflows.

        Raises:
            InputError: a point is off the pool and the study has no cost terms.
        """
        x = np.asarray(x, dtype=np.float64).reshape(-1, len(self.declared_axes))
        domain_index = np.broadcast_to(np.asarray(domain_index, dtype=np.int64), (len(x),))
        if self.cost.column is None:
            return self._term_costs(domain_index, x)
        priced = self.pool_rows.prices(domain_index, x)
        off_pool = np.isnan(priced)
        if off_pool.any():
            if not self.cost.terms:
                point = dict(zip(self.axis_names, x[off_pool][0].tolist(), strict=True))
                raise InputError(
                    f"cost: {point} is not a row of the pool, and the price comes only from its column"
                    f" {self.cost.column!r}; add [[cost.terms]] to price points off the pool"
                )
            priced[off_pool] = self._term_costs(domain_index[off_pool], x[off_pool])
        return priced

    def within_limits(self, x: np.ndarray) -> np.ndarray:
        """Which points (C, A) satisfy every one of `[[limits]]`, (C,) bool."""
        return np.asarray(self.kept_limits(x).all(axis=1))

    def kept_limits(self, x: np.ndarray) -> np.ndarray:
        """Which of the `[[limits]]` each of the points (C, A) satisfies, (C, L) bool."""
        powers, low, high = self.limit_arrays()
        x = np.asarray(x, dtype=np.float64)
        kept = np.ones((len(x), len(powers)), dtype=bool)
        # Nothing of a source to a negative power is beyond every bound.
        with np.errstate(divide="ignore", over="ignore"):
            for i, own in enumerate(powers):
                value = np.prod(x**own, axis=1)
                # Decimal bounds of products of decimals: equality is meant up to rounding.
                kept[:, i] = (value >= low[i] * (1 - 1e-9)) & (value <= high[i] * (1 + 1e-9))
        return kept

    def limit_arrays(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """`[[limits]]` as powers (L, A) and bounds (L,) of the products; 0 and infinity where there is no bound."""
        powers = [[limit.powers.get(name, 0.0) for name in self.axis_names] for limit in self.limits]
        low = [limit.low or 0.0 for limit in self.limits]
        high = [np.inf if limit.high is None else limit.high for limit in self.limits]
        return np.array(powers, dtype=np.float64).reshape(-1, len(self.declared_axes)), np.array(low), np.array(high)

    def derived_values(self, axes: Mapping[str, float]) -> dict[str, float]:
        """What follows from the axes of a design by `[[derived]]`: for trainers, unknown to every law."""
        return {
            each.name: each.coefficient * float(np.prod([axes[name] ** power for name, power in each.powers.items()]))
            for each in self.derived
        }

    def _term_costs(self, domain_index: np.ndarray, x: np.ndarray) -> np.ndarray:
        powers = self.posynomial()[1]
        coefficients = self.cached("coefficients", self._coefficient_table)
        total = np.zeros(len(x))
        with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
            for k, term_powers in enumerate(powers):
                term = coefficients[domain_index, k]
                for a in np.flatnonzero(term_powers):
                    # Plain products keep 6 N D exact to the last digit; pow would not.
                    term = term * (x[:, a] if term_powers[a] == 1.0 else x[:, a] ** term_powers[a])
                total += term
        return total

    def _coefficient_table(self) -> np.ndarray:
        return np.array([self.posynomial(name)[0] for name in self.domain_names])

    def cost_of(self, domain: str, axes: Mapping[str, float]) -> float:
        """Predicted cost of one design.  Raises `InputError` for a missing or unknown axis or domain."""
        index = self.domain_index(domain)
        return float(self.costs(np.array([index]), self.point(axes)[None, :])[0])

    def point(self, axes: Mapping[str, float]) -> np.ndarray:
        """Axis values as an array (A,) in axis order.  Raises `InputError` for missing, unknown or impossible ones."""
        for name in axes:
            if name not in self.axis_names:
                raise InputError(checks.unknown("axis", name, self.axis_names))
        missing = [name for name in self.axis_names if name not in axes]
        if missing:
            raise InputError(f"the point lacks a value for axis {', '.join(map(repr, missing))}")
        point = np.array([float(axes[name]) for name in self.axis_names], dtype=np.float64)
        for axis, value in zip(self.declared_axes, point, strict=True):
            if not np.isfinite(value) or not axis.has_room_for(value):
                least = "0 or more" if axis.source_of is not None else "greater than 0"
                rule = f"finite and {least}" if axis.scale == "log" else "finite"
                raise InputError(f"axis {axis.name!r}: must be {rule}, got {value:g}")
        return point

    @property
    def warnings(self) -> tuple[str, ...]:
        """What is legal but doubtful, each beginning with a code such as `W:unknown_role`.

        What the pool file says is among them once something has read it.
        """
        pool = self.pool_rows.warnings if "pool_rows" in self.__dict__ else ()
        axes = self.axes if "axes" in self.__dict__ else self.declared_axes
        return (*checks.doubts(axes), *pool, *self._cache.get("design_warnings", ()))

    @functools.cached_property
    def digest(self) -> str:
        """Hash of what defines the statistics: response, axes, domains, cost, targets, laws and pool contents.

        Budget, seed, backend, store and policy may change during a study without changing it.
        """
        kept = {"response", "declared_axes", "declared_domains", "cost", "targets", "laws", "pool"}
        document: dict[str, Any] = {"sections": self.model_dump(mode="json", include=kept)}
        files = [self.pool.file] if self.pool is not None else []
        files += [target.file for target in self.targets]
        document["files"] = [_file_digest(self.resolve(file)) for file in files if file is not None]
        text = json.dumps(document, sort_keys=True, separators=(",", ":"), default=str)
        return hashlib.sha256(text.encode()).hexdigest()


def _file_digest(path: Path) -> str:
    try:
        with path.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError:
        # Whoever reads the table reports the missing file; a digest only has to differ.
        return "missing"


def check_response(spec: StudySpec, value: float) -> str | None:
    """Why a measured response cannot enter this study, None when it can.

    NaN and infinities pass, and the largest double, where trackers store them: they are recorded as diverged runs, not
    refused.  The ends 0 and 1 of a success rate pass too; binomial counts or a stated clip keep them finite later.
    """
    response = spec.response
    if not is_finite(value):
        return None
    if abs(value) > MAX_RESPONSE:
        return (
            f"{response.name}: no measurement is above {MAX_RESPONSE:g} in size, got {value:g};"
            " tell nan if the run diverged, or choose a larger unit"
        )
    if response.link == "log" and value <= 0:
        return (
            f"{response.name}: link log needs a response greater than 0, got {value:g};"
            ' use link = "identity" in [response], with lower for a known floor'
        )
    if response.link in ("neg_log", "logit") and not 0 <= value <= 1:
        hint = "divide per cent by 100" if 1 < value <= 100 else 'or use link = "identity" in [response]'
        return f"{response.name}: link {response.link} needs a share between 0 and 1, got {value:g}; {hint}"
    if response.lower is not None and value < response.lower:
        return f"{response.name}: must not be below lower = {response.lower:g}, got {value:g}; correct it or move lower"
    if response.upper is not None and value > response.upper:
        return f"{response.name}: must not be above upper = {response.upper:g}, got {value:g}; correct it or move upper"
    return None


def study_schema() -> dict[str, Any]:
    """JSON Schema of the study file, for editors that complete and check TOML."""
    schema = StudySpec.model_json_schema(by_alias=True)
    schema["title"] = "scaling-planner study"
    return schema


SECTION_MODELS: Mapping[str, type[pydantic.BaseModel]] = {
    "study": StudySection,
    "response": Response,
    "axes": AxisSection,
    "domains": DomainSection,
    "cost": Cost,
    "budget": Budget,
    "targets": Target,
    "laws": Laws,
    "pool": Pool,
    "backend": Backend,
    "store": Store,
    "policy": Policy,
    "trackers": Tracker,
    "limits": Limit,
    "derived": Derived,
}
LIST_SECTIONS: Sequence[str] = ("axes", "domains", "limits", "derived", "targets", "trackers")
REQUIRED_SECTIONS: Sequence[str] = ("study", "axes", "cost", "budget")

__all__ = ["Axis", "Domain", "StudySpec", "check_response", "study_schema"]
