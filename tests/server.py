"""A PostgreSQL server of one's own, to be filled, killed and started again; and file systems of a given size."""

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa

SETTINGS = "-c listen_addresses= -c max_connections=20 -c shared_buffers=2MB -c min_wal_size=2MB -c max_wal_size=1GB"


@contextlib.contextmanager
def small_disk(path: Path, megabytes: int) -> Iterator[Path]:
    """A file system of this size.  Skips the test where we may not mount one."""
    path.mkdir()
    options = f"size={megabytes}m,mode=0777"
    try:
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("a file system of our own cannot be mounted here")
    try:
        yield path
    finally:
        subprocess.run(["umount", "-l", str(path)], check=True)


def fill(path: Path, leave: int = 0) -> Path:
    """Takes all space on the file system of `path` but so many bytes; returns the file that has it."""
    file = path / "filler"
    with contextlib.suppress(OSError), file.open("ab", buffering=0) as stream:
        while True:
            stream.write(bytes(65536))
    with contextlib.suppress(OSError), file.open("ab", buffering=0) as stream:
        while True:
            stream.write(bytes(512))
    os.truncate(file, max(0, file.stat().st_size - leave))
    return file


def _binaries() -> Path:
    found = shutil.which("pg_config")
    if found is None:
        pytest.skip("there is no PostgreSQL server")
    folder = Path(subprocess.run([found, "--bindir"], capture_output=True, text=True, check=True).stdout.strip())
    if not (folder / "initdb").exists():
        pytest.skip("there is no PostgreSQL server")
    return folder


class Server:
    """A server whose data and sockets are in a folder; durable, as a server is by default."""

    def __init__(self, folder: Path, log: Path | None) -> None:
        pytest.importorskip("psycopg")
        self.data, self._sockets, self._bin = folder / "data", folder / "sockets", _binaries()
        self._sockets.mkdir()
        if os.geteuid() == 0:
            shutil.chown(self._sockets, "postgres")
            shutil.chown(folder, "postgres")
        self._call(
            "initdb",
            "-D",
            self.data,
            "-U",
            "planner",
            "-A",
            "trust",
            "--wal-segsize=1",
            *([] if log is None else ["--waldir", log]),
            "-E",
            "UTF8",
            "--no-locale",
        )

    @property
    def url(self) -> str:
        address = sa.URL.create(
            "postgresql+psycopg", "planner", database="postgres", query={"host": str(self._sockets)}
        )
        return address.render_as_string(hide_password=False)

    def start(self) -> None:
        settings = f"-k {self._sockets} {SETTINGS}"
        self._call("pg_ctl", "-D", self.data, "-l", self._sockets / "log", "-w", "-t", "60", "-o", settings, "start")

    def stop(self, mode: str = "immediate") -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self._call("pg_ctl", "-D", self.data, "-m", mode, "-w", "stop")

    def kill(self) -> None:
        """SIGKILL to the server, all of it, as when the power fails."""
        pid = int((self.data / "postmaster.pid").read_text().splitlines()[0])
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in [pid, *map(int, children)]:
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)

    def _call(self, program: str, *arguments: object) -> None:
        line = [str(self._bin / program), *map(str, arguments)]
        if os.geteuid() == 0:  # as whom the server refuses to run
            line = ["runuser", "-u", "postgres", "--", *line]
        # The server keeps what it inherits: its output must not be a pipe that somebody reads to the end.
        subprocess.run(line, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True, timeout=120)


@contextlib.contextmanager
def own_server(folder: Path, log: Path | None = None) -> Iterator[Server]:
    """A running server; its write-ahead log may be elsewhere."""
    server = Server(folder, log)
    try:
        server.start()
        yield server
    finally:
        server.stop()
