"""Settings of the whole suite: set before anything imports JAX."""

import os
import sys
from pathlib import Path

import pytest

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the suite's time is compilation, so it is kept.  Each worker has files of its own: one that reads what
# another is writing is told so by a warning, and warnings are errors here.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parents[1] / ".jax_cache" / _WORKER))


@pytest.fixture
def fake_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a Slurm of this machine, see `fake_slurm`."""
    root = tmp_path / "slurm"
    (root / "bin").mkdir(parents=True)
    for name in ("sbatch", "squeue", "sacct", "scancel"):
        program = root / "bin" / name
        program.write_text(f"#!{sys.executable} -SE\n" + Path(__file__).with_name("fake_slurm.py").read_text())
        program.chmod(0o755)
    monkeypatch.setenv("FAKE_SLURM", str(root))
    monkeypatch.setenv("PATH", f"{root / 'bin'}{os.pathsep}{os.environ['PATH']}")
    return root
