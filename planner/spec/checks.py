"""What the sections of a study say of one another: names, references, completeness.

Works on the plain tables of the file, so that a mistake in one section does not hide those in the others.
"""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from planner.spec.axis import KNOWN_ROLES, AxisSection
from planner.spec.fields import Complaint

if TYPE_CHECKING:
    from planner.spec.models import Axis

# Names with a meaning of their own: columns of result tables, and what a backend fills into a trainer's command.
RESERVED_NAMES = (
    "domain", "seed", "cost", "response", "se", "trials", "successes", "run", "curve", "schedule_complete", "state",
    "run_id", "attempt", "folder", "job", "result", "metrics", "checkpoints", "cancel", "cost_unit", "convention",
)  # fmt: skip


# Units that say that something is counted one by one.
PLAIN_COUNTS = ("", "1", "count", "parameters", "params", "active parameters", "weights")


def unknown(what: str, name: object, known: Sequence[str]) -> str:
    """A phrase such as: unknown axis 'M'; did you mean 'N'? known: N, D."""
    return f"unknown {what} {name!r}; {near(name, known)}"


def near(name: object, known: Sequence[str]) -> str:
    """The hint after an unknown name: near names first, then the known ones."""
    if not known:
        return "none are known"
    listed = ", ".join(known[:20]) + (f", ... ({len(known)} in all)" if len(known) > 20 else "")
    folded = {k.casefold(): k for k in reversed(known)}
    close = difflib.get_close_matches(str(name).casefold(), folded, n=2, cutoff=0.6)
    guess = " or ".join(repr(folded[c]) for c in close)
    return f"did you mean {guess}? known: {listed}" if guess else f"known: {listed}"


def reference_complaints(raw: Mapping[str, Any]) -> Iterator[Complaint]:
    """Every mistake that takes two sections to see; `raw` is the study file as plain tables, possibly malformed."""
    axes = [_table(axis) for axis in _list(raw.get("axes"))]
    domains = [_table(domain) for domain in _list(raw.get("domains"))]
    trackers = [_table(tracker) for tracker in _list(raw.get("trackers"))]
    pool = _table(raw.get("pool"))
    axis_names = _names(axes)
    domain_names: list[str] | None = _names(domains)
    if not domains:
        # With a pool column the names are known only once the file is read.
        domain_names = None if pool.get("domain") is not None else ["default"]
    yield from _repeated("axes", axes)
    yield from _repeated("domains", domains)
    yield from _axis_complaints(axes, pool, _table(raw.get("response")).get("name", "loss"))
    yield from _simplex_complaints(axes)
    yield from _source_complaints(axes, axis_names)
    yield from _factor_complaints(domains, axis_names)
    yield from _repeated("trackers", [{"name": each.get("name") or each.get("kind")} for each in trackers])
    if "cost" in raw:
        yield from _cost_complaints(_table(raw["cost"]), pool, axis_names, domain_names)
    for section in ("limits", "derived"):
        for index, each in enumerate(map(_table, _list(raw.get(section)))):
            for name in _table(each.get("powers")):
                if axis_names and name not in axis_names:
                    key = f"{section}[{index}].powers.{name}"
                    yield Complaint(key, name, "is not an axis", near(name, axis_names))
            if section == "derived" and each.get("name") in (*axis_names, *RESERVED_NAMES):
                yield Complaint(f"derived[{index}].name", each["name"], "is taken", "choose another name")
    only_column = _table(raw.get("cost")).get("column") is not None and not _table(raw["cost"]).get("terms")
    for index, target in enumerate(_list(raw.get("targets"))):
        if only_column and _table(target).get("kind") == "recipe":
            rule = "a recipe weighs points that are no rows of the pool, and only those have a price"
            yield Complaint(f"targets[{index}].kind", "recipe", rule, "add [[cost.terms]] beside cost.column")
        yield from _target_complaints(f"targets[{index}]", _table(target), axes, axis_names, domain_names)


def doubts(axes: Iterable[AxisSection | Axis]) -> Iterator[str]:
    """Legal but doubtful declarations, coded."""
    seen: dict[str, str] = {}
    for axis in axes:
        if axis.role is None:
            continue
        if axis.role not in KNOWN_ROLES:
            yield f"W:unknown_role axis {axis.name!r}: {unknown('role', axis.role, KNOWN_ROLES)}"
        if axis.role in seen and axis.role != "mixture":
            yield f"W:duplicate_role axes {seen[axis.role]!r} and {axis.name!r} both have role {axis.role!r}"
        seen[axis.role] = axis.name
        is_counted = axis.role in ("parameters", "active_parameters")
        if is_counted and axis.high is not None and axis.high < 1e4 and axis.unit.casefold() in PLAIN_COUNTS:
            yield (
                f"W:small_parameters axis {axis.name!r} holds at most {axis.high:g} parameters;"
                " if it counts millions or billions, say so in unit"
            )


def _table(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _list(value: Any) -> Sequence[Any]:
    return value if isinstance(value, list | tuple) else ()


def _names(items: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(item["name"] for item in items if isinstance(item.get("name"), str)))


def _number(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        return float(value)
    except OverflowError:
        return math.inf


def _repeated(section: str, items: Sequence[Mapping[str, Any]]) -> Iterator[Complaint]:
    first: dict[str, int] = {}
    for index, item in enumerate(items):
        name = item.get("name")
        if isinstance(name, str) and name in first:
            rule = f"is already the name of {section}[{first[name]}]"
            yield Complaint(f"{section}[{index}].name", name, rule, "rename one of them")
        elif isinstance(name, str):
            first[name] = index


def _axis_complaints(axes: Sequence[Mapping[str, Any]], pool: Mapping[str, Any], response: Any) -> Iterator[Complaint]:
    for index, axis in enumerate(axes):
        name = axis.get("name")
        if name in RESERVED_NAMES or name == response:
            rule = (
                "is the response's name"
                if name == response
                else "has a meaning of its own in result tables and trainer commands"
            )
            yield Complaint(f"axes[{index}].name", name, rule, f"choose another name, such as {f'{name}_axis'!r}")
        is_share = axis.get("role") == "mixture" or axis.get("simplex") is not None
        if pool.get("file") is not None or axis.get("values") is not None or is_share:
            continue
        for key in ("low", "high"):
            if axis.get(key) is None:
                yield Complaint(
                    f"axes[{index}].{key}",
                    None,
                    "is required without a pool file",
                    f"add {key} = NUMBER, or values = [...], or a [pool] with a file",
                )


def _simplex_complaints(axes: Sequence[Mapping[str, Any]]) -> Iterator[Complaint]:
    groups: dict[str, list[int]] = {}
    for index, axis in enumerate(axes):
        if isinstance(axis.get("simplex"), str):
            groups.setdefault(axis["simplex"], []).append(index)
    for group, members in groups.items():
        key = f"axes[{members[0]}].simplex"
        for i in members:
            for name in ("values", "integer"):
                if axes[i].get(name):
                    hint = f"remove {name}; list allowed mixtures as rows of a [pool] file"
                    yield Complaint(f"axes[{i}].{name}", axes[i][name], "does not go with shares that sum to 1", hint)
        if len({axes[i].get("step") for i in members}) > 1:
            yield Complaint(key, group, "its axes have different steps", "give all the same step, or none")
        if len(members) == 1:
            yield Complaint(key, group, "only this axis is in the group", "name the same simplex on the other shares")
            continue
        low = sum(_number(axes[i].get("low")) or 0.0 for i in members)
        step = _number(axes[members[0]].get("step"))
        if step is not None and step > 0 and abs((1 - low) / step - round((1 - low) / step)) > 1e-6:
            rule = f"1 less the low bounds is {1 - low:g}, not a whole number of steps of {step:g}"
            yield Complaint(f"axes[{members[0]}].step", step, rule, "change step or the low bounds")
        highs = [_number(axes[i].get("high")) for i in members]
        high = sum(1.0 if h is None else h for h in highs)
        if low > 1 + 1e-9:
            yield Complaint(key, group, f"the shares sum to 1, but their low bounds to {low:g}", "lower some of them")
        if high < 1 - 1e-9:
            yield Complaint(key, group, f"the shares sum to 1, but their high bounds to {high:g}", "raise some of them")


def _source_complaints(axes: Sequence[Mapping[str, Any]], axis_names: Sequence[str]) -> Iterator[Complaint]:
    by_name = {axis["name"]: axis for axis in reversed(axes) if isinstance(axis.get("name"), str)}
    for index, axis in enumerate(axes):
        key, name = f"axes[{index}].source_of", axis.get("source_of")
        if not isinstance(name, str):
            continue
        if name not in by_name:
            yield Complaint(key, name, "is not an axis", near(name, axis_names))
        elif by_name[name].get("source_of") is not None or by_name[name].get("scale", "log") != "log":
            rule = "must be an axis on a log scale that is no source itself"
            yield Complaint(key, name, rule, "name the axis that real units count on")


def _factor_complaints(domains: Sequence[Mapping[str, Any]], axis_names: Sequence[str]) -> Iterator[Complaint]:
    tables = [_table(domain.get("factors")) for domain in domains]
    every = list(dict.fromkeys(key for table in tables for key in table))
    for index, table in enumerate(tables):
        for key in every:
            if key not in table:
                yield Complaint(
                    f"domains[{index}].factors.{key}",
                    None,
                    "is given for other domains, so it is needed here",
                    f'add {key} = "VALUE", or remove it everywhere',
                )
            elif key in axis_names:
                yield Complaint(f"domains[{index}].factors.{key}", table[key], "is the name of an axis", "rename it")


def _cost_complaints(
    cost: Mapping[str, Any], pool: Mapping[str, Any], axis_names: Sequence[str], domain_names: Sequence[str] | None
) -> Iterator[Complaint]:
    terms = _list(cost.get("terms"))
    if not terms and cost.get("terms") in (None, [], ()) and cost.get("column") is None:
        example = ", ".join(f"{name} = 1" for name in axis_names[:2])
        yield Complaint(
            "cost.terms",
            None,
            "a run needs a price: at least one term, or a column of the pool",
            f"add terms = [{{ coefficient = 6, powers = {{ {example} }} }}]",
        )
    if cost.get("column") is not None and pool.get("file") is None:
        yield Complaint(
            "cost.column",
            cost["column"],
            "is a column of the pool file, and there is none",
            "add a [pool] with file, or use terms",
        )
    constants = _table(cost.get("constants"))
    yield from _constant_complaints(constants, axis_names, domain_names)
    units = [cost.get("unit", "FLOP"), *_table(cost.get("conversions"))]
    for index, term in enumerate(terms):
        for name in _table(_table(term).get("powers")):
            if axis_names and name not in axis_names and name not in constants:
                key = f"cost.terms[{index}].powers.{name}"
                known = [*axis_names, *constants]
                yield Complaint(
                    key, name, "is not an axis" if not constants else "is no axis or constant", near(name, known)
                )
        unit = _table(term).get("unit")
        if unit is not None and unit not in units:
            rule = f"cannot be turned into {units[0]}"
            yield Complaint(
                f"cost.terms[{index}].unit", unit, rule, f'add conversions = {{ "{unit}" = NUMBER }} to [cost]'
            )
        for name in _table(_table(term).get("domains")):
            if domain_names is not None and name not in domain_names:
                key = f"cost.terms[{index}].domains.{name}"
                yield Complaint(key, name, "is not a domain", near(name, domain_names))


def _constant_complaints(
    constants: Mapping[str, Any], axis_names: Sequence[str], domain_names: Sequence[str] | None
) -> Iterator[Complaint]:
    for name, values in constants.items():
        key = f"cost.constants.{name}"
        if name in axis_names:
            yield Complaint(key, name, "is the name of an axis", "rename the constant")
        if not isinstance(values, Mapping) or domain_names is None:
            continue
        for domain in values:
            if domain not in domain_names:
                yield Complaint(f"{key}.{domain}", domain, "is not a domain", near(domain, domain_names))
        for domain in domain_names:
            if domain not in values:
                yield Complaint(f"{key}.{domain}", None, "every domain needs a value", f"add {domain} = NUMBER")


def _target_complaints(
    key: str,
    target: Mapping[str, Any],
    axes: Sequence[Mapping[str, Any]],
    axis_names: Sequence[str],
    domain_names: Sequence[str] | None,
) -> Iterator[Complaint]:
    yield from _domain_complaints(f"{key}.domain", target.get("domain"), domain_names)
    axis = target.get("axis")
    if isinstance(axis, str) and axis_names and axis not in axis_names:
        yield Complaint(f"{key}.axis", axis, "is not an axis", near(axis, axis_names))
    sources = [each["name"] for each in axes if each.get("source_of") is not None and isinstance(each.get("name"), str)]
    if target.get("kind") == "source" and isinstance(axis, str) and axis in axis_names and axis not in sources:
        yield Complaint(f"{key}.axis", axis, "is not a source of another axis", near(axis, sources))
    for index, point in enumerate(_list(target.get("points"))):
        if isinstance(point, Mapping):
            where = f"{key}.points[{index}]"
            yield from _domain_complaints(f"{where}.domain", point.get("domain"), domain_names)
            yield from _point_complaints(where, point, axes, axis_names)


def _domain_complaints(key: str, name: Any, domain_names: Sequence[str] | None) -> Iterator[Complaint]:
    if name is None or domain_names is None:
        return
    if not isinstance(name, str):
        yield Complaint(key, name, "must be text", "write the domain's name in quotes")
    elif name not in domain_names:
        yield Complaint(key, name, "is not a domain", near(name, domain_names))


def _point_complaints(
    key: str, point: Mapping[str, Any], axes: Sequence[Mapping[str, Any]], axis_names: Sequence[str]
) -> Iterator[Complaint]:
    for name in point:
        if axis_names and name not in axis_names and name != "domain":
            yield Complaint(f"{key}.{name}", point[name], "is not an axis", near(name, [*axis_names, "domain"]))
    first_of_name = {axis["name"]: axis for axis in reversed(axes) if isinstance(axis.get("name"), str)}
    for name in axis_names:
        axis = first_of_name[name]
        if name not in point:
            yield Complaint(f"{key}.{name}", None, "every axis needs a value", f"add {name} = NUMBER")
            continue
        value = _number(point[name])
        is_share = axis.get("role") == "mixture" or axis.get("simplex") is not None
        is_log = axis.get("scale", "linear" if is_share else "log") == "log"
        if value is None:
            yield Complaint(f"{key}.{name}", point[name], "must be a number", "write it without quotes, such as 1e9")
        elif axis.get("source_of") is not None and value == 0:
            continue
        elif not math.isfinite(value) or (is_log and value <= 0):
            rule = f"axis {name!r} needs a finite number" + (" greater than 0" if is_log else "")
            yield Complaint(f"{key}.{name}", point[name], rule, "correct the value")
