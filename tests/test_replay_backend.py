"""The replay backend: designs are found by value, and a table that cannot answer says why."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from backends.replay import Replay
from planner.execution import BackendError, Job, Report
from planner.records import Design, RunState

TABLE = """group,N,D,loss,flops,split,sd
web,1e8,2e9,3.2,1.2e18,pool,0.01
code,100000000,2e9,2.2,1.2e18,pool,0.02
web,1e8,2e9,3.3,1.3e18,pool,
web,1e9,2e9,,1.2e19,pool,0.01
web,1e9,2e10,2.5,1.2e20,target,0.01
web,1e8,0,9.9,1e15,pool,0.01
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "runs.csv").write_text(TABLE)
    return tmp_path


def open_replay(folder: Path, **options: Any) -> Replay:
    columns = {"file": "runs.csv", "response": "loss", "cost": "flops", "domain": "group"}
    return Replay({**columns, **options}, folder)


def ask(backend: Replay, domain: str = "web", seed: int = 0, **axes: float) -> Report:
    design = Design(domain=domain, axes=axes, seed=seed)
    return backend.poll([backend.submit(Job(run_id="r1", design=design, folder=Path("r1")))])[0]


def test_a_recorded_run_is_answered_at_once(folder: Path) -> None:
    report = ask(open_replay(folder, se="sd"), "code", N=1e8, D=2e9)
    assert (report.state, report.response, report.cost, report.se) == (RunState.COMPLETED, 2.2, 1.2e18, 0.02)
    assert report.run_id == "r1"


def test_seeds_are_replicates_in_the_order_of_the_file(folder: Path) -> None:
    backend = open_replay(folder)
    assert [ask(backend, seed=seed, N=1e8, D=2e9).response for seed in (0, 1)] == [3.2, 3.3]
    missing = ask(backend, seed=2, N=1e8, D=2e9)
    assert missing.state is RunState.FAILED and "too few replicates" in missing.message and missing.cost == 0.0


@pytest.mark.parametrize(("factor", "state"), [(1 + 5e-10, RunState.COMPLETED), (1 + 1e-8, RunState.FAILED)])
def test_values_are_compared_in_the_log(folder: Path, factor: float, state: RunState) -> None:
    assert ask(open_replay(folder), D=2e9, N=1e8 * factor).state is state


def test_zero_is_a_value_like_any_other(folder: Path) -> None:
    assert ask(open_replay(folder), N=1e8, D=0.0).response == 9.9
    assert ask(open_replay(folder), N=1e8, D=-1.0).state is RunState.FAILED


def test_an_empty_response_is_a_divergence_with_its_cost(folder: Path) -> None:
    report = ask(open_replay(folder), N=1e9, D=2e9)
    assert (report.state, report.response, report.cost) == (RunState.DIVERGED, None, 1.2e19)


def test_an_unknown_design_names_the_nearest_row(folder: Path) -> None:
    report = ask(open_replay(folder), N=1.2e9, D=1.9e10)
    assert report.state is RunState.FAILED
    assert "nearest is row 4 of runs.csv" in report.message and "N=1000000000.0" in report.message
    assert "recorded domains: code, web" in ask(open_replay(folder), "math", N=1e8, D=2e9).message


def test_where_hides_rows(folder: Path) -> None:
    backend = open_replay(folder, where={"split": "pool"})
    assert ask(backend, N=1e9, D=2e10).state is RunState.FAILED
    assert ask(open_replay(folder, where={"split": ["pool", "target"]}), N=1e9, D=2e10).response == 2.5
    with pytest.raises(BackendError, match="no rows where"):
        open_replay(folder, where={"split": "test"})


def test_axes_may_have_columns_of_another_name(folder: Path) -> None:
    backend = open_replay(folder, columns={"parameters": "N", "tokens": "D"})
    assert ask(backend, parameters=1e9, tokens=2e10).response == 2.5
    with pytest.raises(BackendError, match=r"no column 'depth'.*Its columns: group, N"):
        ask(backend, depth=12.0)


@pytest.mark.parametrize("suffix", ["parquet", "jsonl"])
def test_other_formats_answer_the_same(folder: Path, suffix: str) -> None:
    table = pd.read_csv(folder / "runs.csv")
    if suffix == "parquet":
        table.to_parquet(folder / "runs.parquet")
    else:
        table.to_json(folder / "runs.jsonl", orient="records", lines=True)
    backend = open_replay(folder, file=f"runs.{suffix}")
    for domain, n, d in zip(table["group"], table["N"], table["D"], strict=True):
        expected = ask(open_replay(folder), domain, N=n, D=d)
        got = ask(backend, domain, N=n, D=d)
        assert (got.state, got.response, got.cost) == (expected.state, expected.response, expected.cost)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("N,loss\n1e9,2.0,\n1e9,2.1,3\n", "cannot read"),
        ('N,loss\n1e9,"2,5"\n', "row 0: 'loss' is '2,5'"),
        ("N,loss,cost\n1e9,2.5,-3\n", "row 0: 'cost' is -3"),
        ("N,loss\n", "no rows"),
        ("", "cannot read"),
        ("N,los\n1,2\n", "backend.response is 'loss'"),
    ],
)
def test_a_table_that_would_mislead_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "runs.csv").write_text(text)
    with pytest.raises(BackendError, match=words):
        Replay({"file": "runs.csv", "response": "loss"}, tmp_path)


def test_an_axis_that_is_not_a_number_is_refused_by_row(tmp_path: Path) -> None:
    (tmp_path / "runs.csv").write_text("\ufeffN,loss\n1e9,2.0\nlarge,2.1\n", encoding="utf-8")
    with pytest.raises(BackendError, match="row 1: 'N' is 'large'"):
        ask(Replay({"file": "runs.csv", "response": "loss"}, tmp_path), N=1e9)


def test_states_of_recorded_runs_are_replayed(tmp_path: Path) -> None:
    states = ["completed", "", "out_of_memory", "preempted", "Cancelled"]
    table = pd.DataFrame({"N": np.arange(1.0, 6.0), "loss": 2.0, "end": states})
    table.to_csv(tmp_path / "runs.csv", index=False)
    backend = Replay({"file": "runs.csv", "response": "loss", "state": "end"}, tmp_path)
    got = [ask(backend, N=n).state for n in table["N"]]
    assert got == [RunState.COMPLETED, RunState.COMPLETED, "out_of_memory", "preempted", "cancelled"]
    table.assign(end="melted").to_csv(tmp_path / "runs.csv", index=False)
    with pytest.raises(BackendError, match="state 'melted' is unknown"):
        Replay({"file": "runs.csv", "response": "loss", "state": "end"}, tmp_path)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"file": "gone.csv"}, "cannot read"),
        ({"file": "runs.xlsx"}, "must end in"),
        ({"file": None}, "backend.file is missing"),
        ({"respons": "loss"}, "backend.respons is unknown"),
        ({"cost": "usd"}, "backend.cost is 'usd'"),
        ({"where": {"fold": 1}}, "backend.where.fold"),
    ],
)
def test_wrong_options_name_the_key(folder: Path, options: dict[str, Any], words: str) -> None:
    with pytest.raises(BackendError, match=words):
        open_replay(folder, **options)
