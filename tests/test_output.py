"""Standard output holds one document and nothing else, whatever engines and their libraries say."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from planner.commands import shared
from tests.worlds import STUDY, write_study

ROOT = Path(__file__).resolve().parents[1]
# An engine like Ray, which speaks from Python, from elsewhere in the process and once more at its end.
NOISY = """
import atexit, os, sys
from backends.simulator import Simulator
from planner import cli
from planner.commands import shared
from planner.study import Study
from tests.worlds import Cheapest

class Noisy(Simulator):
    def __init__(self, *arguments):
        print("(raylet) started")
        atexit.register(os.write, 1, b"(raylet) late\\n")
        super().__init__(*arguments)

    def poll(self, handles):
        print("(raylet) from Python")
        os.write(1, b"(raylet) from elsewhere\\n")
        return super().poll(handles)

sys.modules["backends.simulator"].Simulator = Noisy
shared.prepare_numerics = lambda **options: None
Study.policy = Cheapest()
cli.main()
"""


@pytest.mark.parametrize("total", [100, 0.5])
def test_what_an_engine_says_does_not_spoil_the_document(tmp_path: Path, total: float) -> None:
    backend = '\n[backend]\nkind = "simulator"\nroles = { N = "parameters", D = "tokens" }\n'
    path = write_study(tmp_path, STUDY + backend, total=str(total))
    command = [sys.executable, "-c", NOISY, "run", str(path), "--json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    document = json.loads(done.stdout)
    assert done.returncode == (0 if total == 100 else 3)
    assert document["bought"] == 8 if total == 100 else "error" in document
    said = {"started", "late"} | ({"from Python", "from elsewhere"} if total == 100 else set())
    assert {line.removeprefix("(raylet) ") for line in done.stderr.splitlines() if "raylet" in line} == said


def test_output_of_a_caller_that_is_no_file_is_put_back(capsys: pytest.CaptureFixture[str]) -> None:
    with shared.own_output():
        print("theirs")
    print("ours")
    captured = capsys.readouterr()
    assert (captured.out, captured.err) == ("ours\n", "theirs\n")
