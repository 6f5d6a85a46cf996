"""The command line: one document on standard output, exit codes, messages, speed of what must be fast."""

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from planner import cli
from planner.commands import shared
from planner.errors import StoreBusy, UnreliableFit
from planner.study import Study
from tests.worlds import STUDY, Cheapest, write_study

ROOT = Path(__file__).resolve().parents[1]
HEAVY = ("jax", "jaxlib", "numpyro", "optax", "pandas", "pyarrow", "scipy", "matplotlib")


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        """The one document on standard output, read as strictly as any other reader would."""

        def refuse(name: str) -> None:
            raise AssertionError(f"bare {name} in JSON")

        return json.loads(self.out, parse_constant=refuse)


Command = Callable[..., Done]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Command:
    """Runs `planner` in this process, in a temporary folder, with the cheapest-first policy."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(shared, "prepare_numerics", lambda **options: None)
    monkeypatch.setattr(Study, "policy", Cheapest())

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["planner", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return Done(int(ended.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture
def toy(tmp_path: Path) -> Path:
    backend = '\n[backend]\nkind = "simulator"\nroles = { N = "parameters", D = "tokens" }\n'
    return write_study(tmp_path, STUDY + backend)


def _planner(*arguments: object, cwd: Path, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs `planner` as a user does."""
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)} | options.pop("env", {})
    line = [sys.executable, "-m", "planner", *map(str, arguments)]
    return subprocess.run(line, cwd=cwd, env=environment, capture_output=True, text=True, timeout=600, **options)


# ---- the life of a study --------------------------------------------------------------------------------------------


def test_init_writes_a_study_that_checks(command: Command, tmp_path: Path) -> None:
    done = command("init", "mine", "--template", "agentic-data")
    assert done.code == 0 and "planner check mine.toml" in done.out
    text = (tmp_path / "mine.toml").read_text()
    assert command("init", "mine").code == 2 and (tmp_path / "mine.toml").read_text() == text
    done = command("check", "mine.toml", "--json")
    assert done.code == 0 and done.document["study"] == "mine" and done.document["problem"] is None
    assert {law["name"] for law in done.document["laws"]} and all(law["why"] for law in done.document["laws"])


def test_check_shows_designs_prices_and_what_the_budget_buys(command: Command, toy: Path) -> None:
    document = command("check", toy, "--json").document
    assert (document["num_designs"], document["num_affordable"]) == (8, 8)
    assert document["cost"] == {"unit": "hour", "lowest": 1.0, "median": 3.0, "highest": 8.0}
    assert document["budget_buys"] == {"cheapest": 100, "median": 33, "dearest": 12}
    shown = command("check", toy)
    assert shown.code == 0 and "1 to 8 hour" in shown.out and "web, code" in shown.out


def test_check_warns_of_what_it_assumes(command: Command, tmp_path: Path) -> None:
    text = STUDY.replace("lower = 0.0\n", "").replace('name = "N"', 'name = "N"\nrole = "size"')
    done = command("check", write_study(tmp_path, text), "--json")
    assert done.code == 0
    codes = {warning.partition(" ")[0] for warning in done.document["warnings"]}
    assert {"W:unknown_role", "W:assumed_bound", "W:no_target"} <= codes
    assert all(f"note: {warning}" in done.err for warning in done.document["warnings"])


def test_check_ends_with_3_when_nothing_is_affordable(command: Command, tmp_path: Path) -> None:
    done = command("check", write_study(tmp_path, total="0.5"), "--json")
    assert done.code == 3 and "is 1" in done.document["problem"] and "nothing can be bought" in done.err


def test_ask_tell_status_log(command: Command, toy: Path) -> None:
    runs = command("ask", toy, "-n", 2, "--json").document["runs"]
    assert [run["predicted_cost"] for run in runs] == [1.0, 1.0]
    told = command("tell", toy, runs[0]["run_id"], "--response", "2.5", "--cost", "0.5")
    assert told.code == 0 and "completed" in told.out
    assert command("tell", toy, runs[0]["run_id"], "--response", "2.5", "--cost", "0.5").code == 0
    conflict = command("tell", toy, runs[0]["run_id"], "--response", "3")
    assert conflict.code == 2 and "--amend" in conflict.err and "Traceback" not in conflict.err
    assert command("tell", toy, runs[0]["run_id"], "--response", "3", "--amend").code == 0
    assert command("tell", toy, runs[1]["run_id"], "--failed", "no disk", "--cost", "0").code == 0
    status = command("status", toy, "--json").document
    assert status["runs"] == {"completed": 1, "failed": 1} and status["best"]["response"] == 3.0
    assert status["budget"]["spent"] == 0.5 and status["budget"]["remaining"] == 99.5
    assert "loss 3" in command("status", toy).out
    events = command("log", toy, "--json").document["events"]
    assert [event["kind"] for event in events] == [
        *("study_opened", "proposed", "proposed", "completed", "amended", "failed")
    ]
    assert len(command("log", toy, "--after", 4).out.splitlines()) == 3  # header and two events


@pytest.mark.parametrize("how", [("--diverged",), ("--response", "nan"), ("--response", "inf")])
def test_tell_takes_a_divergence(command: Command, toy: Path, how: tuple[str, ...]) -> None:
    run_id = command("ask", toy, "--json").document["runs"][0]["run_id"]
    done = command("tell", toy, run_id, *how, "--json")
    assert done.code == 0 and done.document["run"]["state"] == "diverged" and done.document["run"]["response"] is None


def test_tell_refuses_a_failure_with_a_result(command: Command, toy: Path) -> None:
    run_id = command("ask", toy, "--json").document["runs"][0]["run_id"]
    assert command("tell", toy, run_id, "--failed", "x", "--response", "1").code == 2
    unknown = command("tell", toy, run_id[:-2], "--response", "1")
    assert unknown.code == 2 and run_id in unknown.err


def test_import_attaches_rows(command: Command, toy: Path, tmp_path: Path) -> None:
    (tmp_path / "old.csv").write_text("task,params,D,loss\nweb,1,4,2.5\ncode,2,4,2\n")
    arguments = ("--column", "N=params", "--column", "domain=task", "--where", "task=web")
    done = command("import", toy, "old.csv", *arguments, "--json")
    assert done.code == 0 and (done.document["num_rows"], done.document["num_runs"]) == (1, 1)
    assert command("status", toy, "--json").document["attached"] == 1
    bad = command("import", toy, "missing.csv", "--json")
    assert bad.code == 2 and bad.document["error"]["problems"][0]["file"] == "missing.csv"


def test_run_shows_what_it_does_and_why(command: Command, toy: Path) -> None:
    done = command("run", toy, "--max-runs", 3, "--json")
    assert done.code == 0 and done.document["stop"]["reason"] == "max_runs" and done.document["bought"] == 3
    assert done.document["runs"] == {"completed": 3}
    assert done.err.count("bought ") == 3 and done.err.count("it is cheap") == 3 and done.err.count("ended ") == 3
    assert "loss" in done.err and "predicted 1" in done.err
    done = command("run", toy)
    assert done.code == 0 and "pool_exhausted" in done.out and "8 completed" in done.out
    assert command("run", toy).code == 3


def test_run_reports_a_trainer_that_fails(command: Command, tmp_path: Path) -> None:
    text = STUDY + '\n[backend]\nkind = "local"\nslots = 1\ncommand = ["false"]\n'
    done = command("run", write_study(tmp_path, text))
    assert done.code == 2 and "runs in a row failed" in done.err and "exit code 1" in done.err


# ---- errors ---------------------------------------------------------------------------------------------------------


def test_a_wrong_study_is_an_error_of_the_user_with_every_problem(command: Command, tmp_path: Path) -> None:
    text = STUDY.replace('unit = "hour"', 'unitt = "hour"').replace("coefficient = 1", "coefficient = 0")
    path = write_study(tmp_path, text)
    done = command("status", path, "--json")
    assert done.code == 2 and done.document["error"]["kind"] == "SpecError"
    keys = [problem["key"] for problem in done.document["error"]["problems"]]
    assert keys == ["cost.unitt", "cost.terms[0].coefficient"]
    plain = command("status", path)
    assert plain.code == 2 and plain.out == "" and plain.err.startswith("error: ") and "Traceback" not in plain.err


@pytest.mark.parametrize(
    ("error", "code"), [(StoreBusy("locked"), 5), (UnreliableFit("no fit"), 4), (RuntimeError("oh"), 1)]
)
def test_every_error_has_its_exit_code(
    command: Command, toy: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, code: int
) -> None:
    def fail(*_: Any) -> None:
        raise error

    monkeypatch.setattr(Study, "status", fail)
    done = command("status", toy, "--json")
    assert done.code == code and done.document["error"]["kind"] == type(error).__name__
    assert str(error) in done.err and "Traceback" not in done.err
    assert "Traceback" in command("--debug", "status", toy).err


@pytest.mark.parametrize(
    "arguments", [("status",), ("nonsense",), ("ask", "toy.toml", "-n", "0"), ("recipe", "toy.toml")]
)
def test_wrong_usage_ends_with_2(command: Command, toy: Path, arguments: tuple[str, ...]) -> None:
    done = command(*arguments)
    assert done.code == 2 and done.out == "" and done.err.startswith("error: ")
    assert command(*arguments, "--json").document["error"]["message"]


@pytest.mark.parametrize(
    ("point", "words"), [("N=1", "'D'"), ("N=1,D", "NAME=VALUE"), ("N=1,D=x", "not a number"), ("N=1,N=2", "twice")]
)
def test_predict_names_what_is_wrong(command: Command, toy: Path, point: str, words: str) -> None:
    done = command("predict", toy, "--at", point)
    assert done.code == 2 and words in done.err


def test_a_damaged_store_ends_with_5(command: Command, toy: Path) -> None:
    command("ask", toy)
    store = toy.with_suffix(".sqlite")
    store.write_bytes(b"not a database" * 100)
    done = command("status", toy, "--json")
    assert done.code == 5 and done.document["error"]["kind"] == "StoreDamaged"


# ---- as a process ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [("--help",), ("status", "toy.toml"), ("log", "toy.toml"), ("tell", "toy.toml", "r0", "--response", "1")],
)
def test_what_must_be_fast_loads_nothing_heavy(toy: Path, arguments: tuple[str, ...]) -> None:
    script = (
        "import sys, atexit, planner.cli\n"
        f"sys.argv = ['planner', *{list(arguments)!r}]\n"
        "names = lambda: {name.partition('.')[0] for name in sys.modules}\n"
        "atexit.register(lambda: print('loaded', *sorted(names()), file=sys.stderr))\n"
        "planner.cli.main()\n"
    )
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=toy.parent, env=environment, capture_output=True, text=True, timeout=60
    )
    loaded = set(done.stderr.splitlines()[-1].split()[1:])
    assert "planner" in loaded and not loaded & set(HEAVY)


@pytest.mark.parametrize(("arguments", "limit"), [(("--help",), 0.5), (("status", "toy.toml"), 1.0)])
def test_help_and_status_answer_at_once(toy: Path, arguments: tuple[str, ...], limit: float) -> None:
    seconds = []
    for _ in range(3):
        before = os.times()
        assert _planner(*arguments, cwd=toy.parent).returncode == 0
        after = os.times()
        # Processor time of the command: wall time on a busy machine measures the others.
        seconds.append(after.children_user + after.children_system - before.children_user - before.children_system)
    assert min(seconds) < limit


def test_a_reader_that_stops_reading_is_no_error(toy: Path) -> None:
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    line = f"{sys.executable} -m planner.cli log toy.toml | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", line], cwd=toy.parent, env=environment, capture_output=True, text=True)
    assert done.returncode == 0 and done.stderr == ""


@pytest.mark.slow
def test_interrupted_it_says_how_to_go_on_and_goes_on(tmp_path: Path) -> None:
    trainer = "import json, os, time\ntime.sleep(1.5)\nwith open(os.environ['PLANNER_RESULT'], 'w') as file:\n"
    (tmp_path / "trainer.py").write_text(trainer + "    json.dump({'response': 2.0}, file)\n")
    command = [sys.executable, str(tmp_path / "trainer.py")]
    text = STUDY + f'\n[backend]\nkind = "local"\nslots = 2\ncommand = {json.dumps(command)}\n'
    path = write_study(tmp_path, text)
    environment = dict(os.environ) | {"PYTHONPATH": str(ROOT)}
    line = [sys.executable, "-m", "planner.cli", "run", str(path), "--max-runs", "2"]
    with subprocess.Popen(line, cwd=tmp_path, env=environment, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 120
        while not list(tmp_path.glob("toy.runs/*/process.json")):
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        error = process.communicate(timeout=60)[1]
    assert process.returncode == 130 and f"planner run {path}" in error and "Traceback" not in error
    with Study.open(path) as study:
        pending = [run.run_id for run in study.state.pending()]
    assert pending
    done = _planner("run", path, "--max-runs", "1", "--json", cwd=tmp_path)
    document = json.loads(done.stdout)
    assert done.returncode == 0 and document["runs"] == {"completed": len(pending) + 1}


@pytest.mark.slow
@pytest.mark.parametrize("template", ["language-model", "agentic-data", "rl-sampling", "tool-environments"])
def test_a_study_from_beginning_to_end(tmp_path: Path, template: str) -> None:
    def call(*arguments: object) -> Any:
        done = _planner(*arguments, "--json", cwd=tmp_path)
        assert done.returncode == 0, done.stderr
        return Done(done.returncode, done.stdout, done.stderr).document

    assert _planner("init", "mine", "--template", template, cwd=tmp_path).returncode == 0
    checked = call("check", "mine.toml")
    axes = {axis["name"]: axis["high"] for axis in checked["axes"]}
    total, domain = checked["budget"]["total"], checked["domains"][0]
    point = ",".join(f"{name}={value:g}" for name, value in axes.items())
    before = call("predict", "mine.toml", "--at", point)
    assert {flag for row in before["points"] for flag in row["flags"]} == {"prior only"}
    ended = call("run", "mine.toml", "--max-runs", 10)
    assert ended["bought"] == 10 and 0 < ended["budget"]["spent"] <= total
    after = call("predict", "mine.toml", "--at", point)
    for old, new in zip(before["points"], after["points"], strict=True):
        assert new["q05"] <= new["q25"] <= new["median"] <= new["q75"] <= new["q95"]
        assert new["q95"] - new["q05"] < old["q95"] - old["q05"]
    plan = f"{list(axes)[-1]}=*"
    question = ("recipe", "mine.toml", "--budget", total, "--domain", domain, "--versus", plan)
    recipe = call(*question)
    answer = recipe["recipes"][0]
    assert answer["domain"] == domain and 0 < answer["joint"]["cost"] <= total * (1 + 1e-6)
    assert all(math.isfinite(row["median"]) and row["q05"] <= row["median"] <= row["q95"] for row in answer["axes"])
    assert 1 <= answer["versus"][0]["efficiency"]["q05"] <= answer["versus"][0]["efficiency"]["q95"]
    assert call(*question) == recipe
    cheap = _planner("recipe", "mine.toml", "--budget", "1e-9", "--json", cwd=tmp_path)
    assert cheap.returncode == 3 and json.loads(cheap.stdout)["error"]["kind"] == "NothingAffordable"
