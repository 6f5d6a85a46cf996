"""The examples of the documentation work as they stand there."""

import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends import open_backend
from planner import laws
from planner.laws.base import Context, LawAxis
from planner.spec import parse_study_toml
from planner.study import Study
from tests.worlds import STUDY, Cheapest, write_study

ROOT = Path(__file__).resolve().parents[1]


def _blocks(file: str, language: str) -> list[str]:
    blocks = re.findall(rf"```{language}\n(.*?)```", (ROOT / file).read_text(), flags=re.DOTALL)
    assert blocks
    return blocks


def _example(name: str) -> str:
    """The Python block of the extension guide that begins with this file name."""
    return next(block for block in _blocks("docs/extending.md", "python") if block.startswith(f"# {name}\n"))


def _names(code: str) -> dict[str, Any]:
    names: dict[str, Any] = {}
    exec(compile(code, "example", "exec"), names)
    return names


def test_the_study_of_the_readme_is_valid() -> None:
    spec = parse_study_toml(_blocks("README.md", "toml")[0])
    assert spec.cost_of("default", {"N": 1e8, "D": 2e9}) == 6 * 1e8 * 2e9
    assert not spec.warnings
    backend = parse_study_toml(_blocks("README.md", "toml")[0] + _blocks("README.md", "toml")[1]).backend
    assert backend.kind == "local"


def test_every_command_of_the_readme_exists() -> None:
    from planner import cli

    text = (ROOT / "README.md").read_text()
    used = set(re.findall(r"planner (\w+) (?:pilot\.toml|NAME)", text))
    known = {command.name or command.callback.__name__ for command in cli.app.registered_commands if command.callback}
    assert len(used) >= 8 and used <= known


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(laws, "_REGISTRY", dict(laws._REGISTRY))


def test_the_example_of_a_law_suits_falls_and_has_its_limits(registry: None) -> None:
    _names(_example("saturating.py"))
    law = laws.select([LawAxis(name="n", role=None, is_log=True)], ["saturating"])[0]
    context = Context(np.zeros(1), np.ones(1), np.float64(2.0), np.float64(1.0), np.float64(0.0))  # type: ignore[arg-type]
    parameters = law.parameters(context)
    theta = np.array([parameter.mean for parameter in parameters])
    points = [np.array([x]) for x in (-50.0, 0.0, 50.0)]
    low, middle, high = (float(law.mean(theta, point, context)) for point in points)  # type: ignore[arg-type]
    # At the centre half of the amplitude 2 h is left, so that the response there is the reference.
    assert middle == pytest.approx(2.0, rel=1e-5) and high > 0
    assert low - middle == pytest.approx(middle - high, rel=1e-5)
    assert not any(law.name == "saturating" for law in laws.select([LawAxis(name=n) for n in ("a", "b")]))


def test_the_example_of_a_trainer_runs(tmp_path: Path) -> None:
    (tmp_path / "my_trainer.py").write_text(_example("my_trainer.py"))
    text = STUDY + '\n[backend]\nkind = "local"\nslots = 1\ntrainer = "my_trainer:train"\n'
    path = write_study(tmp_path, text)
    with Study.open(path) as study:
        study.policy = Cheapest()  # type: ignore[misc]
        backend = open_backend("local", study.spec.backend.options, tmp_path)
        ended = study.run(backend, max_runs=1)
    run = next(iter(ended.state.runs.values()))
    assert run.response == pytest.approx(5.0 * 0.9**10) and run.cost == pytest.approx(1.0), run.message


def test_the_examples_of_a_backend_and_a_policy_work_together(tmp_path: Path) -> None:
    backend = _names(_example("instant.py"))["Instant"]({}, tmp_path)
    with Study.open(write_study(tmp_path)) as study:
        study.policy = _names(_example("dearest.py"))["Dearest"]()  # type: ignore[misc]
        ended = study.run(backend, max_runs=2)
    runs = list(ended.state.runs.values())
    assert [run.predicted_cost for run in runs] == [8.0, 8.0] and [run.response for run in runs] == [1.5, 1.5]
    assert "example" not in sys.modules


def test_the_example_of_a_tracker_is_told_of_a_study(tmp_path: Path) -> None:
    block = next(each for each in _blocks("docs/trackers.md", "python") if each.startswith("# my_module.py\n"))
    (tmp_path / "my_module.py").write_text(block)
    path = write_study(tmp_path, STUDY + '\n[[trackers]]\nkind = "my_module:open_runs"\n')
    with Study.open(path) as study:
        run = study.attach({"N": 1, "D": 4}, 2.5, domain="web").run
        assert study.track()[0]["behind"] == 0, study.warnings
    assert (
        (tmp_path / "lines.txt")
        .read_text()
        .startswith(f"{run.run_id} completed {{'N': 1.0, 'D': 4.0}} [{{'response': 2.5")
    )


def test_the_trackers_of_the_documentation_are_valid() -> None:
    spec = parse_study_toml(_blocks("README.md", "toml")[0] + _blocks("docs/trackers.md", "toml")[0])
    assert [tracker.label for tracker in spec.trackers] == ["mlflow", "wandb", "trackio"]
