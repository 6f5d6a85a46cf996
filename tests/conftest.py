"""Settings of the whole suite: set before anything imports JAX."""

import os
from pathlib import Path

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Most of the suite's time is compilation, so it is kept.  Each worker has files of its own: one that reads what
# another is writing is told so by a warning, and warnings are errors here.
_WORKER = os.environ.get("PYTEST_XDIST_WORKER", "main")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(Path(__file__).resolve().parents[1] / ".jax_cache" / _WORKER))
