"""The bridge between records and arrays: links, coordinates, domains, padding.

Logarithms are taken here, in numpy float64, before anything reaches JAX (which turns a large int64 into a small one
in silence).  The scale on which laws are written is called eta: the link is applied and smaller is better.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from planner.inference import discrepancy
from planner.inference.data import FitData, bucket
from planner.inference.heights import Heights, fit_heights
from planner.laws.base import Context, LawAxis, law_axes

if TYPE_CHECKING:
    from planner.records import DesignTable, Outcome
    from planner.spec import StudySpec

# Discrepancy length in spreads of each axis over the designs: a long one bends a law instead of fuzzing it.
DISCREPANCY_LENGTH = 3.0
NUM_FEATURES = 40
_BASIS_POINTS = 500
_MIN_LOG_SPREAD = 0.3
_TINY = 1e-12


@dataclasses.dataclass(frozen=True)
class ResponseScale:
    """Maps raw responses to eta and back.  `link` and `goal` as in the study file."""

    link: str
    goal: str

    @property
    def _sign(self) -> float:
        if self.link == "neg_log":
            return 1.0 if self.goal == "maximise" else -1.0
        return 1.0 if self.goal == "minimise" else -1.0

    def to_eta(self, response: np.ndarray) -> np.ndarray:
        """eta of raw responses; shares at 0 or 1 are moved inside by 1e-12 before a log or logit."""
        if self.link == "identity":
            return self._sign * response
        if self.link == "log":
            return self._sign * np.log(np.maximum(response, _TINY))
        if self.link == "neg_log":
            return -self._sign * np.log(np.clip(response, _TINY, 1.0))
        inside = np.clip(response, _TINY, 1.0 - _TINY)
        return self._sign * (np.log(inside) - np.log1p(-inside))

    def from_eta(self, eta: np.ndarray) -> np.ndarray:
        """Raw responses of eta."""
        value = self._sign * eta
        if self.link == "identity":
            return value
        if self.link == "log":
            return np.exp(np.minimum(value, 700.0))
        if self.link == "neg_log":
            return np.exp(np.minimum(-value, 0.0))
        return 0.5 * (1.0 + np.tanh(0.5 * value))

    def slope(self, response: np.ndarray) -> np.ndarray:
        """|d eta / d response|: what a standard error is multiplied by."""
        if self.link == "identity":
            return np.ones_like(response)
        if self.link == "logit":
            inside = np.clip(response, _TINY, 1.0 - _TINY)
            return 1.0 / (inside * (1.0 - inside))
        return 1.0 / np.maximum(np.abs(response), _TINY)

    def lower_bound(self, spec_lower: float | None, spec_upper: float | None, observed: np.ndarray) -> float:
        """The physical lower bound of eta, -inf if there is none.

        An undeclared bound of a quantity to minimise is taken to be 0 as long as every response seen is positive.
        """
        if self.link == "neg_log" and self.goal == "maximise":
            return 0.0
        if self.link != "identity":
            return -np.inf
        if self.goal == "maximise":
            return -np.inf if spec_upper is None else -float(spec_upper)
        if spec_lower is not None:
            return float(spec_lower)
        return 0.0 if len(observed) and observed.min() > 0 else -np.inf


@dataclasses.dataclass(frozen=True)
class Encoding:
    """How a study's designs become coordinates.  A axes, G domains, Q shared rows."""

    axes: tuple[LawAxis, ...]
    spread: np.ndarray  # (A,)
    middle: np.ndarray  # (A,) of the designs
    domain_names: tuple[str, ...]
    design: np.ndarray  # (G, Q) population column, then one column a factor level
    scale: ResponseScale

    def coordinates(self, x: np.ndarray) -> np.ndarray:
        """Coordinates (..., A) of raw axis values (..., A): natural logs of log axes."""
        x = np.asarray(x, dtype=np.float64)
        is_log = np.array([axis.is_log for axis in self.axes])
        # Nothing of a source has a place of its own among the logarithms.
        least = np.array([0.0 if axis.log_zero is None else np.exp(axis.log_zero) for axis in self.axes])
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(is_log, np.log(np.where(is_log, np.maximum(x, least), 1.0)), x)


def factor_design(factors: Sequence[dict[str, str]]) -> np.ndarray:
    """Which shared rows each domain adds up, (G, Q): the population, then every level of every informative factor.

    A factor with one level says nothing, one with a level for each domain says what the domain itself says.
    """
    num_domains = len(factors)
    columns = [np.ones(num_domains)]
    for name in sorted({key for f in factors for key in f}):
        values = [f.get(name) for f in factors]
        levels = sorted({v for v in values if v is not None})
        if 1 < len(levels) < num_domains:
            columns += [np.array([float(v == level) for v in values]) for level in levels]
    return np.stack(columns, axis=1)


def make_encoding(spec: StudySpec, designs: DesignTable) -> Encoding:
    """The encoding of a study; its spread is that of all designs, so that it does not move with the ledger."""
    axes = law_axes(spec.axes)
    scale = ResponseScale(spec.response.link, spec.response.goal)
    factors = [dict(d.factors) for d in spec.domains]
    blank = Encoding(axes, np.ones(len(axes)), np.zeros(len(axes)), spec.domain_names, factor_design(factors), scale)
    box = np.array([[a.low for a in spec.axes], [a.high for a in spec.axes]], dtype=np.float64)
    coordinates = blank.coordinates(designs.x if len(designs) else box)
    least = np.array([_MIN_LOG_SPREAD if axis.is_log else 1e-3 for axis in axes])
    spread = np.maximum(coordinates.std(axis=0), least)
    return dataclasses.replace(blank, spread=spread, middle=coordinates.mean(axis=0))


def response_moments(outcome: Outcome, spec: StudySpec) -> tuple[float, float]:
    """Raw response and its known standard error (0 if unknown) of a completed run.

    Success counts are smoothed by half a success and half a failure, so that 0 of 200 stays finite and wide.
    """
    trials = outcome.trials
    if trials is None and spec.response.noise == "binomial" and isinstance(spec.response.trials, (int, float)):
        trials = float(spec.response.trials)
    if spec.response.noise == "binomial" and trials:
        successes = outcome.successes
        if successes is None:
            successes = float(outcome.response or 0.0) * trials
        share = (successes + 0.5) / (trials + 1.0)
        return share, float(np.sqrt(share * (1.0 - share) / trials))
    assert outcome.response is not None
    return float(outcome.response), float(outcome.se or 0.0)


def encode(
    spec: StudySpec,
    encoding: Encoding,
    outcomes: Sequence[Outcome],
    designs: DesignTable,
    targets: DesignTable,
) -> tuple[FitData, discrepancy.Basis, Heights]:
    """Completed runs as padded arrays by domain, the discrepancy basis over runs, designs and targets, and heights."""
    completed = [o for o in outcomes if o.is_measured]
    num_axes, num_domains = len(encoding.axes), len(encoding.domain_names)
    index = {name: i for i, name in enumerate(encoding.domain_names)}
    raw = np.array([[o.design.axes[a.name] for a in encoding.axes] for o in completed]).reshape(-1, num_axes)
    coordinates = encoding.coordinates(raw)
    domain = np.array([index[o.design.domain] for o in completed], dtype=int)
    cost = np.array([o.cost for o in completed])
    moments = np.array([response_moments(o, spec) for o in completed]).reshape(-1, 2)
    eta = encoding.scale.to_eta(moments[:, 0])
    known_var = (moments[:, 1] * encoding.scale.slope(moments[:, 0])) ** 2

    context = _context(spec, encoding, coordinates, eta, moments[:, 0])
    basis = _basis(encoding, coordinates, designs, targets)
    heights = fit_heights(domain, coordinates, eta, num_domains=num_domains, scale=float(context.scale))
    num_rows = bucket(int(np.bincount(domain, minlength=num_domains).max()) if len(domain) else 1)
    shape = (num_domains, num_rows)
    slot = _slots(domain)
    is_real = np.zeros(shape, dtype=bool)
    is_real[domain, slot] = True

    def place(values: np.ndarray, fill: float | np.ndarray) -> np.ndarray:
        padded = np.broadcast_to(np.asarray(fill, dtype=np.float64), (*shape, *values.shape[1:])).copy()
        padded[domain, slot] = values
        return padded

    placed = place(coordinates, context.centre)
    phi, missed = discrepancy.features(basis, placed)
    rank = np.argsort(np.argsort(cost, kind="stable"), kind="stable")
    data = FitData(
        y=place(eta, 0.0),
        coordinates=placed,
        is_real=is_real,
        known_var=place(known_var, 0.0),
        order=place(rank, 1e9),
        phi=phi * is_real[..., None],
        missed=missed * is_real,
        curve=place(_training_runs(completed, domain), 0.0),
        height=place(heights.at(domain, coordinates)[:, None], 0.0),
        design=encoding.design,
        context=context,
    )
    return data, basis, heights


def _training_runs(completed: Sequence[Outcome], domain: np.ndarray) -> np.ndarray:
    """Which training run each row is a checkpoint of, as columns of zeros and ones, (R, K).

    No columns where every row is a run of its own, since the effect of a run is then part of the noise.
    """
    names = [(int(g), o.curve or f"\n{o.run_id}") for g, o in zip(domain, completed, strict=True)]
    runs = {name: k for k, name in enumerate(dict.fromkeys(names))}
    if len(runs) == len(names):
        return np.zeros((len(names), 0))
    return np.eye(bucket(len(runs)))[[runs[name] for name in names]]


def _slots(domain: np.ndarray) -> np.ndarray:
    """The place of each run within its domain."""
    seen: dict[int, int] = {}
    slots = np.empty(len(domain), dtype=int)
    for i, g in enumerate(domain):
        slots[i] = seen.get(int(g), 0)
        seen[int(g)] = int(slots[i]) + 1
    return slots


def _context(
    spec: StudySpec, encoding: Encoding, coordinates: np.ndarray, eta: np.ndarray, response: np.ndarray
) -> Context:
    expected = encoding.scale.to_eta(np.array(_expected_range(spec)))
    if len(eta) == 0:
        reference, spread_y, centre = float(expected.mean()), float(np.ptp(expected)) / 4.0, encoding.middle
    else:
        reference, centre = float(np.median(eta)), coordinates.mean(axis=0)
        # With very few runs their own spread says little: lean on a third of the level.
        fallback = float(np.ptp(expected)) / 4.0 if spec.response.expect else 0.3 * abs(reference)
        spread_y = float(np.sqrt((np.var(eta) * len(eta) + 2.0 * fallback**2) / (len(eta) + 2.0)))
        spread_y = spread_y if len(eta) < 8 else float(np.std(eta))
    spread_y = max(spread_y, 1e-6 * max(abs(reference), 1e-6))
    lower = encoding.scale.lower_bound(spec.response.lower, spec.response.upper, response)
    if len(eta) == 0 and spec.response.lower is None and spec.response.link == "identity" and expected.min() > 0:
        lower = 0.0
    if np.isfinite(lower) and reference <= lower:
        reference = lower + spread_y
    return Context(centre, encoding.spread, np.asarray(reference), np.asarray(spread_y), np.asarray(lower))


def _expected_range(spec: StudySpec) -> tuple[float, float]:
    """The rough range of responses before any run: declared, or a usual one for the link."""
    if spec.response.expect is not None:
        low, high = spec.response.expect
        return float(low), float(high)
    return (0.05, 0.95) if spec.response.link in ("neg_log", "logit") else (1.0, 5.0)


def _basis(
    encoding: Encoding, coordinates: np.ndarray, designs: DesignTable, targets: DesignTable
) -> discrepancy.Basis:
    rng = np.random.default_rng(0)

    def some(table: DesignTable, most: int) -> np.ndarray:
        x = table.x if len(table) <= most else table.x[rng.choice(len(table), most, replace=False)]
        return encoding.coordinates(x)

    points = np.concatenate([coordinates[:_BASIS_POINTS], some(targets, 200), some(designs, _BASIS_POINTS)])
    points = points[np.isfinite(points).all(axis=1)]
    if not len(points):
        points = encoding.middle[None]
    return discrepancy.choose_basis(points, encoding.spread * DISCREPANCY_LENGTH, num_features=NUM_FEATURES)
