"""Bayesian adaptive experiment planner for scaling laws.

`import planner` loads nothing heavy; the names below are resolved when they are first used.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.errors import PlannerError as PlannerError
    from planner.records import Design as Design
    from planner.spec import load_study_spec as load_study_spec
    from planner.study import Study as Study

__version__ = "0.1.0"

_HOMES = {
    "Design": "planner.records",
    "PlannerError": "planner.errors",
    "Study": "planner.study",
    "load_study_spec": "planner.spec",
}

__all__ = ["Design", "PlannerError", "Study", "__version__", "load_study_spec"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'planner' has no attribute {name!r}; it has {', '.join(__all__)}")
    value = getattr(importlib.import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
