"""`python -m benchmarks run|recipe|calibration|weights|speed|status|rollouts|seeds|slots|report`."""

from __future__ import annotations

import argparse
import importlib
import os
import sys
from pathlib import Path

from planner.errors import PlannerError

COMMANDS = {
    "run": "buy recorded experiments under a budget and score the predictions at hidden targets",
    "recipe": "regret of the recipe for a large budget, on simulators whose truth is known",
    "calibration": "ranks of simulated truths in their posteriors, which are uniform if the engine is right",
    "weights": "which weights of the laws predict hidden targets best",
    "speed": "time and memory of one update and plan, with their growth",
    "status": "seconds of `planner status` on ledgers of many runs",
    "rollouts": "how many rollouts a large sampling budget wants, from a small part of a grid",
    "seeds": "what follows from the printed tables of the seed papers, and what cannot",
    "slots": "which share of the time the slots of this machine are busy with short jobs",
    "report": "tables and figures from result files",
}


def main(arguments: list[str] | None = None) -> int:
    """Runs one benchmark command; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in COMMANDS.items():
        module = importlib.import_module(f"benchmarks.{name}")
        command = commands.add_parser(name, help=text, description=text)
        module.add_arguments(command)
        command.set_defaults(main=module.main)
    options = parser.parse_args(arguments)
    _keep_compiled_code()
    try:
        return int(options.main(options))
    except PlannerError as error:
        print(f"{parser.prog} {options.command}: {error}", file=sys.stderr)
        return error.exit_code


def _keep_compiled_code() -> None:
    import jax

    if not os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        jax.config.update("jax_compilation_cache_dir", str(Path.home() / ".cache" / "scaling-planner" / "jax"))
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)


if __name__ == "__main__":
    sys.exit(main())
