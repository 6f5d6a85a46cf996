"""The published parametric forms of the benchmark's scenarios, as laws that a study uses only where it names them.

65 forms over eight scenarios: ScaleBench, arXiv:2604.22753.  A scenario of several responses has a law for each.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

from benchmarks.forms import data_constrained as repeated
from benchmarks.forms import domain_mixture, farseer, lr_bsz, moe, parallel, sparsity, vocab
from benchmarks.forms.base import Form
from benchmarks.problems import Problem
from planner import laws
from planner.laws.base import LawFamily
from planner.spec.sections import Laws

_MODULES = (lr_bsz, domain_mixture, vocab, parallel, moe, repeated, sparsity, farseer)


@dataclasses.dataclass(frozen=True, kw_only=True)
class PublishedForm:
    """One form: a law for each response, in order."""

    name: str
    families: Sequence[LawFamily]


@functools.cache
def forms_for(scenario: str) -> Sequence[PublishedForm]:
    """The published forms of a scenario, in the published order; none where none are published."""
    return tuple(
        _published(scenario, number, form if isinstance(form, tuple) else (form,), module.AXES)
        for module in _MODULES
        if scenario == module.SCENARIO
        for number, form in enumerate(module.FORMS, start=1)
    )


def _published(scenario: str, number: int, forms: Sequence[Form], axes: Sequence[tuple[str, bool]]) -> PublishedForm:
    name = f"{scenario}_{number}"
    source = f"ScaleBench, arXiv:2604.22753, {scenario} form {number}"
    names = [name] if len(forms) == 1 else [f"{name}_output_{i + 1}" for i in range(len(forms))]
    families = tuple(form.family(each, source, axes) for each, form in zip(names, forms, strict=True))
    return PublishedForm(name=name, families=families)


def with_form(problem: Problem, name: str) -> Problem:
    """The problem whose studies use the named form alone."""
    form = next(form for form in forms_for(problem.name) if form.name == name)
    specs = [
        spec.model_copy(update={"laws": Laws(use=(laws.register(family).name,))})
        for spec, family in zip(problem.specs, form.families, strict=True)
    ]
    return dataclasses.replace(problem, specs=specs)
