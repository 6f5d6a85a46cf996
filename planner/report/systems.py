"""Text of the answers for studies with sources, of sampling, and of diagnoses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.report.text import columns, interval, number


def sources(document: Mapping[str, Any]) -> list[str]:
    """What bought sources are worth."""

    def cell(quantiles: Mapping[str, float | None]) -> str:
        median, low, high = ("beyond" if value is None else number(value, 3) for value in quantiles.values())
        return f"{median} [{low}, {high}]"

    cells = [
        (
            row["source"],
            row["of"],
            *(cell(row[name]) for name in ("discount", "peak", "break_even", "collapse", "effective_price")),
            number(row["real_price"], 3),
            f"{100 * row['probability_cheaper']:.0f} %",
        )
        for row in document["sources"]
    ]
    header = (
        "source",
        "of",
        "worth at r = 1",
        "peak r",
        "breaks even",
        "collapses",
        "per real unit",
        "real",
        "cheaper",
    )
    notes = (
        "r is units of the source per real unit; intervals hold 90 %; collapses: the response is 95 % of real-only",
    )
    return [*columns(header, cells), *notes]


def rollouts(document: Mapping[str, Any]) -> list[str]:
    """How sampling budgets are split, and the runs that broke the record of all cheaper ones."""

    def cell(quantiles: Mapping[str, float]) -> str:
        return f"{number(quantiles['median'], 3)} {interval(quantiles['q05'], quantiles['q95'])}"

    cells = [
        (
            number(row["budget"]),
            *(cell(row[name]) for name in ("rollouts", "problems", "updates")),
            f"{100 * row['grows']:.0f} %",
            f"{100 * row['saturates']:.0f} %",
            cell(row["levels_off_at"]),
        )
        for row in document["splits"]
    ]
    header = ("budget", "rollouts", "problems", "updates", "grow at twice", "level off", "at")
    records = [(number(r["compute"]), number(r["rollouts"]), number(r["response"])) for r in document["records"]]
    return [*columns(header, cells), "", *columns(("compute", "rollouts", "record so far"), records)]


def diagnosis(document: Mapping[str, Any]) -> list[str]:
    """What the exponents of a domain hang on, a table an axis."""

    def cell(quantiles: Mapping[str, float | None] | None) -> str:
        if quantiles is None or quantiles["median"] is None:
            return "too few runs"
        return f"{number(quantiles['median'], 3)} {interval(quantiles['q05'], quantiles['q95'])}"

    lines = [
        f"exponents of {document['law']} in {document['domain']}, {document['num_runs']} runs; intervals hold 90 %"
    ]
    for axis in document["axes"]:
        rows = [("all runs", cell(axis["exponent"]))]
        rows += [(f"without {number(each['value'])}", cell(each)) for each in axis["left_out"]]
        rows += [("without both ends", cell(axis["inner"]))]
        rows += [(f"other axes {name}", cell(each)) for name, each in axis["held"].items()]
        shift = "" if axis["largest_shift"] is None else f"; largest shift {number(axis['largest_shift'], 2)}"
        lines += ["", f"{axis['axis']}{shift}", *columns(("runs", "exponent"), rows)]
        slopes = [
            (f"{number(s['from'])} to {number(s['to'])}", number(s["slope"], 3), number(s["se"], 2))
            for s in axis["slopes"]
        ]
        if slopes:
            lines += columns(("between", "local slope", "error"), slopes)
    return lines
