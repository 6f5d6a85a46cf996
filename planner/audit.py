"""The audit of a study: what its runs say of its posterior, before anybody acts on an answer.

The parts that need new fits are few and bounded in number, so that sixty runs are audited in seconds.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from planner import candidates, verdict
from planner.answers import FAR
from planner.errors import PlannerError
from planner.questions import trust

if TYPE_CHECKING:
    import pandas as pd

    from planner.advice import RecipeAnswer
    from planner.inference import StudyPosterior
    from planner.inference.diagnostics import Repeats
    from planner.records import Outcome
    from planner.spec import StudySpec

DEAREST_SHARE, MAX_DEAREST, MAX_REFITS = 0.2, 5, 3
MAX_LEFT_OUT = 6  # domains
MAX_RECIPES = 2
_REFIT_DRAWS = 600
_FRAMES = ("laws", "dearest", "left_out", "parameters", "runs", "targets")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Audit:
    """What was checked, found and not checked; the rules of the verdict are those of `planner.verdict`.

    Tables: `laws` (weight, formula, source, why it was selected, whether it fits), `dearest` (the dearest runs
    predicted from cheaper ones), `left_out` (each domain predicted from the others), `parameters` (prior and posterior
    of the laws' parameters), `runs` (residual in noise deviations, noise multiplier), `targets` (distance from the
    runs).
    """

    study: str
    verdict: str
    failures: Sequence[str]  # why no law fits
    reasons: Sequence[str]  # what to know before trusting an answer
    unchecked: Sequence[str]
    numbers: Mapping[str, float | int | None]
    laws: pd.DataFrame
    dearest: pd.DataFrame
    left_out: pd.DataFrame
    parameters: pd.DataFrame
    runs: pd.DataFrame
    targets: pd.DataFrame

    def document(self) -> dict[str, Any]:
        """Everything as plain values, None for what is not a finite number."""
        fields = {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}
        return {name: _rows(value) if name in _FRAMES else value for name, value in fields.items()}

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything as one array of text; `from_arrays` is the inverse."""
        return {"document": np.array(json.dumps(self.document()))}

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, np.ndarray]) -> Audit:
        """The audit that `to_arrays` wrote."""
        import pandas as pd

        document = json.loads(str(arrays["document"]))
        return cls(**{name: pd.DataFrame(value) if name in _FRAMES else value for name, value in document.items()})


def _rows(frame: pd.DataFrame) -> list[dict[str, Any]]:
    rows = frame.to_dict(orient="records")
    return [
        {str(k): None if isinstance(v, float) and not np.isfinite(v) else v for k, v in row.items()} for row in rows
    ]


def audit_study(
    spec: StudySpec,
    outcomes: Sequence[Outcome],
    posterior: StudyPosterior,
    recipe: Callable[[float, str], RecipeAnswer],
) -> Audit:
    """Checks `posterior`, which was fitted to `outcomes`.

    Args:
        recipe: answers the recipe of a budget in a domain, for the distance of the study's recipe targets.
    """
    import pandas as pd

    from planner.inference import diagnostics

    work = _Work(spec, outcomes, posterior)
    checks = dict(zip(posterior.law_names, diagnostics.law_checks(posterior, work.runs), strict=True))
    dearest, left_out = list(work.dearest()), list(work.left_out())
    runs, repeated = work.residuals()
    parameters = [{**row._asdict(), "contraction": row.contraction} for row in diagnostics.contractions(posterior)]
    for row in parameters:
        row["prior_driven"] = row["contraction"] < verdict.MIN_CONTRACTION
    targets = [*work.target_distances(), *work.recipe_distances(recipe)]
    leading = posterior.law_names[int(np.argmax(posterior.weights))]
    findings = verdict.Findings(
        num_runs=len(work.completed),
        moved=trust.moved(posterior, work.runs),
        laws=checks,
        surprises={row["run"]: row["z"] for row in dearest},
        spread=float(diagnostics.spread_within(work.runs.eta, work.runs.domain)),
        covered=_covered(left_out),
        multipliers={row["run"]: row["multiplier"] for row in runs},
        repeats=repeated,
        repeat_ids=[work.completed[i].run_id for i in repeated.groups[0]] if repeated else [],
        prior_driven=[
            row["parameter"]
            for row in parameters
            if row["law"] == leading and row["prior_driven"] and row["parameter"].startswith(trust.DECISIVE)
        ],
        far=[f"{row['target']} in {row['domain']}" for row in targets if row["num_far"]],
        notes=posterior.notes,
    )
    judged, failures, reasons = verdict.judge(findings)
    return Audit(
        study=spec.name,
        verdict=judged,
        failures=failures,
        reasons=reasons,
        unchecked=work.unchecked,
        numbers=_numbers(findings),
        laws=pd.DataFrame(_laws(posterior, findings)),
        dearest=pd.DataFrame(dearest),
        left_out=pd.DataFrame(left_out),
        parameters=pd.DataFrame(parameters),
        runs=pd.DataFrame(runs),
        targets=pd.DataFrame(targets),
    )


class _Work:
    """The runs of a study as arrays, and the fits to parts of them."""

    def __init__(self, spec: StudySpec, outcomes: Sequence[Outcome], posterior: StudyPosterior) -> None:
        self.spec, self.posterior = spec, posterior
        self.completed = trust.completed(outcomes)
        self.unchecked: list[str] = []
        self.runs = trust.runs_of(spec, self.completed, posterior)

    def dearest(self) -> Iterator[dict[str, Any]]:
        """The dearest runs, each predicted from runs that cost less; a training run is held out whole."""
        num = len(self.completed)
        if num < 3:
            self.unchecked.append(
                f"the dearest runs, predicted from cheaper ones: needs 3 finished runs, there are {num}"
            )
            return
        cost = np.array([o.cost for o in self.completed])
        if np.ptp(cost) == 0:
            self.unchecked.append("whether dearer runs are predicted from cheaper ones: all cost the same (last taken)")
        order = np.argsort(cost, kind="stable")
        held = int(np.clip(round(DEAREST_SHARE * num), 1, min(MAX_DEAREST, num - 2)))
        for block in np.array_split(np.arange(num - held, num), min(MAX_REFITS, held)):
            rows = order[block]
            curves = {self.completed[i].curve for i in rows} - {None}
            known = [i for i in order[: block[0]] if self.completed[i].curve not in curves]
            yield from self._predicted(rows, known)

    def left_out(self) -> Iterator[dict[str, Any]]:
        """Each domain with runs predicted from the others, one row a domain; the fullest ones where they are many."""
        with_runs, counts = np.unique(self.runs.domain, return_counts=True)
        if len(with_runs) < 2:
            if len(self.spec.domain_names) > 1:
                self.unchecked.append("domains predicted from one another: needs finished runs in two domains")
            return
        chosen = with_runs[np.argsort(-counts, kind="stable")][:MAX_LEFT_OUT]
        if len(chosen) < len(with_runs):
            self.unchecked.append(f"{len(with_runs) - len(chosen)} domains with few runs, predicted from the others")
        for g in chosen:
            rows = np.flatnonzero(self.runs.domain == g)
            found = list(self._predicted(rows, np.flatnonzero(self.runs.domain != g)))
            error = np.array([row["response"] - row["median"] for row in found])
            yield {
                "domain": self.spec.domain_names[g],
                "runs": len(rows),
                "coverage_90": float(np.mean([row["q05"] <= row["response"] <= row["q95"] for row in found])),
                "error": float(np.sqrt((error**2).mean())),
                "median_z": float(np.median(np.abs([row["z"] for row in found]))),
            }

    def _predicted(self, rows: np.ndarray, known: Sequence[int] | np.ndarray) -> Iterator[dict[str, Any]]:
        """Predictions of runs from a fit to others, one row a run; quantiles are those of a new run."""
        from planner import inference
        from planner.inference import diagnostics

        fitted = inference.fit_study(
            self.spec,
            [self.completed[i] for i in known],
            candidates.all_designs(self.spec),
            candidates.target_points(self.spec),
            num_draws=_REFIT_DRAWS,
            seed=self.spec.seed,
            warm=self.posterior,
        )
        wanted = self.runs.take(rows)
        draws = diagnostics.predictive_draws(fitted, wanted)
        scores = diagnostics.normal_scores(draws, wanted.eta)
        scale = fitted.encoding.scale
        quantiles = np.quantile(scale.from_eta(draws), [0.05, 0.5, 0.95], axis=0)
        response = scale.from_eta(wanted.eta)
        for i, row in enumerate(rows):
            outcome = self.completed[row]
            low, median, high = quantiles[:, i].tolist()
            place = {"run": outcome.run_id, "domain": outcome.design.domain, **self._axes(row), "cost": outcome.cost}
            predicted = {"response": float(response[i]), "median": median, "q05": low, "q95": high}
            yield {**place, **predicted, "z": float(scores[i]), "num_known": len(known)}

    def _axes(self, row: int) -> dict[str, float]:
        return dict(zip(self.spec.axis_names, self.runs.x[row].tolist(), strict=True))

    def residuals(self) -> tuple[list[dict[str, Any]], Repeats | None]:
        """One row a run, and what runs of equal inputs say."""
        from planner.inference import diagnostics

        if not self.completed:
            self.unchecked.append("how well the laws follow the runs: no run has finished")
            return [], None
        standardised, multiplier = diagnostics.noise_multipliers(self.posterior, self.runs)
        response = self.posterior.encoding.scale.from_eta(self.runs.eta)
        rows = [
            {
                "run": outcome.run_id,
                "domain": outcome.design.domain,
                **self._axes(i),
                "response": float(response[i]),
                "residual": float(standardised[i]),
                "multiplier": float(multiplier[i]),
                "outlier": bool(multiplier[i] < verdict.OUTLIER),
            }
            for i, outcome in enumerate(self.completed)
        ]
        about = self.runs.eta - np.median(self.posterior.eta_draws(self.runs.domain, self.runs.x), axis=0)
        return rows, diagnostics.repeats(self.runs, self.posterior.encoding.coordinates(self.runs.x), about)

    def target_distances(self) -> Iterator[dict[str, Any]]:
        """How far the prediction targets of each domain lie from its runs."""
        table = candidates.target_points(self.spec)
        for g in np.unique(table.domain):
            mine = table.domain == g
            distance = self.posterior.distance(table.domain[mine], table.x[mine])
            yield self._distance("predictions", int(g), distance)

    def recipe_distances(self, recipe: Callable[[float, str], RecipeAnswer]) -> Iterator[dict[str, Any]]:
        """How far the recipes that the study asks for lie from the runs; the largest budgets where they are many."""
        wanted = [
            (budget, name)
            for target in self.spec.targets
            if target.kind == "recipe"
            for budget in target.budgets
            for name in ([target.domain] if target.domain else self.spec.domain_names)
        ]
        wanted = sorted(set(wanted), key=lambda item: -item[0])
        if len(wanted) > MAX_RECIPES:
            self.unchecked.append(f"the distance of {len(wanted) - MAX_RECIPES} recipes of smaller budgets")
        for budget, name in wanted[:MAX_RECIPES]:
            try:
                axes = recipe(budget, name).joint["axes"]
            except PlannerError as error:
                self.unchecked.append(f"the distance of the recipe of {budget:g} in {name}: {error}")
                continue
            index = self.spec.domain_index(name)
            point = np.array([[axes[axis] for axis in self.spec.axis_names]])
            yield self._distance(f"recipe of {budget:g}", index, self.posterior.distance(np.array([index]), point))

    def _distance(self, target: str, domain: int, distance: np.ndarray) -> dict[str, Any]:
        return {
            "target": target,
            "domain": self.spec.domain_names[domain],
            "points": len(distance),
            "median_distance": float(np.median(distance)),
            "largest_distance": float(distance.max()),
            "num_far": int((distance > FAR).sum()),
        }


def _covered(left_out: Sequence[Mapping[str, Any]]) -> float | None:
    """Share of the runs inside their 90 % intervals, over the domains left out."""
    if not left_out:
        return None
    return float(np.average([row["coverage_90"] for row in left_out], weights=[row["runs"] for row in left_out]))


def _laws(posterior: StudyPosterior, findings: verdict.Findings) -> Iterator[dict[str, Any]]:
    """One row a law, the most believed first."""
    from planner import laws

    families = laws.families()
    for i in np.argsort(-posterior.weights, kind="stable"):
        law = posterior.parts[i].law.law
        check = findings.laws[law.name]
        numbers = {name: getattr(check, name) for name in ("explained", "discrepancy", "noise", "residual", "turning")}
        yield {
            "law": law.name,
            "weight": check.weight,
            "fits": verdict.law_fits(check) if verdict.can_tell_misfit(findings) else None,
            "formula": families[law.name].formula,
            "source": families[law.name].source,
            "why": law.reason,
            **numbers,
        }


def _numbers(findings: verdict.Findings) -> dict[str, float | int | None]:
    found = findings.repeats
    values = {
        "num_runs": findings.num_runs,
        "response_spread": findings.spread,
        "fitting_weight": verdict.fitting_weight(findings.laws) if verdict.can_tell_misfit(findings) else None,
        "median_surprise": verdict.median_surprise(findings.surprises) if findings.surprises else None,
        "covered_left_out": findings.covered,
        "num_outliers": sum(value < verdict.OUTLIER for value in findings.multipliers.values()),
        "num_repeated": sum(map(len, found.groups)) if found else 0,
        "repeat_spread": found.spread if found else None,
    }
    return {name: None if isinstance(v, float) and not np.isfinite(v) else v for name, v in values.items()}
