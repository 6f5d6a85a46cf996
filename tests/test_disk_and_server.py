"""Real disks that are full, and a server that is killed: what was acknowledged is there, and it goes on."""

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

from planner.errors import StoreError
from planner.ledger import Ledger, replay
from planner.records import Design
from tests.postgres import execute
from tests.server import Server, fill, own_server, small_disk
from tests.worlds import STUDY, write_study

pytestmark = pytest.mark.slow


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short name, where sockets may be, that everybody can enter."""
    with tempfile.TemporaryDirectory(prefix="planner-disk-") as name:
        os.chmod(name, 0o755)
        yield Path(name)


def design(i: int) -> Design:
    return Design(domain="web", axes={"N": 1e6 * (i + 1)})


def open_ledger(location: str | Path) -> Ledger:
    return Ledger.open(location, study_name="study", total=1e9)


def _noise(i: int) -> str:
    """Text that no server makes shorter."""
    return "".join(hashlib.sha256(f"{i} {j}".encode()).hexdigest() for j in range(50))


def _buy_until_it_fails(ledger: Ledger, first: int, most: int = 3000) -> tuple[list[str], StoreError]:
    """The runs that were acknowledged, and the error that came then."""
    bought: list[str] = []
    try:
        for i in range(first, first + most):
            bought += [run.run_id for run in ledger.reserve([(design(i), 1.0)], [{"why": _noise(i)}]).granted]
    except StoreError as error:
        return bought, error
    raise AssertionError("the disk was never full")


def _check(location: str | Path, acknowledged: list[str]) -> None:
    """A new process would find exactly what was acknowledged; the last step in doubt may be there too."""
    with open_ledger(location) as ledger:
        state = ledger.state()
        assert list(state.runs)[: len(acknowledged)] == acknowledged
        assert len(state.runs) - len(acknowledged) in (0, 1)
        assert replay(ledger.events(), total=1e9) == state


def _command(*arguments: object) -> "subprocess.CompletedProcess[str]":
    line = [sys.executable, "-m", "planner.cli", *map(str, arguments)]
    return subprocess.run(line, capture_output=True, text=True, env={**os.environ}, check=False)


def test_a_file_on_a_full_disk(folder: Path) -> None:
    with small_disk(folder / "disk", 4) as disk:
        path = disk / "s.sqlite"
        with open_ledger(path) as ledger:
            bought = [run.run_id for run in ledger.reserve([(design(0), 1.0)]).granted]
            filler = fill(disk, leave=200_000)
            more, error = _buy_until_it_fails(ledger, 1)
            bought += more
            assert more and error.exit_code == 5 and "no space left" in str(error)
            assert list(ledger.state().runs) == bought  # it can still be read
            with pytest.raises(StoreError, match="no space left"):
                ledger.note("x" * 20_000)
            filler.unlink()
            bought += [run.run_id for run in ledger.reserve([(design(99_999), 1.0)]).granted]
        _check(path, bought)
        assert {each.name for each in disk.iterdir()} == {"s.sqlite"}


def test_the_command_line_on_a_full_disk_says_so_and_goes_on_later(folder: Path) -> None:
    with small_disk(folder / "disk", 4) as disk:
        path = write_study(disk, STUDY.replace("total = 100", "total = 1e6"))
        assert _command("tell", path, "r0", "--response", "1").returncode == 2  # makes the store
        rows = "".join(f"web,{1 + i / 7000},1,{2 + i / 1e5}\n" for i in range(6000))
        (folder / "rows.csv").write_text("domain,N,D,loss\n" + rows)
        filler = fill(disk, leave=100_000)
        full = _command("import", path, folder / "rows.csv", "--json")
        assert full.returncode == 5 and "no space left" in json.loads(full.stdout)["error"]["message"]
        assert "Traceback" not in full.stderr
        status = json.loads(_command("status", path, "--json").stdout)
        assert (status["attached"], status["num_events"]) == (0, 1)  # all or none
        filler.unlink()
        assert _command("import", path, folder / "rows.csv").returncode in (0, 5)
        (folder / "rows.csv").write_text("domain,N,D,loss\n" + rows[: rows.index("\n") + 1])
        assert _command("import", path, folder / "rows.csv").returncode == 0


@pytest.fixture
def server(folder: Path) -> Iterator[Server]:
    with own_server(folder) as server:
        yield server


def test_a_table_of_a_server_on_a_full_disk(folder: Path) -> None:
    with small_disk(folder / "disk", 8) as disk, own_server(folder) as server:
        space = disk / "space"
        space.mkdir()
        os.chmod(space, 0o777)
        if os.geteuid() == 0:
            shutil.chown(space, "postgres")
        execute(server.url, f"CREATE TABLESPACE small LOCATION '{space}'", "CREATE DATABASE study TABLESPACE small")
        url = sa.make_url(server.url).set(database="study").render_as_string(hide_password=False)
        _fill_and_go_on(disk, url, None)


def test_a_server_whose_disk_is_full(folder: Path) -> None:
    with small_disk(folder / "disk", 64) as disk, own_server(disk) as server:
        _fill_and_go_on(disk, server.url, None)


def test_a_server_whose_own_log_cannot_be_written(folder: Path) -> None:
    """It ends itself, and is there again when there is space."""
    with small_disk(folder / "disk", 24) as disk, own_server(folder, log=disk / "log") as server:
        _fill_and_go_on(disk, server.url, server)


def _fill_and_go_on(disk: Path, url: str, server: Server | None) -> None:
    with open_ledger(url) as ledger:
        bought = [run.run_id for run in ledger.reserve([(design(0), 1.0)]).granted]
        filler = fill(disk, leave=100_000)
        more, error = _buy_until_it_fails(ledger, 1)
        bought += more
        assert more and error.exit_code == 5
        assert "no space left" in str(error) if server is None else "run it again" in str(error)
        filler.unlink()
        if server is not None:
            server.stop()
            server.start()
        bought += [run.run_id for run in ledger.reserve([(design(99_999), 1.0)]).granted]
    _check(url, bought)


@pytest.mark.parametrize("how", ["kill", "stop"])
def test_a_server_that_dies_while_planners_write(server: Server, how: str) -> None:
    open_ledger(server.url).close()
    acknowledged: list[list[str]] = [[] for _ in range(3)]
    errors: list[StoreError] = []
    ends = threading.Event()

    def plan(number: int) -> None:
        with open_ledger(server.url) as ledger:
            i = 0
            while not ends.is_set():
                try:
                    run_id = ledger.reserve([(design(1000 * i + number), 1.0)]).granted
                    acknowledged[number] += [run.run_id for run in run_id]
                    i += 1
                except StoreError as error:
                    errors.append(error)
                    i += 1  # whether it was recorded is not known: the next one
                    time.sleep(0.05)

    threads = [threading.Thread(target=plan, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.7)
        getattr(server, how)()
        time.sleep(0.2)
        server.stop()
        server.start()
    enough = sum(map(len, acknowledged))
    deadline = time.monotonic() + 60
    while sum(map(len, acknowledged)) < enough + 10:  # it goes on by itself
        assert time.monotonic() < deadline
        time.sleep(0.05)
    ends.set()
    for thread in threads:
        thread.join()
    assert errors and all(error.exit_code == 5 and "run it again" in str(error) for error in errors), errors[:3]
    with open_ledger(server.url) as ledger:
        state = ledger.state()
        told = [run_id for part in acknowledged for run_id in part]
        assert set(told) <= set(state.runs) and len(set(told)) == len(told)
        assert len(state.runs) - len(told) <= len(errors)  # steps in doubt
        assert replay(ledger.events(), total=1e9) == state


def test_the_command_line_without_its_server_says_so_and_goes_on_later(server: Server, folder: Path) -> None:
    path = write_study(folder, f"{STUDY}\n[store]\nurl = {json.dumps(server.url)}\n")
    (folder / "rows.csv").write_text("domain,N,D,loss\nweb,1,1,3\n")
    assert _command("import", path, folder / "rows.csv").returncode == 0
    server.kill()
    server.stop()
    for command in (("status", path), ("import", path, folder / "rows.csv")):
        gone = _command(*command)
        assert gone.returncode == 5 and "check that the server runs" in gone.stderr and "Traceback" not in gone.stderr
    server.start()
    status = json.loads(_command("status", path, "--json").stdout)
    assert status["attached"] == 1
