"""The SQLite file as a file: is it whole, who holds it, how to publish and to back it up.

Everything here leaves a damaged file exactly as it is.
"""

from __future__ import annotations

import contextlib
import errno
import os
import sqlite3
import time
from collections.abc import Iterator
from pathlib import Path

from planner.errors import StoreDamaged, StoreError

_MAGIC = b"SQLite format 3\0"
_CHECK_BYTES = 64_000_000  # larger files are checked as far as they are read; a check takes about 1 s per GB
_GROWTH_SECONDS = 1.0


def damaged(path: Path, what: str) -> StoreDamaged:
    """The error for a file that is not what we wrote."""
    return StoreDamaged(
        f"{path} is damaged or not a store of this program: {what}. It was left as it is. Copy it and its -wal file"
        f" aside, put a backup back, or try what `sqlite3 {path.name} .recover` still finds."
    )


def inode(path: Path) -> tuple[int, int] | None:
    """What tells the file from another of the same name; None where there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def removed(path: Path) -> StoreDamaged:
    """The error for a file that is gone, or another, while it is in use."""
    return StoreDamaged(
        f"{path} was removed or exchanged while it was in use; what was recorded before is in the file that was there."
        " Put it back (its -wal file too, if there is one), then run the same command again."
    )


def check(path: Path) -> None:
    """Raises `StoreDamaged` for a file that is cut, garbled or empty, before anything may write to it."""
    log = path.with_name(path.name + "-wal")
    if path.stat().st_size == 0:
        # The library would take it for a new database and delete the log.
        raise damaged(path, "it is empty (0 bytes)")
    if not _size_of(log):
        _check_length(path)
    if path.stat().st_size > _CHECK_BYTES:
        return
    # A connection that cannot write neither repairs nor removes the log when it closes.
    connection = sqlite3.connect(address(path), uri=True, timeout=30.0)
    try:
        findings = [row[0] for row in connection.execute("PRAGMA quick_check(1)")]
        tables = {row[0] for row in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    finally:
        connection.close()
    if findings != ["ok"]:
        raise damaged(path, str(findings[0]).replace("\n", " "))
    if not {"events", "meta"} <= tables:
        raise damaged(path, f"it holds tables {', '.join(sorted(tables)) or 'of no name'}, not events and meta")


def is_frozen(path: Path) -> bool:
    """True when nobody who may write is using the file and we may not: somebody else's folder, a read-only disk."""
    return not os.access(path.parent, os.W_OK) and not _size_of(path.with_name(path.name + "-wal"))


def address(path: Path) -> str:
    """The URI to read the file under, without writing to it."""
    # Otherwise the library insists on creating its index of the log beside the file.
    return f"{path.as_uri()}?mode=ro{'&immutable=1' if is_frozen(path) else ''}"


def check_creatable(path: Path) -> None:
    """Raises `StoreError` when a new store must not or cannot appear at `path`."""
    if not path.parent.is_dir():
        raise StoreError(f"the folder {path.parent} of the store does not exist: create it, or change [store] url")
    log = path.with_name(path.name + "-wal")
    if _size_of(log):
        raise StoreDamaged(
            f"{path} is gone but its log {log.name} is there, which holds recorded events."
            " Put the file back beside it, or move the log away to start from nothing."
        )


def publish(new: Path, path: Path) -> None:
    """Gives a complete file its name, unless somebody else's is there already; that one stays."""
    try:
        os.link(new, path)
    except FileExistsError:
        return
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.ENOSYS, errno.EMLINK):
            raise StoreError(f"{path} cannot be created: {error.strerror}; check the folder and the disk") from error
        if not path.exists():  # no hard links here
            os.replace(new, path)
    sync_folder(path.parent)


def back_up(path: Path, backup: Path) -> None:
    """Copies a store that may be in use; an earlier backup of the same name is kept and serves."""
    if backup.exists():
        return
    unfinished = backup.with_name(backup.name + ".part")
    source, copy = sqlite3.connect(path), sqlite3.connect(unfinished)
    with contextlib.closing(source), contextlib.closing(copy):
        source.backup(copy)
    os.replace(unfinished, backup)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Makes names created in `folder` survive a power cut, where the system can do that."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def lock_holders(path: Path) -> list[str]:
    """Processes that hold a write lock on the store, as text for a message; empty where the system does not say."""
    try:
        inodes = {os.stat(name).st_ino for name in (path, f"{path}-shm") if os.path.exists(name)}
        lines = Path("/proc/locks").read_text().splitlines()
    except OSError:
        return []
    holders = {pid for pid, inode in _write_locks(lines) if inode in inodes and pid != os.getpid()}
    return [f"process {pid} ({_command(pid)})" for pid in sorted(holders)]


def _write_locks(lines: list[str]) -> Iterator[tuple[int, int]]:
    for line in lines:
        fields = line.split()  # 1: POSIX ADVISORY WRITE pid major:minor:inode start end
        if len(fields) >= 8 and fields[3] == "WRITE" and fields[4].isdigit():
            yield int(fields[4]), int(fields[5].rsplit(":", 1)[-1])


def _command(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return "unknown"
    return b" ".join(words).decode(errors="replace").strip()[:80] or "unknown"


def _size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def _check_length(path: Path) -> None:
    deadline = time.monotonic() + _GROWTH_SECONDS
    while True:
        with path.open("rb") as file:
            header = file.read(100)
            size = os.fstat(file.fileno()).st_size
        if len(header) < 100 or not header.startswith(_MAGIC):
            raise damaged(path, "it does not begin like a database")
        page_size = int.from_bytes(header[16:18], "big")
        expected = (65536 if page_size == 1 else page_size) * int.from_bytes(header[28:32], "big")
        is_counted = header[24:28] == header[92:96]  # the page count in the header is up to date
        if not is_counted or size >= expected:
            return
        # Another process may be copying its log into the file, first page first.
        if time.monotonic() > deadline or not path.exists():
            raise damaged(path, f"it has {size} of {expected} bytes")
        time.sleep(0.05)
