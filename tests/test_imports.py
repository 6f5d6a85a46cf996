"""The import rules that keep the parts apart, checked in the source and in fresh interpreters."""

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[1]
NUMERICAL = ("encoding", "laws", "model", "inference", "design", "recipe")
ENTRY_POINTS = (
    "planner/cli.py",
    "planner/commands/shared.py",
    "backends/worker.py",
    "benchmarks/run.py",
    "tests/conftest.py",
)
HEAVY = ("jax", "jaxlib", "numpyro", "optax", "pandas", "pyarrow", "scipy", "matplotlib")


class Import(NamedTuple):
    file: str  # relative to the root
    line: int
    module: str
    is_lazy: bool  # inside a function: not run when the file is imported
    is_typing: bool  # under TYPE_CHECKING: never run


def _imports(path: Path) -> Iterator[Import]:
    file = path.relative_to(ROOT).as_posix()

    def visit(node: ast.AST, is_lazy: bool, is_typing: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(file, child.lineno, alias.name, is_lazy, is_typing)
            elif isinstance(child, ast.ImportFrom):
                # `from planner import laws` imports planner.laws.
                module = "." * child.level + (child.module or "")
                for alias in child.names:
                    yield Import(file, child.lineno, f"{module}.{alias.name}", is_lazy, is_typing)
            else:
                guard = isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
                function = isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
                yield from visit(child, is_lazy or function, is_typing or guard)

    yield from visit(ast.parse(path.read_text(encoding="utf-8")), False, False)


def _files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    assert found, f"no sources in {folders}"
    return found


def _of(module: str, *packages: str) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def _is_numerical(path: Path) -> bool:
    part = path.relative_to(ROOT / "planner").parts[0]
    return part.removesuffix(".py") in NUMERICAL


PLANNER = [each for path in _files("planner") for each in _imports(path)]
BACKENDS = [each for path in _files("backends") for each in _imports(path)]
EVERYTHING = [*PLANNER, *BACKENDS, *(each for path in _files("tests") for each in _imports(path))]
NUMERICAL_SIDE = [each for path in _files("planner") if _is_numerical(path) for each in _imports(path)]
HOST_SIDE = [each for path in _files("planner") if not _is_numerical(path) for each in _imports(path)]


def _named(broken: list[Import]) -> list[str]:
    return [f"{each.file}:{each.line} imports {each.module}" for each in broken]


def test_planner_does_not_import_what_is_around_it() -> None:
    broken = [
        each
        for each in PLANNER
        if _of(each.module, "backends", "benchmarks", "tests")
        # A command opens a backend, and a demo a simulator; nothing else ever does.
        and not (each.is_lazy and each.file in ("planner/cli.py", "planner/demo.py"))
    ]
    assert not _named(broken)


def test_the_command_line_starts_no_numerical_code_by_being_imported() -> None:
    numerical = tuple(f"planner.{name}" for name in NUMERICAL)
    broken = [each for each in HOST_SIDE if _of(each.module, *numerical) and not each.is_lazy and not each.is_typing]
    assert not _named(broken)


def test_backends_know_only_records_and_execution() -> None:
    allowed = ("planner.records", "planner.execution", "planner.errors")
    broken = [each for each in BACKENDS if _of(each.module, "planner") and not _of(each.module, *allowed)]
    broken += [each for each in BACKENDS if each.file.startswith("backends/trainers/") and _of(each.module, "planner")]
    assert not _named(broken)


def test_the_host_side_never_imports_jax() -> None:
    broken = [each for each in HOST_SIDE if _of(each.module, "jax", "numpyro", "optax") and not each.is_typing]
    # Entry points may set jax.config, for which they have to import it, inside a function.
    assert not _named([each for each in broken if not (each.is_lazy and each.file in ENTRY_POINTS)])


def test_the_numerical_side_touches_no_files_clocks_or_processes() -> None:
    outside = ("os", "pathlib", "time", "random", "subprocess", "ray", "pandas", "datetime", "shutil", "tempfile")
    assert not _named([each for each in NUMERICAL_SIDE if _of(each.module, *outside)])


def test_the_truth_of_the_simulator_is_written_a_second_time() -> None:
    broken = [
        each
        for each in BACKENDS
        if "simulat" in each.file and _of(each.module, *(f"planner.{name}" for name in NUMERICAL))
    ]
    assert not _named(broken)


def test_ledger_and_laws_know_little() -> None:
    parts = ("ledger", "telling", "store", "storetables", "postgres", "sqlite", "events", "filecheck")
    known = tuple(f"planner.{name}" for name in (*parts, "records", "errors"))
    ledger = [
        each
        for each in HOST_SIDE
        if each.file in [f"planner/{name}.py" for name in parts]
        and _of(each.module, "planner")
        and not _of(each.module, *known)
        and not each.is_typing
    ]
    laws = [
        each
        for each in NUMERICAL_SIDE
        if each.file.startswith("planner/laws/")
        and _of(each.module, "planner")
        and not _of(each.module, "planner.laws", "planner.errors")
    ]
    assert not _named(ledger + laws)


def test_nobody_imports_the_command_line() -> None:
    found = [each for each in [*PLANNER, *BACKENDS] if _of(each.module, "planner.cli")]
    assert not _named([each for each in found if each.file != "planner/__main__.py"])


@pytest.mark.parametrize("path", _files("planner", "backends"), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_only_entry_points_set_the_configuration_of_jax(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    if path.relative_to(ROOT).as_posix() not in ENTRY_POINTS:
        assert "jax.config" not in text and "enable_compilation_cache" not in text


def test_ray_is_imported_in_its_backend_and_its_tests() -> None:
    users = ("backends/ray_cluster.py", "tests/ray_head.py", "tests/test_ray.py")
    assert not _named([each for each in EVERYTHING if _of(each.module, "ray") and each.file not in users])


def test_imports_are_absolute() -> None:
    assert not _named([each for each in EVERYTHING if each.module.startswith(".")])


def _modules_after(code: str) -> set[str]:
    """Top-level packages that a fresh interpreter has loaded after `code`."""
    script = f"{code}\nimport sys as _sys\nprint('loaded', *sorted({{n.partition('.')[0] for n in _sys.modules}}))"
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=True)
    return set(done.stdout.splitlines()[-1].split()[1:])


def test_importing_the_package_loads_nothing_heavy() -> None:
    loaded = _modules_after("import planner, backends\nassert planner.__version__")
    assert not loaded & {*HEAVY, "numpy", "pydantic", "sqlalchemy", "typer"}


def test_importing_a_backend_loads_nothing_heavy() -> None:
    assert not _modules_after("import backends.local, backends.worker, backends.jobfile") & set(HEAVY)


def test_importing_the_facade_loads_nothing_heavy() -> None:
    assert not _modules_after("import planner\nplanner.Study\nimport planner.loop, planner.cli") & set(HEAVY)


FIRST = """
import os, sys, warnings
import jax, numpyro, pandas, scipy.linalg, scipy.special, scipy.stats
warnings.simplefilter("ignore")
failed = []
for name in sys.argv[1:]:
    child = os.fork()
    if child == 0:
        try:
            __import__(name)
        except ImportError as error:
            print(name, error, flush=True)
            os._exit(1)
        os._exit(0)
    if os.waitpid(child, 0)[1]:
        failed.append(name)
sys.exit(bool(failed))
"""


def test_every_module_may_be_the_first_that_is_imported() -> None:
    """A circle of imports shows only where a certain module comes first."""
    paths = [path.relative_to(ROOT) for path in _files("planner") if path.stem not in ("__main__", "__init__")]
    names = [".".join(path.with_suffix("").parts) for path in paths]
    done = subprocess.run([sys.executable, "-c", FIRST, *names], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr[-2000:]
