"""Study file -> StudySpec, reporting every mistake at once with its line."""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import pydantic

from planner.errors import Problem, SpecError
from planner.rawtables import read_whole
from planner.spec import checks
from planner.spec.fields import Complaint, describe_type
from planner.spec.models import LIST_SECTIONS, REQUIRED_SECTIONS, SECTION_MODELS, StudySpec
from planner.spec.sections import CostTerm
from planner.spec.tomllines import line_of

EXAMPLES = {
    "study": '[study]\nname = "my-study"',
    "axes": '[[axes]]\nname = "N"\nlow = 1e6\nhigh = 1e9',
    "cost": "[cost]\nterms = [{ coefficient = 6, powers = { N = 1, D = 1 } }]",
    "budget": "[budget]\ntotal = 1e20",
    "name": 'name = "NAME"',
    "kind": 'kind = "prediction"',
    "total": "total = 1e20",
    "coefficient": "coefficient = 6",
}

# Stand-ins for a required key that is wrong itself, so that the section's other rules still get their say.
PLACEHOLDERS: dict[str, Any] = {"name": "placeholder", "total": 1.0}


def load_study_spec(path: str | Path) -> StudySpec:
    """Reads and checks a study file.  Raises `SpecError` whose `problems` are all mistakes found."""
    path = Path(path)
    try:
        text = read_whole(path).decode("utf-8-sig")
    except OSError as error:
        hint = "Write one with: planner init NAME" if isinstance(error, FileNotFoundError) else ""
        reason = "there is no such file" if isinstance(error, FileNotFoundError) else str(error.strerror or error)
        raise SpecError(Problem(message=reason, file=str(path), hint=hint)) from None
    except UnicodeDecodeError as error:
        raise SpecError(
            Problem(message=f"is not UTF-8 text (byte {error.start})", file=str(path), hint="Save the file as UTF-8")
        ) from None
    return parse_study_toml(text, path=path)


def parse_study_toml(text: str, *, path: str | Path | None = None) -> StudySpec:
    """Checks the text of a study file; `path` names it in messages and anchors its relative paths."""
    file = str(path) if path is not None else "<study>"
    try:
        raw = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise SpecError(_syntax_problem(file, text, str(error))) from None
    except (ValueError, RecursionError) as error:
        raise SpecError(Problem(message=f"is not readable TOML: {error}", file=file)) from None
    return _parse(raw, path=path, file=file, text=text)


def parse_study_spec(raw: Mapping[str, Any], *, path: str | Path | None = None) -> StudySpec:
    """Checks a study given as nested dictionaries, the shape of the TOML file."""
    return _parse(raw, path=path, file=str(path) if path is not None else "<study>", text="")


def _parse(raw: Mapping[str, Any], *, path: str | Path | None, file: str, text: str) -> StudySpec:
    complaints = list(_complaints(raw))
    if complaints:
        problems = [_problem(complaint, file, text) for complaint in complaints]
        raise SpecError(sorted(problems, key=lambda p: p.line if p.line is not None else 0))
    # By alias and in lists, as TOML gives it; the sections turn lists into tuples.
    spec = StudySpec.model_validate(dict(raw))
    if path is not None:
        spec._path = Path(path)
    return spec


def _complaints(raw: Mapping[str, Any]) -> Iterator[Complaint]:
    """All mistakes of all sections, then those between sections that are not the echo of one already named."""
    found: list[Complaint] = []
    for name in raw:
        if name not in SECTION_MODELS:
            found.append(Complaint(name, None, "unknown section", checks.near(name, list(SECTION_MODELS))))
    for name in REQUIRED_SECTIONS:
        if name not in raw:
            found.append(Complaint(name, None, "is required", f"add\n{EXAMPLES[name]}"))
    for name, value in raw.items():
        if name in LIST_SECTIONS:
            found += _list_section_complaints(name, value)
        elif name in SECTION_MODELS:
            found += _section_complaints(name, SECTION_MODELS[name], value)
    yield from found
    named = {complaint.key for complaint in found}
    yield from (c for c in checks.reference_complaints(raw) if c.key not in named)


def _list_section_complaints(name: str, value: Any) -> Iterator[Complaint]:
    if isinstance(value, dict):
        yield Complaint(name, None, "is a list of tables", f"write [[{name}]] with two brackets")
    elif not isinstance(value, list | tuple):
        yield Complaint(name, value, f"must be a list of tables, not {describe_type(value)}", f"write [[{name}]]")
    elif not value and name in REQUIRED_SECTIONS:
        yield Complaint(name, [], "must not be empty", f"add\n{EXAMPLES[name]}")
    else:
        for index, item in enumerate(value):
            yield from _section_complaints(f"{name}[{index}]", SECTION_MODELS[name], item)


def _section_complaints(key: str, model: type[pydantic.BaseModel], value: Any) -> Iterator[Complaint]:
    if not isinstance(value, dict):
        yield Complaint(key, value, f"must be a table, not {describe_type(value)}", f"write [{key}] and keys below it")
        return
    found = list(_validate(key, model, value))
    yield from found
    # Rules that join several keys only run once each key is well-formed: leave out the malformed and look again.
    bad = {complaint.key[len(key) + 1 :].partition(".")[0].partition("[")[0] for complaint in found}
    if bad and "kind" not in bad:
        rest = {k: v for k, v in value.items() if k not in bad}
        rest |= {k: PLACEHOLDERS[k] for k in bad if k in PLACEHOLDERS}
        named = {complaint.key for complaint in found} | {f"{key}.{name}" for name in bad}
        yield from (c for c in _validate(key, model, rest) if c.key not in named)


def _validate(key: str, model: type[pydantic.BaseModel], value: Any) -> Iterator[Complaint]:
    try:
        model.model_validate(value)
    except pydantic.ValidationError as errors:
        for error in errors.errors(include_url=False):
            yield from _translate(key, model, dict(error))


def _translate(section: str, model: type[pydantic.BaseModel], error: Mapping[str, Any]) -> Iterator[Complaint]:
    """One pydantic error in our words: the key, the value, the rule and the fix."""
    location = [part for part in error["loc"] if part != "[key]"]
    key = section + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in location)
    value, context, name = error["input"], error.get("ctx", {}), str(location[-1]) if location else section
    kind = error["type"]
    if kind == "complaints":
        for complaint in context["complaints"]:
            yield complaint._replace(key=f"{key}.{complaint.key}")
    elif kind == "complaint":
        yield Complaint(key, value, context["rule"], context["fix"])
    elif kind == "missing":
        yield Complaint(key, None, "is required", f"add {EXAMPLES.get(name, f'{name} = ...')}")
    elif kind == "extra_forbidden":
        yield Complaint(key, None, "unknown key", checks.near(name, _known_keys(section, model, location)))
    elif kind == "literal_error":
        field = model.model_fields.get(name)
        options = [str(option) for option in get_args(field.annotation)] if field is not None else []
        yield Complaint(key, value, f"must be one of {', '.join(map(repr, options))}", _guess(value, options))
    elif kind in TYPE_RULES:
        rule, fix = TYPE_RULES[kind]
        yield Complaint(key, value, f"{rule}, not {describe_type(value)}", fix)
    else:
        yield Complaint(key, value, str(error["msg"]), "")


TYPE_RULES = {
    "string_type": ("must be text", "write it in quotes"),
    "bool_type": ("must be true or false", "write true or false, without quotes"),
    "dict_type": ("must be a table", "write { key = value }"),
    "model_type": ("must be a table", "write { key = value }"),
    "model_attributes_type": ("must be a table", "write { key = value }"),
    "tuple_type": ("must be a list", "write [ ... ]"),
}


def _guess(value: Any, options: Sequence[str]) -> str:
    hint = checks.near(value, options)
    return hint.partition(" known:")[0] if hint.startswith("did you mean") else f"write {options[0]!r}, say"


def _known_keys(section: str, model: type[pydantic.BaseModel], location: Sequence[str | int]) -> list[str]:
    if section == "cost" and location[0] == "terms":
        model = CostTerm
    return [field.alias or name for name, field in model.model_fields.items()]


def _problem(complaint: Complaint, file: str, text: str) -> Problem:
    value = "" if complaint.value is None else _show(complaint.value)
    fix = complaint.fix[:1].upper() + complaint.fix[1:]
    # `Problem` shows a value only where the message does not already hold it, and "0" is in "greater than 0".
    message = f"{complaint.rule} (got {value})" if value and value in complaint.rule else complaint.rule
    return Problem(
        message=message, file=file, line=line_of(text, complaint.key), key=complaint.key, value=value, hint=fix
    )


def _show(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float):
        return f"{value:g}" if float(f"{value:g}") == value else repr(value)
    try:
        shown = repr(list(value) if isinstance(value, tuple) else value)
    except ValueError:  # an integer too long for Python to print
        return "a huge integer"
    return shown if len(shown) <= 80 else shown[:77] + "..."


def _syntax_problem(file: str, text: str, message: str) -> Problem:
    """The parser's message with its line and column taken out of the sentence."""
    place = re.search(r"\(at (?:line (\d+), column (\d+)|end of document)\)", message)
    line = column = None
    if place is not None:
        message = message[: place.start()].strip()
        if place[1] is not None:
            line, column = int(place[1]), int(place[2])
        else:
            line = text.count("\n") + 1
    hint = "Numbers are written 1e9, text in quotes, lists as [[axes]]"
    if "overwrite" in message or "twice" in message or "Duplicate" in message:
        hint = "The key or table is given twice; remove one"
    shown = text.splitlines()[line - 1].strip() if line is not None and line <= len(text.splitlines()) else ""
    where = f" at column {column}" if column is not None else ""
    return Problem(message=f"TOML syntax: {message}{where}", file=file, line=line, value=shown[:80], hint=hint)
