"""Answers as plain text: aligned columns, few digits, no colours, so that a pipe reads what a terminal shows."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

LEGEND = (
    "recipe: the one allocation to follow; median, 50 %, 90 %: the best value of the axis over the posterior;",
    "share: part of the spending; slope: growth of the best value with the budget, in logs; value: what one more unit",
    "of cost on this axis gains, on the scale of the laws; next: probability that this axis alone is the one to scale",
)

_MOST_STOPPED = 5  # runs stopped early
_MOST_LISTED = 20  # runs under way that people are shown


def number(value: Any, digits: int = 4) -> str:
    """A quantity as people write it; "-" for none."""
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "-"
    return f"{value:.{digits}g}"


def columns(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Lines of an aligned table; numbers to the right."""
    cells = [list(header), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(header))]
    is_number = [all(_looks_numeric(row[i]) for row in cells[1:]) for i in range(len(header))]
    return [
        "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ).rstrip()
        for row in cells
    ]


def _looks_numeric(cell: str) -> bool:
    return not cell or cell[0] in "-+.0123456789"


def axes(values: Mapping[str, float]) -> str:
    """Axis values in one phrase: N=1e+08 D=2e+09."""
    return " ".join(f"{name}={value:.4g}" for name, value in values.items())


def budget_line(budget: Mapping[str, Any]) -> str:
    """Where the money went, in one line."""
    share = budget["spent"] / budget["total"] if budget["total"] else 0.0
    parts = [f"{number(budget['spent'])} of {number(budget['total'])} {budget['unit']} spent ({100 * share:.3g} %)"]
    if budget["reserved"]:
        parts.append(f"{number(budget['reserved'])} reserved")
    return ", ".join([*parts, f"{number(budget['remaining'])} left"])


def status(document: Mapping[str, Any]) -> list[str]:
    """The document of `Study.status`."""
    counts = ", ".join(f"{count} {name}" for name, count in document["runs"].items()) or "none yet"
    attached = f" ({document['attached']} made elsewhere)" if document["attached"] else ""
    lines = [
        f"study   {document['study']}",
        f"budget  {budget_line(document['budget'])}",
        f"runs    {counts}{attached}",
    ]
    if document.get("costs"):
        lines.append(f"costs   {_costs_line(document['costs'])}")
    domains = document["finished_by_domain"]
    if len(domains) > 1:
        lines.append("domains " + ", ".join(f"{name}: {count} finished" for name, count in domains.items()))
    best = document["best"]
    if best is not None:
        response = document["response"]
        unit = f" {response['unit']}" if response["unit"] else ""
        lines.append(
            f"best    {response['name']} {number(best['response'])}{unit} in {best['domain']} at {axes(best['axes'])}"
            f" (run {best['run_id']})"
        )
    lines += [
        f"early   {run['run_id']} stopped at cost {number(run['cost'])}, saved {number(run['saved'])}: {run['why']}"
        for run in document["stopped_early"][-_MOST_STOPPED:]
    ]
    lines += [f"tracker {line}" for line in tracked(document)]
    if document["pending"]:
        rows = [
            (
                run["run_id"],
                run["state"],
                run["domain"],
                axes(run["axes"]),
                number(run["predicted_cost"]),
                *_progress_cells(run["progress"]),
            )
            for run in document["pending"][:_MOST_LISTED]
        ]
        more = len(document["pending"]) - len(rows)
        header = ("under way", "state", "domain", "axes", "predicted cost", "used", "at step", "value so far")
        shown = len(header) if any(run["progress"] for run in document["pending"][:_MOST_LISTED]) else 5
        lines += ["", *columns(header[:shown], [row[:shown] for row in rows])]
        lines += [f"and {more} more (--json lists all)"] if more > 0 else []
    for log in document.get("logs", ()):
        lines += [
            "",
            f"log of {log['run_id']}, {log['state'].replace('_', ' ')}",
            *(f"  {line}" for line in log["lines"]),
        ]
    return lines


def tracked(document: Mapping[str, Any]) -> list[str]:
    """How far each tracker is, a line each."""
    lines = []
    for each in document.get("trackers", ()):
        words = f"{each['behind']} events behind" if each["behind"] else "up to date"
        words += f", {len(each['left_out'])} runs left out" if each["left_out"] else ""
        lines.append(f"{each['name']}: {words}" + (f": {each['error']}" if each["error"] else ""))
    return lines


def _progress_cells(progress: Mapping[str, Any] | None) -> tuple[str, str, str]:
    told = progress or {}
    used = f"{100 * told['share']:.0f} %" if told.get("share") is not None else "-"
    return used, number(told.get("step"), 6), number(told.get("value"))


def _costs_line(costs: Mapping[str, Any]) -> str:
    """How runs' costs compare with the declared ones."""
    factors = costs["actual_over_declared"]
    if len(set(factors.values())) == 1:
        shares = f"{next(iter(factors.values())):.3g}"
    else:
        shares = ", ".join(f"{name} {factor:.3g}" for name, factor in factors.items())
    return f"actual over declared {shares} (spread {100 * costs['spread']:.2g} %, {costs['num_runs']} runs)"


def asked(document: Mapping[str, Any]) -> list[str]:
    """Runs that were just reserved, one a line, with the reasons below."""
    runs, budget = document["runs"], document["budget"]
    rows = [(run["run_id"], run["domain"], axes(run["axes"]), number(run["predicted_cost"])) for run in runs]
    lines = columns(("run", "domain", "axes", f"predicted cost [{budget['unit']}]"), rows)
    reasons = dict.fromkeys(str(run["reason"].get("why", "")) for run in runs)
    return [*lines, *(f"why: {reason}" for reason in reasons if reason), budget_line(budget)]


def told(document: Mapping[str, Any]) -> list[str]:
    """What a run is after something was told of it."""
    run = document["run"]
    parts = [f"run {run['run_id']} is {run['state']}"]
    if run["response"] is not None:
        parts.append(f"response {number(run['response'], 6)}")
    if run["cost"] is not None:
        parts.append(f"cost {number(run['cost'])}")
    parts += [run["message"]] if run["message"] else []
    return [", ".join(parts), budget_line(document["budget"])]


def imported(document: Mapping[str, Any]) -> list[str]:
    """What an import attached."""
    num_rows, num_runs = document["num_rows"], document["num_runs"]
    return [f"{num_rows} row{'s' if num_rows != 1 else ''} read, {num_runs} run{'s' if num_runs != 1 else ''} attached"]


def ended(document: Mapping[str, Any]) -> list[str]:
    """How a call of `planner run` ended."""
    stop = document["stop"]
    return [f"stopped ({stop['reason']}): {stop['message']}", f"bought {document['bought']} runs", *status(document)]


def cancelled(document: Mapping[str, Any]) -> list[str]:
    """What became of runs that were given up."""
    rows = [
        (run["run_id"], run["state"], run["domain"], axes(run["axes"]), number(run["cost"])) for run in document["runs"]
    ]
    lines = columns(("run", "state", "domain", "axes", "cost"), rows) if rows else ["nothing to cancel"]
    if document["others"]:
        names = ", ".join(document["others"][:3]) + (", ..." if len(document["others"]) > 3 else "")
        lines.append(f"{len(document['others'])} others are under way: name those to cancel ({names})")
    alive = sum(run["cost"] is None for run in document["runs"])
    note = f"{alive} are not known to be dead yet: their budget stays reserved; call this again to look once more"
    return [*lines, *([note] if alive else []), f"budget  {budget_line(document['budget'])}"]


def log(document: Mapping[str, Any]) -> list[str]:
    """The events of `Study.log`, one a line."""
    rows = [
        (
            str(event["seq"]),
            time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(event["at"])),
            event["kind"],
            event["run_id"] or "",
            _event_words(event["body"]),
        )
        for event in document["events"]
    ]
    return columns(("event", "at", "kind", "run", "what"), rows)


def curves(document: Mapping[str, Any]) -> list[str]:
    """The points of `Study.curves`, one a line."""
    rows = [
        (
            point["run_id"],
            str(point["attempt"]),
            point["domain"],
            axes(
                {
                    name.removeprefix("axis_"): x
                    for name, x in point.items()
                    if name.startswith("axis_") and x is not None
                }
            ),
            number(point["step"], 8),
            number(point["value"], 6) if point["value"] is not None else "not finite",
            number(point["cost"]),
            "complete" if point["schedule_complete"] else "on the way",
        )
        for point in document["points"]
    ]
    return columns(("run", "attempt", "domain", "axes", "step", "value", "cost", "schedule"), rows)


def _event_words(body: Mapping[str, Any]) -> str:
    parts = []
    if isinstance(body.get("design"), Mapping):
        parts.append(f"{body['design']['domain']} {axes(body['design']['axes'])}")
    for key in ("predicted_cost", "response", "se", "successes", "trials", "value", "step", "cost", "charged", "total"):
        if isinstance(body.get(key), int | float):
            parts.append(f"{key} {number(body[key])}")
    parts += [f"{len(body['points'])} points of its curve"] if body.get("points") else []
    parts += [str(body[key]) for key in ("message", "text", "study") if body.get(key)]
    return ", ".join(parts)


def check(document: Mapping[str, Any]) -> list[str]:
    """The document of `planner check`."""
    unit = document["budget"]["unit"]
    rows = [
        (axis["name"], axis["unit"], number(axis["low"]), number(axis["high"]), axis["scale"], axis["role"] or "-")
        for axis in document["axes"]
    ]
    cost, buys = document["cost"], document["budget_buys"]
    lines = [
        f"study    {document['study']}: {document['response']}",
        "",
        *columns(("axis", "unit", "low", "high", "scale", "role"), rows),
        "",
        f"domains  {', '.join(document['domains'])}",
        f"designs  {document['num_designs']}, of which {document['num_affordable']} can be paid",
        f"cost     {number(cost['lowest'])} to {number(cost['highest'])} {unit}, median {number(cost['median'])}",
        f"budget   {budget_line(document['budget'])}",
        f"         which buys {buys['cheapest']} runs of the cheapest design, {buys['median']} of the median one,"
        f" {buys['dearest']} of the dearest",
    ]
    if document["targets"]:
        lines.append(f"targets  {'; '.join(document['targets'])}")
    lines += ["", *columns(("law", "why"), [(law["name"], law["why"]) for law in document["laws"]])]
    return lines


def predictions(document: Mapping[str, Any]) -> list[str]:
    """Rows of `Study.predict` and the weights of the laws."""
    axis_names = document["axes"]
    cells = [
        (
            *(number(row[name]) for name in axis_names),
            row["domain"],
            number(row["median"]),
            interval(row["q25"], row["q75"]),
            interval(row["q05"], row["q95"]),
            interval(row["pred_q05"], row["pred_q95"]),
            number(row["distance"], 3),
            ", ".join(row["flags"]),
        )
        for row in document["points"]
    ]
    header = (*axis_names, "domain", document["response"], "50 %", "90 %", "90 % of a run", "distance", "flags")
    weights = ", ".join(f"{name} {100 * weight:.0f} %" for name, weight in document["laws"].items())
    return [*columns(header, cells), f"laws: {weights}"]


def recipes(document: Mapping[str, Any]) -> list[str]:
    """The recipe of every domain that was asked for."""
    lines: list[str] = []
    for answer in document["recipes"]:
        lines += ["", *_recipe(answer, document["response"])] if lines else _recipe(answer, document["response"])
    return [*lines, "", *LEGEND]


def _recipe(answer: Mapping[str, Any], response: str) -> list[str]:
    joint, at_joint = answer["joint"], answer["response"]
    rows = [
        (
            row["axis"],
            number(joint["axes"][row["axis"]]),
            number(row["median"]),
            interval(row["q25"], row["q75"]),
            interval(row["q05"], row["q95"]),
            f"{100 * joint['spend_share'][row['axis']]:.0f} %",
            number(row["slope"], 3),
            number(row["axis_value"], 3),
            "-" if row["next"] is None else f"{100 * row['next']:.0f} %",
        )
        for row in answer["axes"]
    ]
    header = ("axis", "recipe", "median", "50 %", "90 %", "share", "slope", "value", "next")
    return [
        f"domain {answer['domain']}, budget {number(answer['budget'])} {answer['unit']}",
        *columns(header, rows),
        f"expected {response} {number(at_joint['median'])}, 90 % {interval(at_joint['q05'], at_joint['q95'])},"
        f" at a cost of {number(joint['cost'])} {answer['unit']}",
        *_versus(answer["versus"], response),
        *(f"note: {note}" for note in answer["notes"]),
    ]


def _versus(rows: Sequence[Mapping[str, Any]], response: str) -> list[str]:
    if not rows:
        return []
    cells = [
        (
            row["plan"],
            axes(row["axes"]),
            number(row["cost"]),
            number(row["response"]["median"]),
            number(row["efficiency"]["median"], 3),
            interval(row["efficiency"]["q25"], row["efficiency"]["q75"]),
            interval(row["efficiency"]["q05"], row["efficiency"]["q95"]),
        )
        for row in rows
    ]
    header = ("versus", "axes", "cost", response, "budget saved: times", "50 %", "90 %")
    return ["", *columns(header, cells)]


def answers(document: Mapping[str, Any]) -> list[str]:
    """The answers to a question of `planner.questions`."""
    from planner.report import asked  # which builds on this module

    return asked.render(document)


def audit(document: Mapping[str, Any]) -> list[str]:
    """The document of `Study.audit`."""
    from planner.report import audits  # which builds on this module

    return audits.render(document)


def interval(low: float | None, high: float | None) -> str:
    """[low, high], with few digits."""
    return f"[{number(low)}, {number(high)}]"
