"""Answers of `planner.questions` as plain text, one renderer a question."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from planner.report.text import axes, columns, interval, number

Document = Mapping[str, Any]


def render(document: Document) -> list[str]:
    """The answers to one question, one block a domain."""
    lines: list[str] = []
    for answer in document["answers"]:
        lines += [""] if lines else []
        lines += _RENDERERS[answer["question"]](answer, document["response"])
        lines += [f"note: {note}" for note in answer["notes"]]
    return lines


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.0f} %"


def _range(row: Document, prefix: str = "") -> tuple[str, str]:
    return number(row[prefix + "median"]), interval(row[prefix + "q05"], row[prefix + "q95"])


def _need(answer: Document, response: str) -> list[str]:
    unit, probability = answer["unit"], answer["probability"]
    wanted = f"{response} {number(answer['response'])}"
    if answer["budget"] is None:
        first = f"{wanted} with probability {probability:g}: never, whatever the budget up to {number(answer['limit'])}"
    else:
        first = (
            f"{wanted} with probability {probability:g}: {number(answer['budget'])} {unit} at {axes(answer['axes'])}"
        )
    needed = answer["needed"]
    range_90 = interval(needed["q05"], needed["q95"])
    own = f"best allocation of each draw: median {number(needed['median'])}, 90 % {range_90}"
    rows = [
        (number(row["budget"]), _percent(row["probability"]), _percent(row["probability_own"]))
        for row in answer["budgets"]
    ]
    return [
        f"domain {answer['domain']}, {first}",
        f"{own} {unit}; never in {_percent(answer['never'])} of draws",
        *columns(("budget", "reached by the recipe", "by the draw's own"), rows),
    ]


def _value(answer: Document, response: str) -> list[str]:
    rows = [
        (row["axis"], number(row["at"]), *_range(row, "value_"), *_range(row, "gain_"), _percent(row["best"]))
        for row in answer["axes"]
    ]
    header = ("axis", "at", "value of a unit", "90 %", f"gain in {response} of 10 %", "90 %", "best")
    lines = [
        f"domain {answer['domain']}, recipe of {number(answer['budget'])} {answer['unit']}",
        *columns(header, rows),
    ]
    if "experiments" in answer:
        names = list(answer["at"])
        cells = [
            (
                row["what"],
                row["domain"],
                axes({name: row[name] for name in names}),
                number(row["cost"]),
                _percent(row["variance_fall"]),
                number(row["regret_fall"], 3),
            )
            for row in answer["experiments"]
        ]
        names_of = ("experiment", "domain", "axes", "cost", "targets' variance falls", "regret falls")
        lines += ["", *columns(names_of, cells), f"expected regret of the recipe now: {number(answer['regret'], 3)}"]
    return lines


def _compare(answer: Document, response: str) -> list[str]:
    rows = [
        (row["domain"], row["axis"], number(row["from"]), _percent(row["best"]), *_range(row, "response_"))
        for row in answer["axes"]
    ]
    lines = [
        f"one axis alone raised to {number(answer['budget'])} {answer['unit']}",
        *columns(("domain", "axis", "from", "is best", response, "90 %"), rows),
    ]
    lines += ["", *columns(("domain", "axis", "beats", ""), _pairs(answer["pairs"]))]
    if len(answer["domains"]) > 1:
        best = [(row["domain"], *_range(row), _percent(row["best"])) for row in answer["domains"]]
        lines += ["", *columns(("domain", f"{response} of its recipe", "90 %", "is best"), best)]
    return lines


def _pairs(pairs: Iterable[Document]) -> list[tuple[str, str, str, str]]:
    likely = [row for row in pairs if row["probability"] >= 0.5]
    return [(row["domain"], row["axis"], row["over"], _percent(row["probability"])) for row in likely]


def _sensitivity(answer: Document, response: str) -> list[str]:
    rows = [
        (
            row["term"],
            f"{row['factor']:g}",
            row["axis"],
            number(row["recommended"]),
            f"{row['ratio']:.2f}",
            _percent(row["share"]),
            number(row["slope"], 3),
            f"{row['slope_change']:+.3f}" if row["slope_change"] is not None else "-",
            number(row["slope_over"], 3),
            f"{row['slope_over_change']:+.3f}",
        )
        for row in answer["recipes"]
    ]
    header = ("term", "price", "axis", "recipe", "ratio", "share", "slope", "change", "over", "change")
    return [
        f"domain {answer['domain']}, recipe of {number(answer['budget'])} {answer['unit']}; price: factor of the term;"
        f" over: mean slope up to {number(answer['scale'])} times the budget",
        *columns(header, rows),
    ]


def _sweep(answer: Document, response: str) -> list[str]:
    at = {row["budget"]: row for row in answer["responses"]}
    rows = [
        (
            number(row["budget"]),
            row["axis"],
            number(row["recommended"]),
            interval(row["q05"], row["q95"]),
            _percent(row["share"]),
            *_range(row, "slope_"),
            number(at[row["budget"]]["median"]),
            interval(at[row["budget"]]["q05"], at[row["budget"]]["q95"]),
        )
        for row in answer["axes"]
    ]
    header = ("budget", "axis", "recipe", "90 %", "share", "slope", "90 %", response, "90 %")
    return [f"domain {answer['domain']}, budgets in {answer['unit']}", *columns(header, rows)]


_RENDERERS: Mapping[str, Callable[[Document, str], list[str]]] = {
    "need": _need,
    "value": _value,
    "compare": _compare,
    "sensitivity": _sensitivity,
    "sweep": _sweep,
}
