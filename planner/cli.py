"""The command line: arguments and printing only.  Every command calls `planner.study.Study` or one function."""

from __future__ import annotations

import contextlib
import gc
import sys
import traceback
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from planner.commands import questions, shared, systems
from planner.commands.shared import Json, StudyFile

app = typer.Typer(
    name="planner",
    help="Plans the experiments of a scaling study: what to run next, and what the runs say.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)

EXIT_INTERNAL, EXIT_INTERRUPTED = 1, 130


@app.callback()
def settings(debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False) -> None:
    """Plans the experiments of a scaling study: what to run next, and what the runs say."""


@app.command()
def demo(
    folder: Annotated[Path | None, typer.Option("--dir", help="Keep the study here.", show_default=False)] = None,
    seed: Annotated[int, typer.Option(help="Of the hidden truth and of all choices.")] = 0,
) -> None:
    """Run a whole study on a simulated truth.

    Runs, predictions, recipes, and how far all that is from the truth.
    """
    shared.prepare_numerics()
    from planner import demo as demonstration

    demonstration.run(folder, seed=seed)


@app.command()
def init(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Name of the study; writes NAME.toml.")],
    template: Annotated[
        Literal["language-model", "agentic-data", "rl-sampling", "tool-environments"],
        typer.Option(help="What the study is about."),
    ] = "language-model",
) -> None:
    """Write a commented study file to start from.

    It runs on the simulator until its backend is changed.
    """
    from planner.study import Study

    with Study.create(name, template=template) as study:
        path = study.spec.path
    print(f"{path} was written. Next: planner check {path}, then planner run {path}")


@app.command()
def check(file: StudyFile, as_json: Json = False) -> None:
    """Validate a study and show what it amounts to.

    Axes, designs, prices, laws, and what the budget buys.
    """
    shared.prepare_numerics()
    from planner.checking import check_study
    from planner.errors import NothingAffordable

    with shared.open_study(file) as study:
        document = check_study(study.spec, study.state)
        shared.show(document, "check", as_json, [*study.warnings, *document["warnings"]])
    if document["problem"] is not None:
        # The document is the one thing on standard output, so this is no error report of its own.
        print(f"error: nothing can be bought: {document['problem']}", file=sys.stderr)
        raise typer.Exit(NothingAffordable.exit_code)


@app.command()
def run(
    file: StudyFile,
    max_runs: Annotated[int | None, typer.Option(min=1, help="Buy at most so many runs.", show_default=False)] = None,
    max_seconds: Annotated[
        float | None, typer.Option(min=0.0, help="Buy nothing more after so long.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Choose, start and record runs.

    Until there is a reason to stop; safe to kill, run it again to go on.
    """
    shared.prepare_numerics(starts_workers=True)
    from backends import open_backend
    from planner import loop, summary
    from planner.errors import InputError
    from planner.report import live

    with shared.open_study(file, writes=True) as study:
        spec = study.spec
        with shared.own_output():
            backend = open_backend(spec.backend.kind, loop.backend_options(spec), spec.folder)
        shared.warn(study.warnings)
        try:
            with shared.own_output(), live.watching(spec, study.state) as watch:
                ended = study.run(backend, watch=watch, max_runs=max_runs, max_seconds=max_seconds)
        except KeyboardInterrupt:
            _leave(study, backend, file)
            shared.warn(warning for warning in study.warnings if warning.startswith("W:tracker"))
            raise
        if ended.stop.reason == "runs_fail":
            raise InputError(f"{ended.stop.message}. Mend the trainer, then go on with: planner run {file}")
        if ended.stop.is_exhausted and not ended.bought:
            raise ended.stop.as_error()
        shared.warn(warning for warning in study.warnings if warning.startswith("W:tracker"))
        document = {
            "stop": {"reason": ended.stop.reason, "message": ended.stop.message},
            "bought": ended.bought,
            **summary.status(spec, ended.state, store=study.ledger.url, warnings=study.warnings),
        }
    shared.show(document, "ended", as_json)


@app.command()
def ask(
    file: StudyFile,
    num: Annotated[int, typer.Option("-n", "--num", min=1, help="How many runs.")] = 1,
    request: Annotated[
        str | None, typer.Option(help="A name of your own: asked again under it, the same runs.", show_default=False)
    ] = None,
    as_json: Json = False,
) -> None:
    """Reserve the next runs and print them.

    Tell their results with `planner tell`.
    """
    shared.prepare_numerics()
    from planner import summary

    with shared.open_study(file, writes=True) as study:
        runs = [summary.run_values(each) for each in study.ask(num, request=request)]
        document = {"runs": runs, "budget": summary.budget(study.spec, study.state)}
        shared.show(document, "asked", as_json, study.warnings)


@app.command()
def tell(
    file: StudyFile,
    run_id: Annotated[str, typer.Argument(metavar="RUN_ID", show_default=False)],
    response: Annotated[
        float | None, typer.Option(help="What was measured, raw units; nan: it diverged.", show_default=False)
    ] = None,
    cost: Annotated[float | None, typer.Option(help="What it cost; else the prediction.", show_default=False)] = None,
    cost_unit: Annotated[
        str | None, typer.Option(help="If not the study's: one of [cost] conversions.", show_default=False)
    ] = None,
    se: Annotated[float | None, typer.Option(help="Standard error of the response.", show_default=False)] = None,
    successes: Annotated[float | None, typer.Option(help="Instead of a response.", show_default=False)] = None,
    trials: Annotated[float | None, typer.Option(help="Trials behind the successes.", show_default=False)] = None,
    diverged: Annotated[bool, typer.Option("--diverged", help="The run diverged: no response.")] = False,
    failed: Annotated[
        str | None, typer.Option(metavar="MESSAGE", help="The program or machine failed.", show_default=False)
    ] = None,
    amend: Annotated[bool, typer.Option("--amend", help="Correct what was told before; the history is kept.")] = False,
    as_json: Json = False,
) -> None:
    """Record what became of a run.

    A response, a divergence, or a failure; told twice, nothing changes.
    """
    from planner import summary
    from planner.errors import InputError

    with shared.open_study(file, writes=True) as study:
        if failed is not None:
            if diverged or amend or any(value is not None for value in (response, se, successes, trials)):
                raise InputError("a failed run has no result: give --failed with --cost only")
            told = study.fail(run_id, failed, cost=cost, cost_unit=cost_unit)
        else:
            told = study.tell(
                run_id,
                response=response,
                cost=cost,
                se=se,
                successes=successes,
                trials=trials,
                diverged=diverged,
                amend=amend,
                cost_unit=cost_unit,
            )
        document = {"run": summary.run_values(told), "budget": summary.budget(study.spec, study.state)}
        shared.show(document, "told", as_json, study.warnings)


@app.command()
def cancel(
    file: StudyFile,
    run_ids: Annotated[list[str] | None, typer.Argument(metavar="[RUN_ID]...", show_default=False)] = None,
    everything: Annotated[bool, typer.Option("--all", help="All runs that planner run has started.")] = False,
    wait: Annotated[float, typer.Option(min=0.0, help="For their death, in seconds.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Give runs up: end them, and free their budget when they are dead."""
    from backends import open_backend
    from planner import ending, loop, summary

    wanted = ending.require_ids(run_ids or (), everything)
    with shared.open_study(file, writes=True) as study:
        backend = open_backend(study.spec.backend.kind, loop.backend_options(study.spec), study.spec.folder)
        runs = [summary.run_values(each) for each in study.cancel_runs(backend, wanted, patience=wait)]
        by_hand = [run.run_id for run in study.state.pending() if run.run_id not in {each["run_id"] for each in runs}]
        document = {"runs": runs, "others": by_hand, "budget": summary.budget(study.spec, study.state)}
        shared.show(document, "cancelled", as_json, study.warnings)


@app.command("import")
def import_(
    file: StudyFile,
    table: Annotated[Path, typer.Argument(metavar="FILE", help="CSV, Parquet or JSON lines.", show_default=False)],
    domain: Annotated[str | None, typer.Option(help="Domain of every row.", show_default=False)] = None,
    where: Annotated[list[str] | None, typer.Option(metavar="COLUMN=VALUE", help="Only such rows.")] = None,
    column: Annotated[list[str] | None, typer.Option(metavar="OURS=THEIRS", help="Another name of a column.")] = None,
    as_json: Json = False,
) -> None:
    """Attach runs that were made elsewhere.

    The budget does not pay for them.
    """
    from planner import summary

    with shared.open_study(file, writes=True) as study:
        done = study.attach_file(
            table, domain=domain, where=shared.pairs(where), columns=dict(shared.text_pairs(column))
        )
        document = {
            "num_rows": len(done.attached),
            "num_runs": len({each.run.run_id for each in done.attached}),
            "runs": [summary.run_values(each.run) for each in done.attached],
            "warnings": list(done.warnings),
        }
        shared.show(document, "imported", as_json, [*study.warnings, *done.warnings])


@app.command()
def status(file: StudyFile, as_json: Json = False) -> None:
    """Show where the study stands.

    The budget, the runs by state, the best run so far, what is under way and the end of its logs.
    """
    from backends import jobfile
    from planner import summary

    with shared.open_study(file) as study:
        document = study.status()
        document["logs"] = [
            {"run_id": run.run_id, "state": str(run.state), "lines": lines}
            for run in summary.worth_reading(study.state)
            if (lines := jobfile.last_lines(study.runs_folder / run.run_id))
        ]
        shared.show(document, "status", as_json, study.warnings)


@app.command()
def log(
    file: StudyFile,
    after: Annotated[int, typer.Option(min=0, help="Only events with a higher number.")] = 0,
    curves: Annotated[bool, typer.Option("--curves", help="What runs reported on their way, instead.")] = False,
    run_id: Annotated[str | None, typer.Option("--run", metavar="RUN_ID", help="Only of this run.")] = None,
    as_json: Json = False,
) -> None:
    """Show the events of the ledger."""
    with shared.open_study(file) as study:
        if curves:
            columns = study.curve_columns(run_id)
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            shared.show({"study": study.spec.name, "points": rows}, "curves", as_json, study.warnings)
            return
        events = [event for event in study.log(after) if run_id in (None, event["run_id"])]
        shared.show({"study": study.spec.name, "events": events}, "log", as_json, study.warnings)


@app.command()
def track(
    file: StudyFile,
    wait: Annotated[float, typer.Option(min=0.0, help="Give up after so many seconds.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Bring the study's trackers up to date.

    `planner run` does that by itself; this is for what was asked, told or imported by hand.
    """
    with shared.open_study(file) as study:
        document = {"study": study.spec.name, "trackers": study.track(patience=wait)}
        shared.show(document, "tracked", as_json, study.warnings)
    if any(each["behind"] or each["left_out"] for each in document["trackers"]):
        raise typer.Exit(EXIT_INTERNAL)


questions.register(app)
systems.register(app)


def _leave(study: Any, backend: Any, file: Path) -> None:
    """After Ctrl-C: what becomes of the runs under way.  Asked once, and only of somebody who can answer."""
    left = len(study.state.pending())
    if left and not backend.simulated and sys.stdin.isatty() and sys.stderr.isatty():
        print(
            f"interrupted; {left} runs under way. [d]etach (they go on) or [c]ancel them? [d] ", file=sys.stderr, end=""
        )
        sys.stderr.flush()
        with contextlib.suppress(KeyboardInterrupt):
            if sys.stdin.readline().strip().casefold().startswith("c"):
                print("cancelling; Ctrl-C leaves the rest to their end", file=sys.stderr)
                alive = [run for run in study.cancel_runs(backend) if run.cost is None]
                print(f"cancelled; {len(alive)} of {left} are not known to be dead yet", file=sys.stderr)
    left = len(study.state.pending())
    goes_on = f"; {left} runs are under way. End them with: planner cancel {file} --all" if left else ""
    print(f"interrupted{goes_on}\ngo on with: planner run {file}", file=sys.stderr)


def main() -> None:
    """The command `planner`: runs it and ends the process with its exit code."""
    # A replay makes many objects that stay: to look for garbage among them would take a sixth of its time.
    gc.set_threshold(50_000)
    arguments = sys.argv[1:]
    try:
        code = app(args=arguments, standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        code = _report(error, as_json="--json" in arguments)
    shared.end_output()
    gc.freeze()  # nor is there any use in looking for garbage at the end
    sys.exit(code if isinstance(code, int) else 0)


def _report(error: Exception, *, as_json: bool) -> int:
    """Says what went wrong, once; returns the exit code."""
    from planner.errors import InputError, PlannerError

    is_usage = hasattr(error, "exit_code") and hasattr(error, "format_message")
    message = error.format_message() if is_usage else str(error)  # type: ignore[attr-defined]
    code = int(getattr(error, "exit_code", EXIT_INTERNAL))
    if is_usage and code != 0:
        message = f"{message} (see planner --help)"
        code = InputError.exit_code
    elif not isinstance(error, PlannerError):
        message = f"internal error, {type(error).__name__}: {message} (planner --debug ... shows the traceback)"
    if as_json:
        import dataclasses

        from planner.events import encode_body

        problems = [dataclasses.asdict(problem) for problem in getattr(error, "problems", ())]
        print(encode_body({"error": {"kind": type(error).__name__, "message": message, "problems": problems}}))
    print(f"error: {message}", file=sys.stderr)
    return code


if __name__ == "__main__":
    main()
