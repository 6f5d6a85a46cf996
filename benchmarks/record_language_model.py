"""Records a grid of real training runs of the language model: `python -m benchmarks.record_language_model`.

Every run starts in a process of its own without the compilation cache, so `cpu_seconds` is all that a study pays for
it: starting JAX, compiling, training, evaluating. What is in the file already is kept and not run again.
"""

import argparse
import concurrent.futures
import csv
import itertools
import multiprocessing
import os
import platform
import time
from pathlib import Path
from typing import Any

DEFAULT_OUTPUT = Path(__file__).parent / "data" / "language_model_grid.csv"
COLUMNS = (
    "domain", "N", "D", "seed", "loss", "cost", "state", "parameters", "tokens", "steps", "batch_size",
    "learning_rate", "width", "depth", "hidden", "train_loss", "cpu_seconds", "wall_seconds", "text_digest", "python",
)  # fmt: skip


def record_run(domain: str, parameters: float, tokens: float, seed: int) -> dict[str, Any]:
    """One row, measured in this process, which must be fresh."""
    from backends.trainers import language_model

    started = time.monotonic()
    outcome = language_model.train_once(domain, parameters, tokens, seed)
    row = {"domain": domain, "N": parameters, "D": tokens, "seed": seed, "python": platform.python_version()}
    row |= {"loss": outcome.pop("response"), **outcome}
    row |= {"cpu_seconds": round(time.process_time(), 2), "wall_seconds": round(time.monotonic() - started, 2)}
    for name in ("loss", "train_loss", "learning_rate"):
        row[name] = f"{row[name]:.5g}" if row[name] is not None else ""
    return {name: row[name] for name in COLUMNS}


def recorded(path: Path) -> set[tuple[str, float, float, int]]:
    """The runs that a file holds."""
    if not path.exists():
        return set()
    with path.open(newline="") as file:
        return {(row["domain"], float(row["N"]), float(row["D"]), int(row["seed"])) for row in csv.DictReader(file)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--domains", nargs="+", default=["english", "python"])
    parser.add_argument("--parameters", nargs="+", type=float, default=[1e4, 4e4, 1.6e5])
    parser.add_argument("--tokens", nargs="+", type=float, default=[2e5, 8e5, 3.2e6])
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--output", type=Path, default=DEFAULT_OUTPUT)
    arguments = parser.parse_args()

    # One core: recorded seconds must not depend on how many cores the machine has.
    os.environ["XLA_FLAGS"] = "--xla_cpu_multi_thread_eigen=false"
    os.environ["NPROC"] = "1"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "false"
    known = recorded(arguments.output)
    grid = itertools.product(arguments.seeds, arguments.domains, arguments.parameters, arguments.tokens)
    runs = [(domain, parameters, tokens, seed) for seed, domain, parameters, tokens in grid]
    arguments.output.parent.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ProcessPoolExecutor(
        max_workers=1, max_tasks_per_child=1, mp_context=multiprocessing.get_context("spawn")
    ) as pool:
        for run in sorted((run for run in runs if run not in known), key=lambda run: (run[1] * run[2], run[3])):
            row = pool.submit(record_run, *run).result()
            is_new = not arguments.output.exists()
            with arguments.output.open("a", newline="") as file:
                writer = csv.DictWriter(file, COLUMNS, lineterminator="\n")
                if is_new:
                    writer.writeheader()
                writer.writerow(row)
            print(*(f"{name}={row[name]}" for name in ("domain", "N", "D", "seed", "loss", "cpu_seconds")), flush=True)


if __name__ == "__main__":
    main()
