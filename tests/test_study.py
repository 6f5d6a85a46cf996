"""The facade: what it reserves, records, attaches, remembers and answers."""

import math
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pandas as pd
import pytest

import planner
from planner import cache
from planner.errors import ConflictingResult, InputError, NothingAffordable, SpecError, UnknownRun
from planner.records import Proposal, RunState
from planner.report import text
from planner.study import Study
from tests.worlds import STUDY, Cheapest, Cluster, FakeBackend, open_toy, write_study


@pytest.fixture
def study(tmp_path: Path) -> Iterator[Study]:
    with open_toy(write_study(tmp_path)) as study:
        yield study


# ---- buying and telling ---------------------------------------------------------------------------------------------


def test_ask_reserves_the_predicted_cost(study: Study) -> None:
    runs = study.ask(3)
    assert [run.predicted_cost for run in runs] == [1.0, 1.0, 2.0]
    assert {run.state for run in runs} == {RunState.PROPOSED}
    assert (study.state.reserved, study.state.spent, study.state.remaining) == (4.0, 0.0, 96.0)
    assert runs[0].reason["why"] == "it is cheap"


def test_ask_under_a_name_is_answered_once(study: Study) -> None:
    first = study.ask(2, request="monday")
    assert [run.run_id for run in study.ask(2, request="monday")] == [run.run_id for run in first]
    assert {run.run_id for run in study.ask(2, request="tuesday")}.isdisjoint(run.run_id for run in first)
    assert len(study.state.runs) == 4


def test_two_planners_that_choose_the_same_get_different_runs(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    with open_toy(path) as one, open_toy(path) as other:

        class Late(Cheapest):
            """Its proposal is made before the other planner buys."""

            def propose(self, *arguments: Any) -> Proposal:
                proposal = super().propose(*arguments)
                if not one.state.runs:
                    one.ask(2)
                return proposal

        other.policy = Late()  # type: ignore[misc]
        granted = other.ask(2)
        assert len(granted) == 2 and len(one.state.runs) == 4


@pytest.mark.parametrize(
    ("total", "words"),
    [("0.5", "smallest budget.total that buys one more run is 1"), ("1.5", "remains")],
)
def test_ask_says_what_would_help_when_nothing_is_affordable(tmp_path: Path, total: str, words: str) -> None:
    with open_toy(write_study(tmp_path, total=total)) as study:
        if total == "1.5":
            study.ask(1)
        with pytest.raises(NothingAffordable, match="nothing can be bought") as caught:
            study.ask(1)
        assert words in str(caught.value) and caught.value.exit_code == 3


def test_ask_passes_on_why_the_policy_stops(study: Study) -> None:
    study.policy = SimpleNamespace(propose=lambda *_: Proposal(stop="nothing would teach anything"))  # type: ignore[misc]
    with pytest.raises(NothingAffordable, match="nothing would teach anything"):
        study.ask()


def test_tell_twice_is_told_once(study: Study) -> None:
    run = study.ask()[0]
    told = study.tell(run.run_id, response=2.5, cost=0.75)
    events = study.state.num_events
    assert study.tell(run.run_id, response=2.5, cost=0.75) == told and study.state.num_events == events
    assert (told.state, told.response, study.state.spent) == (RunState.COMPLETED, 2.5, 0.75)
    with pytest.raises(ConflictingResult, match="--amend"):
        study.tell(run.run_id, response=2.6)
    assert study.tell(run.run_id, response=2.6, amend=True).response == 2.6


@pytest.mark.parametrize("how", [{"response": math.nan}, {"response": math.inf}, {"diverged": True}])
def test_a_diverged_run_has_a_cost_and_no_response(study: Study, how: dict[str, Any]) -> None:
    run = study.tell(study.ask()[0].run_id, cost=0.5, **how)
    assert (run.state, run.response, run.cost) == (RunState.DIVERGED, None, 0.5)
    assert [outcome.response for outcome in study.state.outcomes()] == [None]


def test_tell_refuses_what_cannot_be(study: Study) -> None:
    run_id = study.ask()[0].run_id
    with pytest.raises(InputError, match="below lower"):
        study.tell(run_id, response=-1.0)
    with pytest.raises(InputError, match="tell one"):
        study.tell(run_id, response=1.0, diverged=True)
    with pytest.raises(InputError, match="no response"):
        study.tell(run_id)
    with pytest.raises(UnknownRun, match=run_id):
        study.tell(run_id[:-1], response=1.0)
    assert study.state.runs[run_id].state is RunState.PROPOSED


def test_fail_and_cancel_are_idempotent(study: Study) -> None:
    failed, cancelled = study.ask(2)
    for _ in range(2):
        assert study.fail(failed.run_id, "no disk", cost=0.25).state is RunState.FAILED
        assert study.cancel(cancelled.run_id).state is RunState.CANCELLED
    assert (study.state.spent, study.state.reserved) == (0.25, 0.0)


def test_a_run_at_work_is_cancelled_by_its_backend(study: Study) -> None:
    backend = FakeBackend(Cluster(), slots=1)
    study.run(backend, max_seconds=1.5, clock=iter(range(9)).__next__)
    run = study.state.pending()[0]
    with pytest.raises(InputError, match="give the backend"):
        study.cancel(run.run_id)
    study.cancel(run.run_id, backend=backend)
    assert backend.cancelled == [run.handle]
    assert study.state.reserved == run.predicted_cost  # until the backend says that it is dead


def test_attach_costs_nothing_and_counts_once(study: Study) -> None:
    first = study.attach({"N": 3.0, "D": 5.0}, 2.0, domain="web")
    again = study.attach({"D": 5.0, "N": 3.0}, 2.0, domain="web")
    assert first.warning is None and again.warning is not None and "one observation" in again.warning
    replicate = study.attach({"N": 3.0, "D": 5.0}, 2.1, domain="web")
    assert replicate.warning is not None and "replicate" in replicate.warning
    assert len(study.state.outcomes()) == 2 and study.state.spent == 0.0
    assert study.state.outcomes()[0].cost == 15.0
    with pytest.raises(InputError, match="several domains"):
        study.attach({"N": 3.0, "D": 5.0}, 2.0)


def test_import_attaches_rows_once(study: Study, tmp_path: Path) -> None:
    table = tmp_path / "old.csv"
    table.write_text("domain,N,D,loss,cost\nweb,1,4,2.5,4\ncode,2,4,NaN,8\nweb,2,1,2.75,\n")
    done = study.attach_file(table)
    assert [each.run.response for each in done.attached] == [2.5, None, 2.75]
    assert [each.run.cost for each in done.attached] == [4.0, 8.0, 2.0]
    study.attach_file(table)
    assert len(study.state.runs) == 3 and study.state.spent == 0.0
    # An attached run is a design that need not be bought.
    assert all(run.design.axes != {"N": 1.0, "D": 4.0} or run.design.domain != "web" for run in study.ask(7))


# ---- opening --------------------------------------------------------------------------------------------------------


def test_a_study_is_opened_without_a_store_for_reading(tmp_path: Path) -> None:
    path = write_study(tmp_path)
    with Study.open(path, read_only=True) as study:
        assert study.status()["runs"] == {} and study.log() == []
    assert [file.name for file in tmp_path.iterdir()] == ["toy.toml"]


def test_a_study_from_dictionaries_lives_in_memory() -> None:
    import tomllib

    with Study.from_spec(tomllib.loads(STUDY)) as study:
        study.policy = Cheapest()  # type: ignore[misc]
        study.tell(study.ask()[0].run_id, response=1.5)
        assert study.status()["best"]["response"] == 1.5


def test_the_store_url_is_read_from_the_folder_of_the_study(tmp_path: Path) -> None:
    text = STUDY + '\n[store]\nurl = "sqlite:///runs/ledger.db"\n'
    (tmp_path / "runs").mkdir()
    with open_toy(write_study(tmp_path, text)) as study:
        study.ask()
    assert (tmp_path / "runs" / "ledger.db").exists()


def test_a_wrong_study_file_names_every_mistake(tmp_path: Path) -> None:
    text = STUDY.replace('name = "loss"', 'name = "loss"\nlinkk = "log"').replace("coefficient = 1", "coefficient = -1")
    with pytest.raises(SpecError) as caught:
        planner.Study.open(write_study(tmp_path, text))
    assert [problem.key for problem in caught.value.problems] == ["response.linkk", "cost.terms[0].coefficient"]


def test_create_never_overwrites(tmp_path: Path) -> None:
    with Study.create(tmp_path / "new", template="rl-sampling") as study:
        assert study.spec.name == "new"
    with pytest.raises(InputError, match="not overwritten"):
        Study.create(tmp_path / "new.toml")
    with pytest.raises(InputError, match="tool-environments"):
        Study.create(tmp_path / "other", template="tools")
    assert [file.name for file in tmp_path.iterdir()] == ["new.toml"]


def test_status_adds_up(study: Study) -> None:
    done, running = study.ask(2)
    study.tell(done.run_id, response=2.0, cost=1.5)
    status = study.status()
    assert status["budget"] == {"unit": "hour", "total": 100.0, "spent": 1.5, "reserved": 1.0, "remaining": 97.5}
    assert status["runs"] == {"proposed": 1, "completed": 1} and status["finished_by_domain"] == {"web": 1, "code": 0}
    assert status["best"]["run_id"] == done.run_id
    assert [run["run_id"] for run in status["pending"]] == [running.run_id]
    assert [event["kind"] for event in study.log()] == ["study_opened", "proposed", "proposed", "completed"]
    assert [event["seq"] for event in study.log(after=2)] == [3, 4]


def test_a_long_status_shows_people_a_part(study: Study) -> None:
    study.ask(1)
    status = study.status()
    lines = text.status(status | {"pending": status["pending"] * 1000})
    assert len(lines) < 40 and lines[-1] == "and 980 more (--json lists all)"
    assert "more" not in text.status(status)[-1]


def test_the_best_run_follows_the_goal(tmp_path: Path) -> None:
    content = STUDY.replace('name = "loss"\nlower = 0.0', 'name = "reward"\ngoal = "maximise"')
    with open_toy(write_study(tmp_path, content)) as study:
        for run, reward in zip(study.ask(2), (0.25, 0.75), strict=True):
            study.tell(run.run_id, response=reward)
        assert study.status()["best"]["response"] == 0.75


def test_runs_that_the_study_file_no_longer_describes_are_left_out_and_said(tmp_path: Path, fits: list[int]) -> None:
    path = write_study(tmp_path)
    with open_toy(path) as study:
        for run in study.ask(4):
            study.tell(run.run_id, response=2.0)
        spent = study.state.spent
        assert {run.design.domain for run in study.state.runs.values()} == {"web", "code"}
    path.write_text(STUDY.replace('name = "code"', 'name = "prose"'))
    with open_toy(path) as study:
        study.posterior()
        assert fits == [2] and any("W:unreadable_runs 2 runs" in warning for warning in study.warnings)
        assert study.state.spent == spent and {run.design.domain for run in study.ask(2)} == {"prose"}


# ---- answers --------------------------------------------------------------------------------------------------------


class FakePosterior:
    """Draws that are known: mean = 100 domain + N + draw, draws 0, 0.01, ... 1; a new run adds half a draw."""

    law_names = ("straight_line",)
    weights = np.ones(1)
    notes = ("few runs",)
    runs = np.array([[0.0, 0.0, 0.0]])

    def __init__(self, arrays: Any = None) -> None:
        self.arrays = arrays

    def mean_draws(self, domain: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.linspace(0.0, 1.0, 101)[:, None] + 100.0 * domain + x[:, 0]

    def response_draws(self, domain: np.ndarray, x: np.ndarray) -> np.ndarray:
        return 1.5 * np.linspace(0.0, 1.0, 101)[:, None] + 100.0 * domain + x[:, 0]

    def distance(self, domain: np.ndarray, x: np.ndarray) -> np.ndarray:
        return np.where(domain == 0, x[:, 1], np.inf)

    def to_arrays(self) -> dict[str, np.ndarray]:
        return {"weights": self.weights}


@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Replaces the engine; holds how many outcomes each fit was given."""
    from planner import inference

    counts: list[int] = []

    def fit_study(spec: Any, outcomes: Any, designs: Any, targets: Any, **options: Any) -> FakePosterior:
        counts.append(len(outcomes))
        return FakePosterior()

    monkeypatch.setattr(inference, "fit_study", fit_study)
    monkeypatch.setattr(inference, "from_arrays", lambda spec, arrays: FakePosterior(arrays))
    return counts


def test_predict_gives_quantiles_distance_and_flags(study: Study, fits: list[int]) -> None:
    table = study.predict([{"N": 2.0, "D": 1.0}, {"N": 4.0, "D": 3.0, "domain": "web"}], domain="web")
    assert list(table.columns) == [
        *("N", "D", "domain", "median", "q05", "q25", "q75", "q95"),
        *("pred_median", "pred_q05", "pred_q25", "pred_q75", "pred_q95", "distance", "flags"),
    ]
    assert table["q05"].tolist() == pytest.approx([2.05, 4.05]) and table["pred_q95"].tolist() == pytest.approx(
        [2 + 1.5 * 0.95, 4 + 1.5 * 0.95]
    )
    assert table["flags"].tolist() == [[], ["far from all runs"]]


def test_predict_answers_for_every_domain_where_none_is_named(study: Study, fits: list[int]) -> None:
    table = study.predict({"N": 2.0, "D": 1.0})
    assert table["domain"].tolist() == ["web", "code"] and table["median"].tolist() == pytest.approx([2.5, 102.5])
    assert table["flags"].tolist() == [[], ["no runs in this domain"]]


def test_predict_reads_data_frames(study: Study, fits: list[int]) -> None:
    frame = pd.DataFrame({"N": [1, 2], "D": [3, 4], "domain": ["code", "web"]})
    assert study.predict(frame)["median"].tolist() == pytest.approx([101.5, 2.5])


@pytest.mark.parametrize(
    ("point", "domain", "words"),
    [
        ({"N": 1.0}, "web", "lacks a value for axis 'D'"),
        ({"N": 1.0, "D": 1.0, "M": 1.0}, "web", "unknown axis 'M'"),
        ({"N": 0.0, "D": 1.0}, "web", "greater than 0"),
        ({"N": "many", "D": 1.0}, "web", "not a number"),
        ({"N": 1.0, "D": 1.0}, "wep", "did you mean 'web'"),
        ([], "web", "no point"),
    ],
)
def test_predict_names_what_is_wrong_with_a_point(study: Study, point: Any, domain: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        study.predict(point, domain)


def test_the_posterior_is_kept_until_a_run_ends(tmp_path: Path, fits: list[int]) -> None:
    path = write_study(tmp_path)
    with open_toy(path) as study:
        study.posterior()
        study.posterior()
        run = study.ask()[0]  # a reservation is no outcome
    with open_toy(path) as study:
        assert isinstance(study.posterior().arrays, dict) and fits == [0]  # type: ignore[attr-defined]
        study.tell(run.run_id, response=2.0)
        study.posterior()
    assert fits == [0, 1]


@pytest.mark.parametrize("damage", [lambda raw: raw[: len(raw) // 2], lambda raw: b"", lambda raw: b"\x80" + raw[1:]])
def test_a_damaged_cache_is_computed_again_and_said(tmp_path: Path, fits: list[int], damage: Any) -> None:
    path = write_study(tmp_path)
    with open_toy(path) as study:
        study.posterior()
    file = next(tmp_path.glob("toy.posterior-*.npz"))
    file.write_bytes(damage(file.read_bytes()))
    with open_toy(path) as study:
        study.posterior()
        assert len(fits) == 2 and any("damaged" in warning for warning in study.warnings)
    with open_toy(path) as study:
        study.posterior()
        assert len(fits) == 2 and not any("damaged" in warning for warning in study.warnings)


def test_the_cache_holds_no_pickles(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="pickle"):
        cache.save(tmp_path / "toy.posterior-1.npz", {"bad": np.array([{"a": 1}], dtype=object)})
    assert not list(tmp_path.iterdir())


def test_old_cache_files_are_removed(tmp_path: Path) -> None:
    for number in range(cache.KEPT + 3):
        cache.save(tmp_path / f"toy.posterior-{number}.npz", {"x": np.zeros(3)})
    (tmp_path / "other.posterior-1.npz").write_bytes(b"")
    assert len(list(tmp_path.glob("toy.posterior-*"))) == cache.KEPT and (tmp_path / "other.posterior-1.npz").exists()


def test_a_recipe_needs_a_budget_and_a_domain(study: Study) -> None:
    for budget in (0.0, -1.0, math.nan, math.inf):
        with pytest.raises(InputError, match="greater than 0"):
            study.recipe(budget, "web")
    with pytest.raises(InputError, match="several domains, name one: web, code"):
        study.recipe(10.0)
