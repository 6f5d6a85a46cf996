"""A Slurm of one machine for tests: run under the names sbatch, squeue, sacct and scancel, on PATH before any other.

Jobs are folders under $FAKE_SLURM.  Files there change how it behaves: `down` (no command answers), `lost_reply` (the
next sbatch starts its job and says that it failed), `hold` (new jobs wait), `no_sacct`, `die` (the next job's
processes are killed at once and its state is what the file holds).
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
    folder = root / f"job-{number}"
    folder.mkdir()
    (folder / "name").write_text(values["job-name"])
    (folder / "arguments").write_text("\n".join(arguments))
    if (root / "die").exists():
        (folder / "state").write_text((root / "die").read_text())
        (root / "die").unlink()
    elif (root / "hold").exists():
        (folder / "state").write_text("PENDING")
    else:
        with open(values["output"].replace("%%", "%"), "ab") as log:
            process = subprocess.Popen(
                ["/bin/sh", arguments[-1]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=values["chdir"],
                start_new_session=True,
            )
        (folder / "pid").write_text(str(process.pid))
    if (root / "lost_reply").exists():
        (root / "lost_reply").unlink()
        print("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation", file=sys.stderr)
        return 1
    print(number)
    return 0


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
        print(shape.replace("%i", folder.name[4:]).replace("%T", now).replace("%j", name).replace("%r", reason))
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
