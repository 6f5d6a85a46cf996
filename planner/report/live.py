"""What `planner run` shows while it works, on standard error: a live table for a terminal, plain lines otherwise."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from planner import summary
from planner.records import STATE_RULES, RunRecord, StudyState
from planner.report import text

if TYPE_CHECKING:
    from planner.loop import News, Watcher
    from planner.spec import StudySpec

MAX_ROWS = 20


@contextlib.contextmanager
def watching(spec: StudySpec, state: StudyState) -> Iterator[Watcher]:
    """A watcher for `planner.loop.run`; what it shows stays on the screen."""
    if not sys.stderr.isatty():
        yield lambda news: _print_if_anybody_reads(spec, news)
        return
    from rich.console import Console
    from rich.live import Live

    screen = _Screen(spec, state)
    with Live(screen, console=Console(stderr=True), refresh_per_second=4) as live:

        def watch(news: News) -> None:
            screen.take(news)
            live.refresh()

        yield watch


def outcome_words(spec: StudySpec, run: RunRecord) -> str:
    """How a run ended against what was predicted for it."""
    words = str(run.state).replace("_", " ")
    if run.response is not None:
        words += f", {spec.response.name} {text.number(run.response)}"
        predicted = run.reason.get("predicted")
        if isinstance(predicted, dict):
            words += f" (predicted {text.number(predicted.get('median'))}"
            words += f", 90 % {text.interval(predicted.get('q05'), predicted.get('q95'))})"
    if run.cost is not None:
        words += f", cost {text.number(run.cost)} (predicted {text.number(run.predicted_cost)})"
    return words + (f": {run.message}" if run.message else "")


def _print_if_anybody_reads(spec: StudySpec, news: News) -> None:
    """A log on a full disk, or a reader that has left, must not end a study."""
    with contextlib.suppress(OSError):
        _print_line(spec, news)


def _print_line(spec: StudySpec, news: News) -> None:
    run = news.run
    if run is None:
        print(f"... {news.text}", file=sys.stderr, flush=True)
        return
    where = f"{run.run_id} {run.design.domain} {text.axes(run.design.axes)}"
    if news.kind == "bought":
        line = f"bought  {where} for {text.number(run.predicted_cost)} {spec.cost.unit}: {run.reason.get('why', '')}"
    elif news.kind == "ended":
        line = f"ended   {where}: {outcome_words(spec, run)}"
    elif news.kind in ("retried", "given_up", "warning", "stopping"):
        line = f"{news.kind.replace('_', ' ')} {where}: {news.text}"
    else:
        return
    print(line, file=sys.stderr, flush=True)


class _Screen:
    """The live table: the latest runs, what is being done, where the budget stands."""

    def __init__(self, spec: StudySpec, state: StudyState) -> None:
        self.spec = spec
        self.runs: dict[str, RunRecord] = dict(state.runs)
        self.doing = "looking at the runs"
        self.messages: list[str] = []

    def take(self, news: News) -> None:
        if news.run is not None:
            self.runs[news.run.run_id] = news.run
        self.doing = news.text if news.kind == "thinking" else "waiting for runs"
        if news.kind in ("warning", "given_up", "retried", "stopping"):
            self.messages = [*self.messages[-2:], f"{news.kind.replace('_', ' ')}: {news.text}"]

    def __rich__(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for name in ("run", "domain", "axes", "state", "predicted", "actual", "why"):
            table.add_column(name, overflow="ellipsis", no_wrap=True)
        for run in list(self.runs.values())[-MAX_ROWS:]:
            style = "bold" if not STATE_RULES[run.state].final else ""
            table.add_row(*map(Text, self._cells(run)), style=style)
        state = StudyState(
            runs=self.runs,
            spent=sum(run.spent for run in self.runs.values()),
            reserved=sum(run.reserved for run in self.runs.values()),
            total=self.spec.budget.total,
            num_events=0,
        )
        line = text.budget_line(summary.budget(self.spec, state))
        return Group(table, Text(f"{len(self.runs)} runs, {line}"), *map(Text, self.messages), Text(self.doing))

    def _cells(self, run: RunRecord) -> tuple[str, ...]:
        predicted = run.reason.get("predicted")
        expected = text.number(predicted.get("median")) if isinstance(predicted, dict) else "-"
        return (
            run.run_id,
            run.design.domain,
            text.axes(run.design.axes),
            str(run.state).replace("_", " "),
            f"{expected} for {text.number(run.predicted_cost)}",
            f"{text.number(run.response)} for {text.number(run.cost)}",
            str(run.reason.get("why", "")),
        )
