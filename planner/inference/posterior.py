"""The posterior of a study: draws of every law with their weights, and what they predict."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from planner import encoding as encodings
from planner import laws
from planner.inference import discrepancy
from planner.inference.data import BoundLaw, bind, swell
from planner.inference.draws import LawDraws
from planner.inference.heights import Heights
from planner.laws.base import Context
from planner.records import DesignTable

if TYPE_CHECKING:
    from planner.inference.laplace import LawFit
    from planner.spec import StudySpec


_SAVED = ("theta", "weights", "noise_sd", "discrepancy_sd", "growth", "curve_sd")


@dataclasses.dataclass(frozen=True, kw_only=True)
class StudyPosterior:
    """Draws from the average over laws.  S draws in all, split over the laws in proportion to their weights."""

    encoding: encodings.Encoding
    basis: discrepancy.Basis
    heights: Heights
    parts: Sequence[LawDraws]
    weights: np.ndarray  # (laws,) model weights, sum to one
    runs: np.ndarray  # (R, 1 + A) domain index and coordinates of the completed runs
    temper: float = 1.0  # how much of the evidence between laws their weights heed
    notes: Sequence[str] = ()
    flags: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    fits: Sequence[LawFit] = ()  # not saved

    @property
    def law_names(self) -> list[str]:
        """Names of the laws, in the order of `weights`."""
        return [part.law.law.name for part in self.parts]

    @property
    def num_draws(self) -> int:
        """S."""
        return sum(len(part.theta) for part in self.parts)

    def _eta_draws(self, domain: np.ndarray, x: np.ndarray, *, noisy: bool) -> np.ndarray:
        coordinates = self.encoding.coordinates(x)
        domain = np.asarray(domain, dtype=int)
        phi, missed = discrepancy.features(self.basis, coordinates)
        height = self.heights.at(domain, coordinates)
        rng = np.random.default_rng(len(self.runs))
        pieces = []
        for part in self.parts:
            if not len(part.theta):
                continue
            eta = part.law.value_at(part.theta[:, domain], coordinates)
            swollen, bend = swell(part.growth, height)
            eta = eta + bend * np.einsum("spm,pm->sp", part.weights[:, domain], phi)
            eta = eta + bend * part.discrepancy_sd[:, None] * np.sqrt(missed) * rng.standard_normal(eta.shape)
            if noisy:
                eta = eta + swollen * part.noise_sd[:, None] * rng.standard_t(4.0, eta.shape)
                eta = eta + bend * part.curve_sd[:, None] * rng.standard_normal(eta.shape)
            pieces.append(np.maximum(eta, part.law.context.lower))
        return np.concatenate(pieces)

    def eta_draws(self, domain: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Mean responses on the scale of the laws (smaller is better), discrepancy included, (S, P).

        Args:
            domain: indices of the points' domains, (P,).
            x: raw axis values, (P, A).
        """
        return self._eta_draws(domain, x, noisy=False)

    def mean_draws(self, domain: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Mean responses in raw units, (S, P); arguments as for `eta_draws`."""
        return self.encoding.scale.from_eta(self._eta_draws(domain, x, noisy=False))

    def response_draws(self, domain: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Responses of new runs in raw units, noise included, (S, P); arguments as for `eta_draws`."""
        return self.encoding.scale.from_eta(self._eta_draws(domain, x, noisy=True))

    def noise_scales(self, domain: np.ndarray, x: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Scale of the Student-t noise and standard deviation of the effect of new runs at points, (S, P) each.

        Args:
            domain: indices of the points' domains, (P,).
            x: raw axis values, (P, A).
        """
        height = self.heights.at(np.asarray(domain, dtype=int), self.encoding.coordinates(x))
        growth, noise, curve = (
            np.concatenate([getattr(part, name) for part in self.parts])[:, None]
            for name in ("growth", "noise_sd", "curve_sd")
        )
        swollen, bend = swell(growth[:, 0], height)
        return noise * swollen, curve * bend

    def distance(self, domain: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Distance (P,) to the nearest completed run of the domain, in spreads of the designs; inf if it has none."""
        points = self.encoding.coordinates(x) / self.encoding.spread
        result = np.full(len(points), np.inf)
        for g in np.unique(domain):
            mine = self.runs[self.runs[:, 0] == g, 1:] / self.encoding.spread
            at = np.flatnonzero(np.asarray(domain) == g)
            if len(mine):
                gaps = points[at][:, None, :] - mine[None]
                result[at] = np.sqrt((gaps**2).sum(-1)).min(axis=1)
        return result

    def to_arrays(self) -> dict[str, np.ndarray]:
        """Everything needed to answer again, as plain arrays."""
        arrays = {
            "weights": self.weights,
            "runs": self.runs,
            "notes": np.array(list(self.notes), dtype=str),
            "law_names": np.array(self.law_names, dtype=str),
            "spread": self.encoding.spread,
            "middle": self.encoding.middle,
            **{f"basis.{name}": value for name, value in self.basis._asdict().items()},
            **{f"heights.{name}": value for name, value in self.heights._asdict().items()},
            **{f"context.{name}": np.asarray(value) for name, value in self.parts[0].law.context._asdict().items()},
            **{f"flag.{name}": np.asarray(value) for name, value in self.flags.items()},
        }
        for i, part in enumerate(self.parts):
            for name in _SAVED:
                arrays[f"part{i}.{name}"] = getattr(part, name)
        return arrays


def from_arrays(spec: StudySpec, arrays: Mapping[str, np.ndarray]) -> StudyPosterior:
    """The posterior that `to_arrays` wrote, for the same study."""
    none = DesignTable(
        domain=np.zeros(0, dtype=np.int64),
        x=np.zeros((0, len(spec.axes))),
        cost=np.zeros(0),
        row=np.zeros(0, dtype=np.int64),
    )
    encoding = dataclasses.replace(
        encodings.make_encoding(spec, none), spread=arrays["spread"], middle=arrays["middle"]
    )
    context = Context(**{name: arrays[f"context.{name}"] for name in Context._fields})
    parts = []
    for i, law in enumerate(laws.select(encoding.axes, [str(name) for name in arrays["law_names"]])):
        bound: BoundLaw = bind(law, context)
        parts.append(LawDraws(bound, *(arrays[f"part{i}.{name}"] for name in _SAVED)))
    return StudyPosterior(
        encoding=encoding,
        basis=discrepancy.Basis(**{name: arrays[f"basis.{name}"] for name in discrepancy.Basis._fields}),
        heights=Heights(**{name: arrays[f"heights.{name}"] for name in Heights._fields}),
        parts=parts,
        weights=arrays["weights"],
        runs=arrays["runs"],
        notes=[str(note) for note in arrays["notes"]],
        flags={name.removeprefix("flag."): arrays[name].item() for name in arrays if name.startswith("flag.")},
    )
