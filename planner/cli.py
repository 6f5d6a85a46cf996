"""The command line: arguments and printing only.  Every command calls `planner.study.Study` or one function."""

from __future__ import annotations

import contextlib
import os
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

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

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY", help="The study file (TOML).", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output, and nothing else.")]
Domain = Annotated[str | None, typer.Option(help="Domain; needed only where there are several.", show_default=False)]


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
    _prepare_numerics()
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
    _prepare_numerics()
    from planner.checking import check_study
    from planner.errors import NothingAffordable

    with _open(file) as study:
        document = check_study(study.spec, study.state)
        _show(document, "check", as_json, [*study.warnings, *document["warnings"]])
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
    _prepare_numerics(starts_workers=True)
    from backends import open_backend
    from planner import loop, summary
    from planner.errors import InputError
    from planner.report import live

    with _open(file, writes=True) as study:
        spec = study.spec
        backend = open_backend(spec.backend.kind, loop.backend_options(spec), spec.folder)
        _warn(study.warnings)
        try:
            with live.watching(spec, study.state) as watch:
                ended = study.run(backend, watch=watch, max_runs=max_runs, max_seconds=max_seconds)
        except KeyboardInterrupt:
            _leave(study, backend, file)
            raise
        if ended.stop.reason == "runs_fail":
            raise InputError(f"{ended.stop.message}. Mend the trainer, then go on with: planner run {file}")
        if ended.stop.is_exhausted and not ended.bought:
            raise ended.stop.as_error()
        _warn(warning for warning in study.warnings if warning.startswith("W:tracker"))
        document = {
            "stop": {"reason": ended.stop.reason, "message": ended.stop.message},
            "bought": ended.bought,
            **summary.status(spec, ended.state, store=study.ledger.url, warnings=study.warnings),
        }
    _show(document, "ended", as_json)


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
    _prepare_numerics()
    from planner import summary

    with _open(file, writes=True) as study:
        runs = [summary.run_values(each) for each in study.ask(num, request=request)]
        document = {"runs": runs, "budget": summary.budget(study.spec, study.state)}
        _show(document, "asked", as_json, study.warnings)


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

    with _open(file, writes=True) as study:
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
        _show(document, "told", as_json, study.warnings)


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
    with _open(file, writes=True) as study:
        backend = open_backend(study.spec.backend.kind, loop.backend_options(study.spec), study.spec.folder)
        runs = [summary.run_values(each) for each in study.cancel_runs(backend, wanted, patience=wait)]
        document = {"runs": runs, "budget": summary.budget(study.spec, study.state)}
        _show(document, "cancelled", as_json, study.warnings)


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

    with _open(file, writes=True) as study:
        done = study.attach_file(table, domain=domain, where=_pairs(where), columns=dict(_text_pairs(column)))
        document = {
            "num_rows": len(done.attached),
            "num_runs": len({each.run.run_id for each in done.attached}),
            "runs": [summary.run_values(each.run) for each in done.attached],
            "warnings": list(done.warnings),
        }
        _show(document, "imported", as_json, [*study.warnings, *done.warnings])


@app.command()
def status(file: StudyFile, as_json: Json = False) -> None:
    """Show where the study stands.

    The budget, the runs by state, the best run so far and what is under way.
    """
    with _open(file) as study:
        _show(study.status(), "status", as_json, study.warnings)


@app.command()
def log(
    file: StudyFile,
    after: Annotated[int, typer.Option(min=0, help="Only events with a higher number.")] = 0,
    curves: Annotated[bool, typer.Option("--curves", help="What runs reported on their way, instead.")] = False,
    run_id: Annotated[str | None, typer.Option("--run", metavar="RUN_ID", help="Only of this run.")] = None,
    as_json: Json = False,
) -> None:
    """Show the events of the ledger."""
    with _open(file) as study:
        if curves:
            columns = study.curve_columns(run_id)
            rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
            _show({"study": study.spec.name, "points": rows}, "curves", as_json, study.warnings)
            return
        events = [event for event in study.log(after) if run_id in (None, event["run_id"])]
        _show({"study": study.spec.name, "events": events}, "log", as_json, study.warnings)


@app.command()
def track(
    file: StudyFile,
    wait: Annotated[float, typer.Option(min=0.0, help="Give up after so many seconds.")] = 60.0,
    as_json: Json = False,
) -> None:
    """Bring the study's trackers up to date.

    `planner run` does that by itself; this is for what was asked, told or imported by hand.
    """
    with _open(file) as study:
        document = {"study": study.spec.name, "trackers": study.track(patience=wait)}
        _show(document, "tracked", as_json, study.warnings)
    if any(each["behind"] or each["left_out"] for each in document["trackers"]):
        raise typer.Exit(EXIT_INTERNAL)


@app.command()
def predict(
    file: StudyFile,
    at: Annotated[list[str] | None, typer.Option(metavar="N=1e9,D=2e10", help="A point; may be repeated.")] = None,
    domain: Domain = None,
    as_json: Json = False,
) -> None:
    """Predict the response at points.

    With 50 % and 90 % intervals and the distance from the data.
    """
    _prepare_numerics()
    from planner.errors import InputError

    if not at:
        raise InputError("name at least one point, such as --at N=1e9,D=2e10")
    points = [_pairs(point.split(",")) for point in at]
    with _open(file) as study:
        answer = study.prediction(points, domain)
        columns, notes = answer["columns"], answer["notes"]
        document = {
            "study": study.spec.name,
            "response": study.spec.response.name,
            "axes": list(study.spec.axis_names),
            "points": [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)],
            "laws": answer["laws"],
            "notes": notes,
        }
        _show(document, "predictions", as_json, [*study.warnings, *notes])


@app.command()
def sources(file: StudyFile, domain: Domain = None, as_json: Json = False) -> None:
    """Say what bought sources are worth.

    Discounts, the ratios at which they peak and collapse, and what a real unit's worth costs.
    """
    _prepare_numerics()
    from planner.errors import InputError

    with _open(file) as study:
        values = study.source_values(domain)
        if not values:
            raise InputError('no axis of the study has source_of = "AXIS"')
        document = {"study": study.spec.name, "domain": domain, "sources": values}
        _show(document, "sources", as_json, study.warnings)


@app.command()
def recipe(
    file: StudyFile,
    budget: Annotated[float, typer.Option(help="Largest cost of the run, in the cost unit.", show_default=False)],
    domain: Domain = None,
    as_json: Json = False,
) -> None:
    """Show the best axis values under a budget.

    With their uncertainty, and which axis to scale next.
    """
    _prepare_numerics()
    with _open(file) as study:
        names = [domain] if domain is not None else list(study.spec.domain_names)
        answers = [study.recipe(budget, name).document() for name in names]
        document = {"study": study.spec.name, "response": study.spec.response.name, "recipes": answers}
        _show(document, "recipes", as_json, study.warnings)


@app.command()
def audit(file: StudyFile, as_json: Json = False) -> None:
    """Check whether the posterior is to be trusted, and say why not; exit 4 when no law fits."""
    _prepare_numerics()
    from planner import verdict
    from planner.errors import UnreliableFit

    with _open(file) as study:
        document = study.audit().document()
        _show(document, "audit", as_json, study.warnings)
    if document["verdict"] == verdict.NO_LAW:
        print(f"error: no law fits: {'; '.join(document['failures'])}", file=sys.stderr)
        raise typer.Exit(UnreliableFit.exit_code)


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


# ---- printing and arguments -----------------------------------------------------------------------------------------


def _open(file: Path, *, writes: bool = False) -> Any:
    from planner.study import Study

    return Study.open(file, read_only=not writes)


def _show(document: Mapping[str, Any], render: str, as_json: bool, warnings: Sequence[str] = ()) -> None:
    """Prints a document, as JSON or as text by the function `render` of `planner.report.text`."""
    _warn(warnings)
    if as_json:
        from planner.events import encode_body

        output = encode_body(document)
    else:
        from planner.report import text

        output = "\n".join(getattr(text, render)(document))
    try:
        print(output, flush=True)
    except BrokenPipeError:
        # Whoever read our output has enough; Python would complain again when it closes the stream.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _warn(warnings: Iterable[str]) -> None:
    for warning in dict.fromkeys(warnings):
        print(f"note: {warning}", file=sys.stderr)


def _text_pairs(items: Sequence[str] | None) -> list[tuple[str, str]]:
    from planner.errors import InputError

    pairs = []
    for item in items or ():
        name, equals, value = item.partition("=")
        if not (name.strip() and equals and value.strip()):
            raise InputError(f"{item!r} must be written NAME=VALUE, such as N=1e9")
        pairs.append((name.strip(), value.strip()))
    repeated = [name for i, (name, _) in enumerate(pairs) if name in [other for other, _ in pairs[:i]]]
    if repeated:
        raise InputError(f"{repeated[0]!r} is given twice")
    return pairs


def _pairs(items: Sequence[str] | None) -> dict[str, Any]:
    """NAME=VALUE items with numbers read as such."""
    values: dict[str, Any] = {}
    for name, value in _text_pairs(items):
        try:
            values[name] = float(value)
        except ValueError:
            values[name] = value
    return values


def _prepare_numerics(*, starts_workers: bool = False) -> None:
    """Before any numerical import: the processor only, and compiled code kept between calls.

    The planner's arrays are small, and an accelerator belongs to the runs.  Settings in the environment cost nothing
    until JAX is imported, but workers inherit them; then they are set in this process alone.
    """
    root = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    settings = {
        "jax_platforms": "cpu",
        "jax_compilation_cache_dir": os.path.join(root, "scaling-planner", "jax"),
        "jax_persistent_cache_min_compile_time_secs": "0",
    }
    if os.environ.get("JAX_COMPILATION_CACHE_DIR"):
        del settings["jax_compilation_cache_dir"]
    if not starts_workers:
        os.environ.update({name.upper(): value for name, value in settings.items()})
        return
    import jax

    for name, value in settings.items():
        jax.config.update(name, float(value) if name.endswith("secs") else value)


def main() -> None:
    """The command `planner`: runs it and ends the process with its exit code."""
    arguments = sys.argv[1:]
    try:
        code = app(args=arguments, standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        code = EXIT_INTERRUPTED
    except Exception as error:
        if "--debug" in arguments:
            traceback.print_exc()
        code = _report(error, as_json="--json" in arguments)
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
