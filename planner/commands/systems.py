"""Commands for some studies: the split of a sampling budget, and a reviewer's questions to fitted exponents."""

from __future__ import annotations

from typing import Annotated

import typer

from planner.commands import shared
from planner.commands.shared import Domain, Json, StudyFile


def register(app: typer.Typer) -> None:
    """Adds the commands of this file to the command line."""
    for command in (rollouts, diagnose):
        app.command()(command)


def rollouts(
    file: StudyFile,
    budget: Annotated[list[float] | None, typer.Option(help="Rollouts in all; may be repeated.")] = None,
    batch: Annotated[float | None, typer.Option(help="Problems x rollouts, held fixed.", show_default=False)] = None,
    domain: Domain = None,
    as_json: Json = False,
) -> None:
    """Split a sampling budget into rollouts per problem, problems and updates.

    With the probability that a larger budget wants more rollouts, and that they level off.
    """
    shared.prepare_numerics()
    from planner.errors import InputError
    from planner.rollouts import frontier

    if not budget:
        raise InputError("name at least one budget, such as --budget 1e8")
    with shared.open_study(file) as study:
        splits = study.rollouts(budget, domain, batch=batch)
        records = frontier(study.spec, study.state.outcomes(), splits[0]["domain"])
        document = {"study": study.spec.name, "splits": splits, "records": records}
        shared.show(document, "rollouts", as_json, study.warnings)


def diagnose(
    file: StudyFile,
    law: Annotated[str, typer.Option(help="A law with an exponent for every axis.")] = "sum_of_powers",
    domain: Domain = None,
    as_json: Json = False,
) -> None:
    """Ask what fitted exponents hang on.

    Local slopes, each rung left out, the two ends left out, other axes held low or high.
    """
    shared.prepare_numerics()
    with shared.open_study(file) as study:
        document = {"study": study.spec.name, **study.diagnose(domain, law=law)}
        shared.show(document, "diagnosis", as_json, study.warnings)
