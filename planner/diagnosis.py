"""What a reviewer would ask of fitted exponents: do they hang on single runs, on the range, on what was held?

For every axis of a domain, under one additive law: the local slopes between neighbouring values where only that axis
differs; the exponent with each rung left out in turn; without the two ends; and from the runs whose other axes are low
or high.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.errors import InputError

if TYPE_CHECKING:
    from planner.records import Outcome
    from planner.spec import StudySpec

LAW = "sum_of_powers"
_MOST_RUNGS = 8
_BINS = 6
_LEAST_RUNS = 4
_DRAWS = 400


def diagnose(spec: StudySpec, outcomes: Sequence[Outcome], domain: str, *, law: str = LAW) -> dict[str, Any]:
    """Plain values: `law`, `domain`, and for every axis `exponent`, `slopes`, `left_out`, `largest_shift`, `inner`
    (without the lowest and the highest rung) and `held` (other axes below or above their middle).

    An exponent is quantiles of its posterior, None where too few runs are left.  Raises `InputError` for a law without
    an exponent for every axis, and for a domain with fewer than four runs.
    """
    index = spec.domain_index(domain)
    runs = [o for o in outcomes if o.design.domain == domain and o.response is not None]
    if len(runs) < _LEAST_RUNS:
        raise InputError(f"domain {domain!r} has {len(runs)} completed runs: a diagnosis needs {_LEAST_RUNS}")
    others = [o for o in outcomes if o.design.domain != domain]
    fit = _Fit(spec, law, index, others)
    x = np.array([[o.design.axes[name] for name in spec.axis_names] for o in runs])
    exponents = fit.exponents(runs)
    axes = []
    for a, axis in enumerate(spec.axes):
        if axis.source_of is not None or len(np.unique(x[:, a])) < 2:
            continue
        rungs = _rungs(x[:, a])
        levels = np.unique(rungs)
        left_out = [
            {
                "value": float(np.median(x[rungs == level, a])),
                **_of(fit.exponents(_kept(runs, rungs != level)), axis.name),
            }
            for level in levels
        ]
        whole = exponents[axis.name] if exponents else None
        shifts = [abs(each["median"] - whole["median"]) for each in left_out if whole and each["median"] is not None]
        inner = _kept(runs, (rungs != levels[0]) & (rungs != levels[-1]))
        axes.append(
            {
                "axis": axis.name,
                "exponent": whole,
                "slopes": local_slopes(spec, runs, a),
                "left_out": left_out,
                "largest_shift": max(shifts, default=None),
                "inner": _of(fit.exponents(inner), axis.name),
                "held": {name: _of(fit.exponents(_kept(runs, keep)), axis.name) for name, keep in _held(x, a).items()},
            }
        )
    return {"domain": domain, "law": law, "num_runs": len(runs), "axes": axes}


def local_slopes(spec: StudySpec, runs: Sequence[Outcome], axis: int) -> list[dict[str, float]]:
    """Slopes -d log eta / d log x between neighbouring values of an axis, of runs that agree on all others.

    eta is the response on the scale of the laws (-log p for success rates), no floor taken off; `se` follows from known
    errors.  Repeats are averaged.  Nothing where eta is not positive.
    """
    from planner.encoding import ResponseScale, response_moments

    scale = ResponseScale(spec.response.link, spec.response.goal)
    sweeps: dict[tuple[float, ...], dict[float, list[tuple[float, float]]]] = {}
    for run in runs:
        moments = response_moments(run, spec)
        response = np.array([moments[0]])
        eta, se = float(scale.to_eta(response)[0]), float(moments[1] * scale.slope(response)[0])
        point = [run.design.axes[name] for name in spec.axis_names]
        value = point.pop(axis)
        if eta > 0:
            sweeps.setdefault(tuple(point), {}).setdefault(value, []).append((eta, se))
    found = []
    for sweep in sweeps.values():
        values = sorted(sweep)
        mean = {v: np.mean([e for e, _ in sweep[v]]) for v in values}
        error = {v: np.sqrt(np.sum([s**2 for _, s in sweep[v]])) / len(sweep[v]) / mean[v] for v in values}
        for low, high in itertools.pairwise(values):
            step = np.log(high / low)
            slope = float(-np.log(mean[high] / mean[low]) / step)
            se = float(np.hypot(error[low], error[high]) / step)
            found.append({"from": low, "to": high, "slope": slope, "se": se})
    return sorted(found, key=lambda each: (each["from"], each["to"]))


class _Fit:
    """Fits of one law to parts of the runs of a domain, those of other domains always among them."""

    def __init__(self, spec: StudySpec, law: str, domain: int, others: Sequence[Outcome]) -> None:
        from planner import candidates
        from planner.spec.sections import Laws

        self.spec = spec.model_copy(update={"laws": Laws(use=(law,))})
        self.domain, self.others = domain, others
        self.designs = candidates.all_designs(spec)
        self.aims = self.designs.take(np.zeros(0, dtype=np.int64))
        self.warm: Any = None

    def exponents(self, runs: Sequence[Outcome]) -> dict[str, dict[str, float]] | None:
        """Quantiles of every axis' exponent; None with too few runs."""
        from planner import inference

        if len(runs) < _LEAST_RUNS:
            return None
        outcomes = [*self.others, *runs]
        posterior = inference.fit_study(
            self.spec, outcomes, self.designs, self.aims, num_draws=_DRAWS, seed=self.spec.seed, warm=self.warm
        )
        self.warm = self.warm or posterior
        part = posterior.parts[0]
        names = [parameter.name for parameter in part.law.law.parameters(part.law.context)]
        found = {}
        for axis in self.spec.axes:
            name = f"log_exponent_{axis.name}"
            if axis.source_of is not None:
                continue
            if name not in names:
                raise InputError(f"law {part.law.law.name!r} has no exponent for axis {axis.name!r}; use {LAW!r}")
            levels = np.quantile(np.exp(part.theta[:, self.domain, names.index(name)]), [0.5, 0.05, 0.95])
            found[axis.name] = dict(zip(("median", "q05", "q95"), map(float, levels), strict=True))
        return found


def _of(exponents: dict[str, dict[str, float]] | None, axis: str) -> dict[str, Any]:
    return dict(exponents[axis]) if exponents else {"median": None, "q05": None, "q95": None}


def _kept(runs: Sequence[Outcome], keep: np.ndarray) -> list[Outcome]:
    return [run for run, kept in zip(runs, keep, strict=True) if kept]


def _rungs(values: np.ndarray) -> np.ndarray:
    """Which rung of an axis each run stands on: its value, or one of six equal parts where there are many values."""
    levels, index = np.unique(values, return_inverse=True)
    if len(levels) <= _MOST_RUNGS:
        return index
    edges = np.quantile(values, np.linspace(0, 1, _BINS + 1)[1:-1])
    return np.unique(np.searchsorted(edges, values, side="right"), return_inverse=True)[1]


def _held(x: np.ndarray, axis: int) -> dict[str, np.ndarray]:
    """Runs whose other axes stand, on average over their ranks, in the lower and in the upper half."""
    others = np.delete(x, axis, axis=1)
    if not others.shape[1] or (others == others[0]).all():
        return {}
    rank = np.mean([np.searchsorted(np.sort(column), column) / len(column) for column in others.T], axis=0)
    middle = np.median(rank)
    return {"low": rank <= middle, "high": rank >= middle}
