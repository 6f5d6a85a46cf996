"""`[response]`: what is measured, on which scale laws see it, and how noisy it is."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, Self

import pydantic

from planner.spec.fields import Complaint, Label, Number, Section, complain, read_whole, refuse


class Response(Section):
    """`[response]`: what is measured.  `lower`, `upper` and `expect` are in raw units, before the link.

    After loading, `goal`, `lower` and `upper` hold what the link implies where the file is silent.
    """

    name: Label = "loss"
    unit: str = ""
    link: Literal["identity", "log", "neg_log", "logit"] = "identity"
    goal: Literal["minimise", "maximise"] = "minimise"
    lower: Number | None = None
    upper: Number | None = None
    noise: Literal["student_t", "gaussian", "binomial"] = "student_t"
    se: Label | None = None
    trials: int | str | None = None
    expect: tuple[Number, Number] | None = None

    @property
    def is_score(self) -> bool:
        """Whether it may be a score between chance and a ceiling: maximised, or a share."""
        return self.goal == "maximise" or (self.lower, self.upper) == (0.0, 1.0)

    @pydantic.model_validator(mode="before")
    @classmethod
    def _fill_from_link(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        spelling = {"minimize": "minimise", "maximize": "maximise"}
        if isinstance(data.get("goal"), str):
            data["goal"] = spelling.get(data["goal"], data["goal"])
        if isinstance(data.get("expect"), list):
            data["expect"] = tuple(data["expect"])
        share = data.get("link") in ("neg_log", "logit") or data.get("noise") == "binomial"
        if data.get("link") in ("neg_log", "logit"):
            data.setdefault("goal", "maximise")
        if share:
            data.setdefault("lower", 0.0)
            data.setdefault("upper", 1.0)
        elif data.get("link") == "log":
            data.setdefault("lower", 0.0)
        return data

    @pydantic.field_validator("trials", mode="before")
    @classmethod
    def _read_trials(cls, value: Any) -> Any:
        if isinstance(value, str | None):
            return value
        count = read_whole(value)
        if count < 1:
            raise complain("must be at least 1", "write the number of trials behind each rate, or a column's name")
        return count

    @pydantic.model_validator(mode="after")
    def _check(self) -> Self:
        refuse(self._complaints())
        return self

    def _complaints(self) -> Iterator[Complaint]:
        yield from self._bound_complaints()
        if self.noise == "binomial" and self.trials is None:
            yield Complaint(
                "trials", None, "binomial noise needs the number of trials", "add trials = 200, or the column's name"
            )
        if self.noise != "binomial" and self.trials is not None:
            yield Complaint(
                "trials", self.trials, "is read only with binomial noise", 'add noise = "binomial", or remove trials'
            )
        if self.noise == "binomial" and self.se is not None:
            yield Complaint("se", self.se, "binomial noise follows from trials", "remove se, or choose another noise")
        if self.link == "neg_log" and self.goal == "minimise":
            yield Complaint(
                "goal",
                self.goal,
                "link neg_log is -log of a success rate, which is better when higher",
                'write goal = "maximise"; for an error rate use link = "log"',
            )

    def _bound_complaints(self) -> Iterator[Complaint]:
        lower, upper = self.lower, self.upper
        if self.link == "log" and lower is not None and lower < 0:
            yield Complaint(
                "lower", lower, "link log needs responses above 0", 'use link = "identity", or raise lower to 0'
            )
        if self.link in ("neg_log", "logit") or self.noise == "binomial":
            why = f"link {self.link}" if self.link in ("neg_log", "logit") else "binomial noise"
            fix = 'give rates as shares of 1 (divide per cent by 100), or use link = "identity"'
            if lower is not None and not 0 <= lower < 1:
                yield Complaint("lower", lower, f"{why} needs responses between 0 and 1", fix)
            if upper is not None and not 0 < upper <= 1:
                yield Complaint("upper", upper, f"{why} needs responses between 0 and 1", fix)
        if lower is not None and upper is not None and not lower < upper:
            yield Complaint("lower", lower, f"must be below upper = {upper:g}", "exchange or widen the two bounds")
        if self.expect is None:
            return
        low, high = self.expect
        if not low < high:
            yield Complaint("expect", [low, high], "must be [low, high] with low < high", "exchange the two numbers")
        elif (lower is not None and low < lower) or (upper is not None and high > upper):
            bounds = f"[{'-inf' if lower is None else f'{lower:g}'}, {'inf' if upper is None else f'{upper:g}'}]"
            yield Complaint(
                "expect",
                [low, high],
                f"must lie within the response's bounds {bounds}",
                "narrow expect, or move lower or upper",
            )
        elif self.link != "identity" and low <= 0:
            yield Complaint(
                "expect",
                [low, high],
                f"link {self.link} needs expect above 0",
                "raise its first number a little above 0",
            )
        elif self.link == "logit" and high >= 1:
            yield Complaint(
                "expect", [low, high], "link logit needs expect below 1", "lower its second number a little"
            )
