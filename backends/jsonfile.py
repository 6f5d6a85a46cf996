"""JSON on disk: strict when written, tolerant when read, whole after a crash.  Standard library only."""

import contextlib
import json
import math
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

# A tracker that cannot store infinity stores the largest double instead (MLflow does).
_LARGEST = 1.797e308


def finite(value: Any) -> float | None:
    """`value` as a finite float; None for anything else, text and booleans included."""
    if value is None or isinstance(value, bool | str | bytes):
        return None
    try:
        number = float(value)
    except (TypeError, ValueError, OverflowError):
        return None
    return number if math.isfinite(number) and abs(number) < _LARGEST else None


def as_cost(value: Any) -> float | None:
    """`value` if it is a finite number that is not negative, else None: a cost of NaN must never enter a sum."""
    number = finite(value)
    return number if number is not None and number >= 0 else None


def plain(value: Any) -> Any:
    """`value` as something strict JSON can hold: NaN and infinities become None, unknown objects their text."""
    if value is None or isinstance(value, bool | str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [plain(item) for item in value]
    if isinstance(value, float) or (hasattr(value, "__float__") and getattr(value, "ndim", 0) == 0):
        return finite(value)
    if hasattr(value, "tolist"):
        return plain(value.tolist())
    return str(value)


def write_json(path: Path, value: Mapping[str, Any], *, durable: bool = True) -> None:
    """Replaces `path` as a whole: after a crash at any moment it holds the old text or the new one, never a part.

    Without `durable` that holds for crashes of programs; after one of the machine it may be empty.
    """
    text = json.dumps(plain(value), indent=1, allow_nan=False) + "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    # Two processes may write the same file; the name must differ between them.
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{threading.get_ident()}")
    try:
        with open(temporary, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            if durable:
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    # Some network file systems refuse to sync a folder; the rename itself was still atomic.
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`; None where the file is missing, empty, half written or not an object."""
    try:
        value = json.loads(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def tail(path: Path, num_bytes: int = 2000) -> str:
    """The end of a text file, "" where there is none."""
    try:
        with open(path, "rb") as file:
            file.seek(0, os.SEEK_END)
            file.seek(max(0, file.tell() - num_bytes))
            return file.read().decode("utf-8", errors="replace")
    except OSError:
        return ""


def append_line(path: Path, value: Mapping[str, Any]) -> None:
    """Appends one JSON line in one write; a line that an earlier attempt left torn is closed first, not glued to."""
    line = json.dumps(plain(value), allow_nan=False).encode() + b"\n"
    with open(path, "ab+", buffering=0) as file:
        size = file.seek(0, os.SEEK_END)
        if size:
            file.seek(size - 1)
            if file.read(1) != b"\n":
                line = b"\n" + line
        file.write(line)
