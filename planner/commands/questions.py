"""Commands that ask the posterior: predict, recipe, value, need, compare, sensitivity, audit.

Each ends with exit code 4 when the posterior is not to be trusted, after the answer was printed.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from planner.commands import shared
from planner.commands.shared import Domain, Json, StudyFile

Budget = Annotated[float, typer.Option(help="Largest cost of the run, in the cost unit.", show_default=False)]
SomeBudget = Annotated[
    float | None, typer.Option(help="Cost of the run; default: the study's first recipe target.", show_default=False)
]
Points = Annotated[list[str] | None, typer.Option(metavar="N=1e9,D=2e10", help="A point; may be repeated.")]


def register(app: typer.Typer) -> None:
    """Adds the commands of this file to the command line."""
    for command in (predict, sources, recipe, value, need, compare, sensitivity, audit):
        app.command()(command)


def predict(file: StudyFile, at: Points = None, domain: Domain = None, as_json: Json = False) -> None:
    """Predict the response at points.

    With 50 % and 90 % intervals and the distance from the data.
    """
    shared.prepare_numerics()
    from planner.errors import InputError

    if not at:
        raise InputError("name at least one point, such as --at N=1e9,D=2e10")
    points = [shared.pairs(point.split(",")) for point in at]
    with shared.open_study(file) as study:
        answer = study.prediction(points, domain)
        columns, notes = answer["columns"], answer["notes"]
        document = {
            "study": study.spec.name,
            "response": study.spec.response.name,
            "axes": list(study.spec.axis_names),
            "points": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
            "laws": answer["laws"],
            "notes": notes,
        }
        shared.show(document, "predictions", as_json, [*study.warnings, *notes])


def sources(file: StudyFile, domain: Domain = None, as_json: Json = False) -> None:
    """Say what bought sources are worth.

    Discounts, the ratios at which they peak and collapse, and what a real unit's worth costs.
    """
    shared.prepare_numerics()
    from planner.errors import InputError

    with shared.open_study(file) as study:
        values = study.source_values(domain)
        if not values:
            raise InputError('no axis of the study has source_of = "AXIS"')
        document = {"study": study.spec.name, "domain": domain, "sources": values}
        shared.show(document, "sources", as_json, study.warnings)


def recipe(
    file: StudyFile,
    budget: Annotated[float | None, typer.Option(help="Largest cost of the run.", show_default=False)] = None,
    domain: Domain = None,
    versus: Annotated[
        list[str] | None,
        typer.Option(metavar="PLAN", help="N=..,D=* or plans.toml: how much less the recipe needs than this plan."),
    ] = None,
    sweep: Annotated[
        str | None, typer.Option(metavar="LO:HI:POINTS", help="The recipe over budgets.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Show the best axis values under a budget.

    With their uncertainty, and which axis to scale next.  A plan fixes axes (N=1e9) and scales others until the budget
    is spent (D=* from its low, D=1e9* from a value); axes that it does not name stand at their low.
    """
    from planner.errors import InputError

    if (budget is None) == (sweep is None) or (sweep is not None and versus):
        raise InputError("give either --budget, with --versus if you like, or --sweep LO:HI:POINTS")
    shared.prepare_numerics()
    with shared.open_study(file) as study:
        names = _domains(study, domain)
        if sweep is not None:
            low, high, points = _range(sweep)
            _answer(study, [study.sweep(low, high, points, name) for name in names], as_json)
            return
        answers = [study.recipe(budget, name, versus=versus or ()).document() for name in names]
        document = {"study": study.spec.name, "response": study.spec.response.name, "recipes": answers}
        shared.show(document, "recipes", as_json, study.warnings)
        _require_trust(answers)


def value(
    file: StudyFile,
    budget: SomeBudget = None,
    at: Annotated[
        list[str] | None, typer.Option(metavar="N=1e9,D=2e10", help="An experiment to judge; may be repeated.")
    ] = None,
    domain: Domain = None,
    as_json: Json = False,
) -> None:
    """Show what more would be worth.

    The next unit of budget on each axis of the recipe, and the next experiment of the study.
    """
    shared.prepare_numerics()
    experiments = [shared.pairs(point.split(",")) for point in at or ()]
    with shared.open_study(file) as study:
        _answer(study, [study.value(budget, at=experiments, domain=n) for n in _domains(study, domain)], as_json)


def need(
    file: StudyFile,
    response: Annotated[float, typer.Option(help="The response to reach, in its own unit.", show_default=False)],
    probability: Annotated[float, typer.Option(help="With which it is to be reached.")] = 0.9,
    domain: Domain = None,
    as_json: Json = False,
) -> None:
    """Show the budget that reaches a response.

    With the wanted probability for those who follow the recipe, or that no budget does.
    """
    shared.prepare_numerics()
    with shared.open_study(file) as study:
        names = _domains(study, domain)
        _answer(study, [study.need(response, probability=probability, domain=name) for name in names], as_json)


def compare(
    file: StudyFile,
    budget: SomeBudget = None,
    start: Annotated[
        str | None, typer.Option("--from", metavar="N=1e9,D=2e10", help="Where to scale from.", show_default=False)
    ] = None,
    domain: Domain = None,
    as_json: Json = False,
) -> None:
    """Show which axis to scale, and which domain does best.

    As probabilities, each axis against each.
    """
    shared.prepare_numerics()
    point = shared.pairs(start.split(",")) if start is not None else None
    with shared.open_study(file) as study:
        _answer(study, [study.compare(budget, start=point, domain=domain)], as_json)


def sensitivity(
    file: StudyFile,
    budget: SomeBudget = None,
    change: Annotated[float, typer.Option(help="Share by which each cost coefficient is lowered and raised.")] = 0.5,
    scale: Annotated[float, typer.Option(help="Slopes are also measured up to so many times the budget.")] = 32.0,
    domain: Domain = None,
    as_json: Json = False,
) -> None:
    """Show how the recipe moves with the prices.

    Each cost coefficient lowered and raised: values, spend shares and slopes.
    """
    shared.prepare_numerics()
    with shared.open_study(file) as study:
        names = _domains(study, domain)
        answers = [study.sensitivity(budget, change=change, scale=scale, domain=name) for name in names]
        _answer(study, answers, as_json)


def audit(file: StudyFile, as_json: Json = False) -> None:
    """Check whether the posterior is to be trusted, and say why not; exit 4 when no law fits."""
    shared.prepare_numerics()
    from planner import verdict

    with shared.open_study(file) as study:
        document = study.audit().document()
        shared.show(document, "audit", as_json, study.warnings)
    if document["verdict"] == verdict.NO_LAW:
        _refuse(document["failures"])


def _answer(study: Any, answers: Sequence[Any], as_json: bool) -> None:
    """Prints the answers to one question, one a domain."""
    documents = [answer.document() for answer in answers]
    head = {"study": study.spec.name, "response": study.spec.response.name}
    shared.show(head | {"answers": documents}, "answers", as_json, study.warnings)
    _require_trust(documents)


def _require_trust(documents: Sequence[Mapping[str, Any]]) -> None:
    if not all(document["trusted"] for document in documents):
        _refuse(documents[0]["reasons"])


def _refuse(failures: Sequence[str]) -> None:
    from planner.errors import UnreliableFit

    print(f"error: no law fits: {'; '.join(failures)}", file=sys.stderr)
    raise typer.Exit(UnreliableFit.exit_code)


def _domains(study: Any, domain: str | None) -> list[str]:
    return [domain] if domain is not None else list(study.spec.domain_names)


def _range(text: str) -> tuple[float, float, int]:
    from planner.errors import InputError

    try:
        low, high, points = text.split(":")
        return float(low), float(high), int(points)
    except ValueError:
        raise InputError(f"{text!r} must be written LO:HI:POINTS, such as 1e20:1e22:5") from None
