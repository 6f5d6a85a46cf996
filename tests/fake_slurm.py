"""A Slurm of one machine for tests: run under the names sbatch, squeue, sacct and scancel, on PATH before any other.

Jobs are folders under $FAKE_SLURM.  Files there change how it behaves: `down` (no command answers), `lost_reply` (the
next sbatch starts its job and says that it failed), `hold` (new jobs wait), `no_sacct`, `busy` (no scancel is taken),
`die` (the next job's processes are killed at once and its state is what the file holds).
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def main() -> int:
    root, name, arguments = Path(os.environ["FAKE_SLURM"]), Path(sys.argv[0]).name, sys.argv[1:]
    if (root / "down").exists():
        print(f"{name}: error: Unable to contact slurm controller (connect failure)", file=sys.stderr)
        return 1
    return {"sbatch": sbatch, "squeue": squeue, "sacct": sacct, "scancel": scancel}[name](root, arguments)


def sbatch(root: Path, arguments: list[str]) -> int:
    values = dict(each[2:].split("=", 1) for each in arguments if each.startswith("--") and "=" in each)
    number = 1 + len(list(root.glob("job-*")))
    with open(root / "sbatches", "a") as file:
        file.write(" ".join(arguments) + "\n")
    tasks = range(int(values["array"].partition("-")[2]) + 1) if "array" in values else [None]
    ends = (root / "die").read_text() if (root / "die").exists() else None
    for task in tasks:
        folder = root / (f"job-{number}" if task is None else f"job-{number}_{task}")
        folder.mkdir()
        (folder / "name").write_text(values["job-name"])
        (folder / "arguments").write_text("\n".join(arguments))
        if ends is not None:
            (folder / "state").write_text(ends)
        elif (root / "hold").exists():
            (folder / "state").write_text("PENDING")
        else:
            _run(folder, values, arguments[-1], {} if task is None else {"SLURM_ARRAY_TASK_ID": str(task)})
    (root / "die").unlink(missing_ok=True)
    if (root / "lost_reply").exists():
        (root / "lost_reply").unlink()
        print("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", file=sys.stderr)
        return 1
    print(number)
    return 0


def _run(folder: Path, values: dict[str, str], script: str, extra: dict[str, str]) -> None:
    with open(values["output"].replace("%%", "%"), "ab") as log:
        process = subprocess.Popen(
            ["/bin/sh", script],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd=values["chdir"],
            env=os.environ | extra,
            start_new_session=True,
        )
    (folder / "pid").write_text(str(process.pid))


def state(folder: Path) -> str:
    if (folder / "state").exists():
        return (folder / "state").read_text()
    try:
        status = Path(f"/proc/{(folder / 'pid').read_text()}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "COMPLETED"
    return "COMPLETED" if status == "Z" else "RUNNING"


def squeue(root: Path, arguments: list[str]) -> int:
    wanted = [each.split("=", 1)[1] for each in arguments if each.startswith("--name=")]
    shape = next(each.split("=", 1)[1] for each in arguments if each.startswith("--format="))
    for folder in sorted(root.glob("job-*")):
        name, now = (folder / "name").read_text(), state(folder)
        if now not in ("PENDING", "RUNNING") or (wanted and name not in wanted):
            continue
        reason = "Priority" if now == "PENDING" else "None"
        number, _, task = folder.name[4:].partition("_")
        if task and now == "PENDING" and "--array" not in arguments:
            task = f"[{task}-{task}]"  # as Slurm writes what has not started yet
        shown = {"%i": f"{number}_{task}" if task else number, "%F": number, "%T": now, "%j": name, "%r": reason}
        line = shape
        for key, value in shown.items():
            line = line.replace(key, value)
        print(line)
    return 0


def sacct(root: Path, arguments: list[str]) -> int:
    if (root / "no_sacct").exists():
        print("Slurm accounting storage is disabled", file=sys.stderr)
        return 1
    ids = next(each.split("=", 1)[1] for each in arguments if each.startswith("--jobs=")).split(",")
    for number in ids:
        folder = root / f"job-{number}"
        if folder.exists():
            print(f"{number}|{state(folder)}")
    return 0


def scancel(root: Path, arguments: list[str]) -> int:
    with open(root / "scancels", "a") as file:
        file.write(" ".join(arguments) + "\n")
    if (root / "busy").exists():
        print("scancel: error: Kill job error: Socket timed out on send/recv operation", file=sys.stderr)
        return 1
    for number in arguments:
        folder = root / f"job-{number}"
        if state(folder) == "PENDING":
            (folder / "state").write_text("CANCELLED by 0")
        elif (folder / "pid").exists():
            os.kill(int((folder / "pid").read_text()), signal.SIGTERM)
            time.sleep(0.1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
