"""The audit of a study as plain text: the verdict first, then the tables that it rests on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from planner.report.text import axes, columns, interval, number

_NOT_AXES = ("run", "domain", "cost", "response", "median", "q05", "q95", "z", "num_known")
_MOST_OUTLIERS = 10


def render(document: Mapping[str, Any]) -> list[str]:
    """The document of `Audit.document`."""
    lines = [f"verdict  {document['verdict']}"]
    lines += [f"  because {failure}" for failure in document["failures"]]
    lines += [f"  care: {reason}" for reason in document["reasons"]]
    lines += [f"  not checked: {what}" for what in document["unchecked"]]
    for table in (_laws, _dearest, _left_out, _parameters, _outliers, _targets):
        rows = table(document)
        lines += ["", *rows] if rows else []
    return lines


def _laws(document: Mapping[str, Any]) -> list[str]:
    fits = {True: "yes", False: "no", None: "-"}
    rows = [
        (
            row["law"],
            f"{100 * row['weight']:.0f} %",
            fits[row["fits"]],
            number(row["explained"], 3),
            number(row["discrepancy"], 3),
            number(row["noise"], 3),
        )
        for row in document["laws"]
    ]
    return [
        *columns(("law", "weight", "fits", "explains", "discrepancy", "noise"), rows),
        *(f"{row['law']} = {row['formula']}: {row['why']}" for row in document["laws"]),
    ]


def _dearest(document: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            row["run"],
            row["domain"],
            axes({name: value for name, value in row.items() if name not in _NOT_AXES}),
            number(row["cost"]),
            number(row["response"]),
            number(row["median"]),
            interval(row["q05"], row["q95"]),
            number(row["z"], 2),
        )
        for row in document["dearest"]
    ]
    header = ("dearest run", "domain", "axes", "cost", "response", "from cheaper runs", "90 %", "z")
    return columns(header, rows) if rows else []


def _left_out(document: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            row["domain"],
            str(row["runs"]),
            f"{100 * row['coverage_90']:.0f} %",
            number(row["error"], 3),
            number(row["median_z"], 2),
        )
        for row in document["left_out"]
    ]
    header = ("domain left out", "runs", "inside 90 %", "error", "median |z|")
    return columns(header, rows) if rows else []


def _parameters(document: Mapping[str, Any]) -> list[str]:
    """The leading law's; the document has those of every law."""
    leading = document["laws"][0]["law"]
    rows = [
        (
            row["parameter"],
            f"{number(row['prior_mean'], 3)} +- {number(row['prior_sd'], 3)}",
            f"{number(row['mean'], 3)} +- {number(row['sd'], 3)}",
            number(row["contraction"], 2),
            "prior-driven" if row["prior_driven"] else "",
        )
        for row in document["parameters"]
        if row["law"] == leading
    ]
    return columns((f"parameter of {leading}", "before", "after", "contraction", ""), rows) if rows else []


def _outliers(document: Mapping[str, Any]) -> list[str]:
    outliers = sorted((row for row in document["runs"] if row["outlier"]), key=lambda row: row["multiplier"])
    rows = [
        (row["run"], row["domain"], number(row["response"]), number(row["residual"], 3), number(row["multiplier"], 2))
        for row in outliers[:_MOST_OUTLIERS]
    ]
    more = [f"and {len(outliers) - _MOST_OUTLIERS} more"] if len(outliers) > _MOST_OUTLIERS else []
    header = ("outlier", "domain", "response", "noise deviations off", "weight")
    return [*columns(header, rows), *more] if rows else []


def _targets(document: Mapping[str, Any]) -> list[str]:
    rows = [
        (
            row["target"],
            row["domain"],
            str(row["points"]),
            number(row["median_distance"], 3),
            number(row["largest_distance"], 3),
            "no runs in this domain"
            if row["median_distance"] is None
            else f"{row['num_far']} far"
            if row["num_far"]
            else "",
        )
        for row in document["targets"]
    ]
    header = ("target", "domain", "points", "distance", "largest", "")
    return columns(header, rows) if rows else []
