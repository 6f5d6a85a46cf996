"""Study: the one facade of a study, for scripts and for the command line alike.

Opening a study reads its file and nothing else; numerical code is imported by the questions that need it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import planner
from planner import curves, summary
from planner.buying import Stop, buy, readable
from planner.errors import InputError
from planner.ledger import Ledger
from planner.records import STATE_RULES, Design, Outcome, Policy, RunRecord, StudyState
from planner.spec import StudySpec, check_response, load_study_spec, parse_study_spec
from planner.telling import Attached, Attachment

if TYPE_CHECKING:
    import pandas as pd

    from planner.advice import RecipeAnswer
    from planner.audit import Audit
    from planner.execution import Backend
    from planner.inference import StudyPosterior
    from planner.loop import Ended, Watcher, Workplace
    from planner.questions.answer import Answer
    from planner.questions.setting import Setting

BY_HAND: Mapping[str, str] = {"by": "ask"}
MAX_REQUEST = 1000  # characters; what is recorded must be what is looked for


@dataclass(frozen=True, kw_only=True)
class Imported:
    """What an import did: the run that each row became, and what the user should know."""

    attached: Sequence[Attached]
    warnings: Sequence[str]


class Study:
    """A declared study and its ledger.  Use `Study.open` or `Study.from_spec`; also a context manager.

    Every verb that changes the ledger is idempotent: told twice, the second time changes nothing.
    """

    def __init__(self, spec: StudySpec, ledger: Ledger) -> None:
        self.spec = spec
        self.ledger = ledger
        self.warnings: list[str] = [*spec.warnings, *ledger.warnings]
        self._posteriors: dict[tuple[int, str, int], StudyPosterior] = {}

    @classmethod
    def open(cls, path: str | Path, *, read_only: bool = False) -> Study:
        """The study of a file.  Its ledger is made on first use, beside the file or where [store] url says.

        Raises `SpecError` with every mistake in the file, and `StoreError` when the ledger cannot be used.
        """
        return cls.from_spec(load_study_spec(path), read_only=read_only)

    @classmethod
    def create(cls, path: str | Path, *, template: str = "language-model") -> Study:
        """Writes a commented study file from a template and opens it; `path` gets the ending .toml.

        Raises `InputError` for an unknown template, and when the file exists: a study is never overwritten.
        """
        from planner.spec.templates import render_template

        path = Path(path)
        path = path if path.suffix == ".toml" else path.with_name(path.name + ".toml")
        text = render_template(template, path.stem)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        except FileExistsError:
            raise InputError(f"{path} exists and is not overwritten: choose another name, or remove it") from None
        except OSError as error:
            raise InputError(f"{path} cannot be written: {error.strerror or error}") from None
        return cls.open(path, read_only=True)

    @classmethod
    def from_spec(
        cls, spec: StudySpec | Mapping[str, Any], *, store: str | Path | None = None, read_only: bool = False
    ) -> Study:
        """A study from a spec, or from nested dictionaries in the shape of the TOML file.

        `store` is a file or database URL; by default that of the spec, and memory for a spec that is no file.
        """
        if not isinstance(spec, StudySpec):
            spec = parse_study_spec(spec)
        ledger = Ledger.open(
            _store_of(spec) if store is None else store,
            study_name=spec.name,
            total=spec.budget.total,
            spec_digest=spec.digest,
            planner_version=planner.__version__,
            read_only=read_only,
        )
        return cls(spec, ledger)

    def close(self) -> None:
        """Ends the connections to the ledger."""
        self.ledger.close()

    def __enter__(self) -> Study:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    @property
    def state(self) -> StudyState:
        """Where the study stands now."""
        return self.ledger.state()

    @cached_property
    def policy(self) -> Policy:
        """The rule that chooses designs, from [policy]."""
        from planner.design.policies import open_policy

        return open_policy(self.spec.policy.name, **self.spec.policy.options)

    # ---- buying and telling ----

    def ask(self, num: int = 1, *, request: str | None = None) -> list[RunRecord]:
        """Reserves up to `num` runs that are worth their cost and returns them; their results are told by `tell`.

        With a `request`, asking again under the same name returns the same runs, so that a caller that died after
        asking does not pay twice.

        Raises `NothingAffordable` when nothing can be bought, saying what would help.
        """
        if num < 1:
            raise InputError(f"ask for at least one run, not {num}")
        tag = dict(BY_HAND)
        if request is not None:
            if not 0 < len(request) <= MAX_REQUEST:
                raise InputError(f"the name of a request has {len(request)} characters: give 1 to {MAX_REQUEST}")
            tag["request"] = request
            earlier = [run for run in self.state.runs.values() if run.reason.get("request") == request]
            if earlier:
                return earlier
        purchase = buy(self.spec, self.ledger, self.policy, num, tag=tag)
        if not purchase.granted:
            raise (purchase.stop or Stop("policy_stop", "the policy proposes nothing")).as_error()
        return list(purchase.granted)

    def tell(
        self,
        run_id: str,
        *,
        response: float | None = None,
        cost: float | None = None,
        se: float | None = None,
        successes: float | None = None,
        trials: float | None = None,
        diverged: bool = False,
        amend: bool = False,
        message: str = "",
        cost_unit: str | None = None,
    ) -> RunRecord:
        """Records the result of a run; a response of NaN means that it diverged.

        Without a cost the predicted one is charged; a `cost_unit` other than the study's is one of [cost] conversions.
        Raises `UnknownRun`, `ConflictingResult` when another result is recorded and `amend` is False, and `InputError`
        for a response that cannot be.
        """
        if diverged and response is not None:
            raise InputError(f"run {run_id} was told to have diverged and to have response {response:g}: tell one")
        if response is not None and (wrong := check_response(self.spec, float(response))) is not None:
            raise InputError(f"run {run_id}: {wrong}")
        verb = self.ledger.amend if amend else self.ledger.complete
        return verb(
            run_id,
            float("nan") if diverged else response,
            cost=self._charge(cost, cost_unit),
            se=se,
            successes=successes,
            trials=trials,
            message=message,
        )

    def fail(
        self, run_id: str, message: str = "", *, cost: float | None = None, cost_unit: str | None = None
    ) -> RunRecord:
        """Records that the program or the machine failed, which says nothing of the design's response."""
        return self.ledger.fail(run_id, cost=self._charge(cost, cost_unit), message=message)

    def _charge(self, cost: float | None, unit: str | None) -> float | None:
        """A cost in the study's unit.  Raises `InputError` for a unit without a cost or without a conversion."""
        if unit is None:
            return cost
        if cost is None:
            raise InputError(f"the unit {unit!r} was told without a cost")
        return cost * self.spec.cost.factor(unit)

    def cancel(self, run_id: str, message: str = "", *, backend: Backend | None = None) -> RunRecord:
        """Gives a run up.  A run that a backend works on needs that `backend`: its budget is freed when it is dead."""
        run = self.ledger.run(run_id)
        if not run.handle or STATE_RULES[run.state].final:
            return self.ledger.cancel(run_id, message=message)
        if backend is None:
            raise InputError(f"run {run_id} is at work as {run.handle!r}: give the backend that runs it")
        backend.cancel(run.handle)
        return run

    def attach(
        self,
        axes: Mapping[str, float],
        response: float | None,
        *,
        domain: str | None = None,
        seed: int = 0,
        cost: float | None = None,
        se: float | None = None,
        successes: float | None = None,
        trials: float | None = None,
        source: str = "",
    ) -> Attached:
        """Records a run made elsewhere, which the budget did not pay; a response of NaN means that it diverged."""
        domain = self._domain(domain)
        point = dict(zip(self.spec.axis_names, self.spec.point(axes).tolist(), strict=True))
        if response is not None and (wrong := check_response(self.spec, float(response))) is not None:
            raise InputError(wrong)
        attachment = Attachment(
            design=Design(domain=domain, axes=point, seed=seed),
            response=response,
            cost=self.spec.cost_of(domain, point) if cost is None else cost,
            se=se,
            successes=successes,
            trials=trials,
            source=source,
        )
        return self.ledger.attach(attachment)

    def attach_file(
        self,
        path: str | Path,
        *,
        domain: str | None = None,
        where: Mapping[str, Any] | None = None,
        columns: Mapping[str, str] | None = None,
    ) -> Imported:
        """Records the finished runs of a CSV, Parquet or JSON-lines file, all or none; see `planner.importing`."""
        from planner.importing import import_rows

        rows = import_rows(self.spec, path, domain=domain, where=where, columns=columns)
        attached = self.ledger.attach_many(Attachment(**row) for row in rows)
        known = [each.warning for each in attached if each.warning is not None]
        return Imported(attached=attached, warnings=[*rows.warnings, *known])

    def run(self, backend: Backend, *, watch: Watcher | None = None, **limits: Any) -> Ended:
        """Buys and runs until there is a reason to stop; `limits` are those of `planner.loop.run`."""
        from planner import loop
        from planner.trackers.watch import following

        with following(self.spec, self.ledger, self.warnings.append):
            return loop.run(self._workplace(backend, self.policy, watch), **limits)

    def cancel_runs(
        self, backend: Backend, run_ids: Collection[str] | None = None, *, patience: float = 60.0
    ) -> list[RunRecord]:
        """Ends runs, by default all that `run` started, and waits for their death; see `planner.ending`."""
        from planner.ending import cancel_runs

        nothing_is_chosen = cast(Policy, None)  # and the policy, with the numerical side, is not imported
        return cancel_runs(self._workplace(backend, nothing_is_chosen), run_ids, patience=patience)

    def _workplace(self, backend: Backend, policy: Policy, watch: Watcher | None = None) -> Workplace:
        from planner import loop

        return loop.Workplace(
            spec=self.spec,
            ledger=self.ledger,
            backend=backend,
            policy=policy,
            folder=self.runs_folder,
            watch=watch or (lambda news: None),
        )

    def track(self, *, patience: float = 60.0) -> list[dict[str, Any]]:
        """Brings the trackers up to date and says how each stands; gives up after `patience` seconds."""
        from planner.trackers.watch import following, standing

        if not self.spec.trackers:
            raise InputError(f"study {self.spec.name!r} has no trackers: add [[trackers]] to its file")
        with following(self.spec, self.ledger, self.warnings.append, patience=patience):
            pass
        return standing(self.spec, self.state.num_events)

    # ---- questions ----

    def status(self) -> dict[str, Any]:
        """Budget, runs by state and by domain, the best run so far: plain values only."""
        from planner.trackers.watch import standing

        state = self.state
        document = summary.status(self.spec, state, store=self.ledger.url, warnings=self.warnings)
        return {**document, "trackers": standing(self.spec, state.num_events)}

    def log(self, after: int = 0) -> list[dict[str, Any]]:
        """The events with a number above `after`, in order."""
        return [asdict(event) for event in self.ledger.events(after)]

    def curves(self, run_id: str | None = None) -> pd.DataFrame:
        """What runs reported on their way, by run, attempt and step; see `planner.curves.columns`."""
        import pandas as pd

        return pd.DataFrame(self.curve_columns(run_id))

    def curve_columns(self, run_id: str | None = None) -> dict[str, list[Any]]:
        """`curves` as plain columns.  Raises `UnknownRun`."""
        runs = self.state.runs.values() if run_id is None else [self.ledger.run(run_id)]
        return curves.columns(runs, self.spec.axis_names)

    def predict(self, points: Any, domain: str | None = None) -> pd.DataFrame:
        """The response at points: a mapping of axis values, a sequence of such, or a DataFrame.

        Columns: the axes, domain, median, q05, q25, q75 and q95 of the mean response, `pred_...` of a new run (noise
        included), distance to the nearest run in standard deviations of the designs, flags.  Without a domain, a
        point is answered for every domain.
        """
        import pandas as pd

        return pd.DataFrame(self.prediction(points, domain)["columns"])

    def prediction(self, points: Any, domain: str | None = None) -> dict[str, Any]:
        """`predict` as plain values: "columns", the weights of the "laws", and "notes" on the posterior."""
        from planner import answers, cache

        index, x = answers.read_points(self.spec, points, domain)
        return cache.remembered(
            self.spec,
            self._outcomes(),
            "prediction",
            {"domains": index.tolist(), "x": x.tolist()},
            compute=lambda: answers.prediction(self.spec, self.posterior(), index, x),
            to_arrays=cache.values_to_arrays,
            from_arrays=cache.values_from_arrays,
            warnings=self.warnings,
        )

    def recipe(self, budget: float, domain: str | None = None, *, versus: Any = ()) -> RecipeAnswer:
        """What to buy for one run of at most `budget`, with its uncertainty; see `planner.advice.RecipeAnswer`.

        `versus` holds other allocations, see `planner.questions.plans`: how much less the recipe needs than each.

        Raises `NothingAffordable` for a budget below every point, and `UnreliableFit` when no optimum can be trusted.
        """
        from planner import advice, cache
        from planner.questions import plans

        budget, name = _positive(budget), self._domain(domain)
        others = plans.read_plans(self.spec, versus)
        question = {"budget": budget, "domain": name, "versus": [asdict(plan) for plan in others]}
        return cache.remembered(
            self.spec,
            self._outcomes(),
            "recipe",
            question,
            compute=lambda: advice.recipe_answer(
                self.spec, self.posterior(), budget, name, versus=others, failures=self._failures()
            ),
            to_arrays=advice.RecipeAnswer.to_arrays,
            from_arrays=advice.RecipeAnswer.from_arrays,
            warnings=self.warnings,
        )

    def sources(self, domain: str | None = None) -> pd.DataFrame:
        """What each bought source is worth, one row each: see `planner.sources.source_table`; empty without sources."""
        import pandas as pd

        return pd.DataFrame(self.source_values(domain))

    def source_values(self, domain: str | None = None) -> list[dict[str, Any]]:
        """`sources` as plain values."""
        from planner import cache, sources

        name = self._domain(domain)
        return cache.remembered(
            self.spec,
            self._outcomes(),
            "sources",
            {"domain": name},
            compute=lambda: {"sources": sources.source_table(self.spec, self.posterior(), name)},
            to_arrays=cache.values_to_arrays,
            from_arrays=cache.values_from_arrays,
            warnings=self.warnings,
        )["sources"]

    def sweep(self, low: float, high: float, points: int = 9, domain: str | None = None) -> Answer:
        """The recipe at budgets from `low` to `high`: tables "axes" and "responses"."""
        from planner.questions import sweep

        return self._asked(
            "sweep", [domain], lambda each: sweep.sweep_answer(each[0], low, high, points), [low, high, points]
        )

    def need(self, response: float, *, probability: float = 0.9, domain: str | None = None) -> Answer:
        """The smallest budget whose recipe reaches `response` with `probability`, as "budget"; None if none does."""
        from planner.questions import need

        return self._asked(
            "need", [domain], lambda each: need.need_answer(each[0], response, probability), [response, probability]
        )

    def value(
        self, budget: float | None = None, *, at: Sequence[Mapping[str, float]] = (), domain: str | None = None
    ) -> Answer:
        """What more is worth: tables "axes" (of the recipe of `budget`) and "experiments" (the best and those `at`)."""
        from planner.questions import value

        cost, given = self._budget(budget), [dict(point) for point in at]
        return self._asked(
            "value",
            [domain],
            lambda each: value.value_answer(each[0], cost, self.state, given),
            [cost, given, self.state.num_events],
        )

    def compare(
        self, budget: float | None = None, *, start: Mapping[str, float] | None = None, domain: str | None = None
    ) -> Answer:
        """Which axis alone to raise to `budget`, and which domain does best: tables "axes", "pairs" and "domains"."""
        from planner.questions import compare

        cost, point = self._budget(budget), None if start is None else self.spec.point(start)
        return self._asked(
            "compare",
            [domain] if domain is not None else self.spec.domain_names,
            lambda each: compare.compare_answer(each, cost, point),
            [cost, dict(start or {})],
        )

    def sensitivity(
        self, budget: float | None = None, *, change: float = 0.5, scale: float = 32.0, domain: str | None = None
    ) -> Answer:
        """How the recipe moves when each cost coefficient is lowered and raised: table "recipes"."""
        from planner.questions import sensitivity

        cost = self._budget(budget)
        return self._asked(
            "sensitivity",
            [domain],
            lambda each: sensitivity.sensitivity_answer(each[0], cost, change, scale),
            [cost, change, scale],
        )

    def _asked(
        self,
        kind: str,
        domains: Sequence[str | None],
        compute: Callable[[list[Setting]], Answer],
        question: Sequence[Any],
    ) -> Answer:
        """The answer of `compute` for some domains, kept beside the study, and whether it is to be trusted."""
        from planner import cache
        from planner.questions import trust
        from planner.questions.answer import Answer
        from planner.questions.setting import make_setting

        names = [self._domain(domain) for domain in domains]

        def answer() -> Answer:
            settings = [make_setting(self.spec, self.posterior(), name) for name in names]
            return trust.judged(compute(settings), self._failures(), settings[0].posterior)

        return cache.remembered(
            self.spec,
            self._outcomes(),
            kind,
            {"domains": names, "question": list(question)},
            compute=answer,
            to_arrays=Answer.to_arrays,
            from_arrays=Answer.from_arrays,
            warnings=self.warnings,
        )

    def _failures(self) -> list[str]:
        from planner.questions import trust

        return trust.failures(self.spec, self._outcomes(), self.posterior())

    def _budget(self, budget: float | None) -> float:
        """The given budget, else the first of a recipe target, else the study's."""
        wanted = [b for target in self.spec.targets if target.kind == "recipe" for b in target.budgets]
        return _positive(budget if budget is not None else [*wanted, self.spec.budget.total][0])

    def rollouts(
        self, budgets: Sequence[float], domain: str | None = None, *, batch: float | None = None
    ) -> list[dict[str, Any]]:
        """How a sampling budget is split into rollouts, problems and updates: see `planner.rollouts.rollout_table`."""
        from planner import rollouts

        return rollouts.rollout_table(self.spec, self.posterior(), self._domain(domain), budgets, batch=batch)

    def diagnose(self, domain: str | None = None, *, law: str = "sum_of_powers") -> dict[str, Any]:
        """What the exponents of a domain hang on, as plain values: see `planner.diagnosis.diagnose`."""
        from planner import diagnosis

        return diagnosis.diagnose(self.spec, self._outcomes(), self._domain(domain), law=law)

    def audit(self) -> Audit:
        """Whether the posterior is to be trusted, and why; see `planner.audit.Audit` and `planner.verdict`."""
        from planner import audit, cache

        outcomes = self._outcomes()
        return cache.remembered(
            self.spec,
            outcomes,
            "audit",
            {},
            compute=lambda: audit.audit_study(self.spec, outcomes, self.posterior(), self.recipe),
            to_arrays=audit.Audit.to_arrays,
            from_arrays=audit.Audit.from_arrays,
            warnings=self.warnings,
        )

    def posterior(self, *, engine: str = "refined", num_draws: int = 1000) -> StudyPosterior:
        """What the finished runs say, as draws; kept beside the study until another run ends."""
        from planner import cache, candidates, inference

        outcomes = self._outcomes()
        key = (self.state.num_events, engine, num_draws)
        if key in self._posteriors:
            return self._posteriors[key]
        posterior = cache.remembered(
            self.spec,
            outcomes,
            "posterior",
            {"engine": engine, "num_draws": num_draws},
            compute=lambda: inference.fit_study(
                self.spec,
                outcomes,
                candidates.all_designs(self.spec),
                candidates.target_points(self.spec),
                engine=engine,
                num_draws=num_draws,
                seed=self.spec.seed,
                look_ahead=True,
            ),
            to_arrays=lambda fitted: fitted.to_arrays(),
            from_arrays=lambda arrays: inference.from_arrays(self.spec, arrays),
            warnings=self.warnings,
        )
        self._posteriors = {key: posterior}
        return posterior

    def _outcomes(self) -> list[Outcome]:
        """What the numerical side is told; says once how many runs the study file does not describe any more."""
        state = self.state
        known = readable(self.spec, state)
        left_out = len(state.runs) - len(known.runs)
        if left_out:
            warning = f"W:unreadable_runs {left_out} runs have a domain or axes that the study file does not; left out"
            self.warnings += [warning] if warning not in self.warnings else []
        return known.outcomes()

    @property
    def runs_folder(self) -> Path:
        """Where the job folders of the runs are, under their `run_id`."""
        return self.spec.folder / f"{self._stem}.runs"

    @property
    def _stem(self) -> str:
        return self.spec.path.stem if self.spec.path is not None else self.spec.name

    def _domain(self, domain: str | None) -> str:
        """A known domain; the only one where none is named."""
        names = self.spec.domain_names
        if domain is None and len(names) > 1:
            raise InputError(f"the study has several domains, name one: {', '.join(names)}")
        return names[self.spec.domain_index(domain)] if domain is not None else names[0]


def _positive(budget: float) -> float:
    if not (math.isfinite(budget) and budget > 0):
        raise InputError(f"the budget of a recipe is {budget!r}: it must be a finite number greater than 0")
    return float(budget)


def _store_of(spec: StudySpec) -> str | Path:
    """The address of the ledger; files are looked for from the study's folder."""
    url = spec.store.url
    if url is None:
        return ":memory:" if spec.path is None else spec.path.with_suffix(".sqlite")
    if "://" not in url:
        return spec.resolve(url)
    scheme, _, file = url.partition(":///")
    return spec.resolve(file) if scheme == "sqlite" and file not in ("", ":memory:") else url
