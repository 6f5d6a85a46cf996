"""What commands share: arguments, opening a study, printing a document, settings before numerical code."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (TOML).", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else.")]
Domain = Annotated[str | None, typer.Option(help="Domain; needed only where there are several.", show_default=False)]


def open_study(file: Path, *, writes: bool = False) -> Any:
    from planner.study import Study

    return Study.open(file, read_only=not writes)


def show(document: Mapping[str, Any], render: str, as_json: bool, warnings: Sequence[str] = ()) -> None:
    """Prints a document, as JSON or as text by the function `render` of `planner.report`."""
    warn(warnings)
    if as_json:
        from planner.events import encode_body

        output = encode_body(document)
    else:
        from planner.report import systems, text

        output = "\n".join((getattr(text, render, None) or getattr(systems, render))(document))
    try:
        print(output, flush=True)
    except BrokenPipeError:
        # Whoever read our output has enough; Python would complain again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@contextlib.contextmanager
def own_output() -> Iterator[None]:
    """What others print on standard output meanwhile, engines and their libraries, goes to standard error."""
    if not _is_real_output():
        with contextlib.redirect_stdout(sys.stderr):
            yield
        return
    sys.stdout.flush()
    ours = os.dup(1)
    os.dup2(2, 1)
    try:
        yield
    finally:
        sys.stdout.flush()
        os.dup2(ours, 1)
        os.close(ours)


def end_output() -> None:
    """Nothing more is ours: what engines still say when the program ends goes to standard error."""
    if _is_real_output():
        with contextlib.suppress(BrokenPipeError):
            sys.stdout.flush()
        os.dup2(2, 1)


def _is_real_output() -> bool:
    try:
        return sys.stdout.fileno() == 1
    except (OSError, ValueError):
        return False


def warn(warnings: Iterable[str]) -> None:
    with contextlib.suppress(OSError):  # a log on a full disk, or a reader that has left
        for warning in dict.fromkeys(warnings):
            print(f"note: {warning}", file=sys.stderr)


def text_pairs(items: Sequence[str] | None) -> list[tuple[str, str]]:
    from planner.errors import InputError

    pairs = []
    for item in items or ():
        name, equals, value = item.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise InputError(f"{item!r} must be written NAME=VALUE, such as N=1e9")
        pairs.append((name.strip(), value.strip()))
    repeated = [name for i, (name, _) in enumerate(pairs) if name in [other for other, _ in pairs[:i]]]
    if repeated:
        raise InputError(f"{repeated[0]!r} is given twice")
    return pairs


def pairs(items: Sequence[str] | None) -> dict[str, Any]:
    """NAME=VALUE items with numbers read as such."""
    values: dict[str, Any] = {}
    for name, value in text_pairs(items):
        try:
            values[name] = float(value)
        except ValueError:
            values[name] = value
    return values


def prepare_numerics(*, starts_workers: bool = False) -> None:
    """Before any numerical import: the processor only, and compiled code kept between calls.

    The planner's arrays are small, and an accelerator belongs to the runs.  Settings in the environment cost nothing
    until JAX is imported, but workers inherit them; then they are set in this process alone.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    settings = {
        "jax_platforms": "cpu",
        "jax_compilation_cache_dir": os.path.join(root, "scaling-planner", "jax"),
        "jax_persistent_cache_min_compile_time_secs": "0",
    }
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        del settings["jax_compilation_cache_dir"]
    if not starts_workers:
        os.environ.update({name.upper(): value for name, value in settings.items()})
        return
    import jax

    for name, value in settings.items():
        jax.config.update(name, float(value) if name.endswith("secs") else value)
