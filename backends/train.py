"""`python -m backends.train FOLDER` calls the Python trainer of the job in FOLDER; a worker watches over it.

Imports as little as it can: a process for every run starts here.
"""

import importlib
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from backends import jobfile


def train(path: Path) -> int:
    """Calls the trainer in this process; returns the exit code."""
    try:
        job = jobfile.parse_job(path)
        sys.path.insert(0, str(job.working_folder))
        outcome = _load(str(job.options["trainer"]))(job)
        return _finish(outcome)
    except BaseException as error:
        code = jobfile.exit_code_of(error)
        if not isinstance(error, SystemExit) or isinstance(error.code, str):
            import traceback

            traceback.print_exc()
        return code


def _load(name: str) -> Any:
    module_name, _, function_name = name.partition(":")
    if not module_name or not function_name:
        raise jobfile.BadJob(f'trainer is {name!r}; it must read "module:function"')
    try:
        function = getattr(importlib.import_module(module_name), function_name, None)
    except ImportError as error:
        raise jobfile.BadJob(f"trainer {name!r}: cannot import {module_name!r}: {error}") from error
    if not callable(function):
        raise jobfile.BadJob(f"trainer {name!r}: module {module_name!r} has no function {function_name!r}")
    return function


def _finish(outcome: Any) -> int:
    if isinstance(outcome, Mapping):
        outcome = jobfile.Result(**outcome)
    if isinstance(outcome, jobfile.Result):
        jobfile.write_result(
            outcome.response,
            outcome.cost,
            state=outcome.state,
            se=outcome.se,
            successes=outcome.successes,
            trials=outcome.trials,
            **outcome.extra,
        )
        return 0
    if outcome is not None:
        raise TypeError(
            f"the trainer returned {type(outcome).__name__}; return None, a Result or a mapping of its fields"
        )
    if Path(os.environ["PLANNER_RESULT"]).exists():
        return 0
    reason = jobfile.should_stop()
    if reason is None:
        print("the trainer returned without a result: call write_result, or return a Result", flush=True)
        return 0
    return jobfile.TERMINATED if reason in ("cancelled", "terminated") else jobfile.TIME_LIMIT


if __name__ == "__main__":
    sys.exit(train(Path(sys.argv[1])))
