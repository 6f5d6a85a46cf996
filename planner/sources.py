"""What bought sources are worth: posteriors of their discounts, where they collapse, what an effective unit costs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from planner.inference import StudyPosterior
    from planner.spec import StudySpec

# A source has collapsed where the response is this part of what the real units alone give (He et al. 2026, table 3).
COLLAPSED = 0.95
_RATIOS = np.geomspace(0.02, 200.0, 121)
_STEP = 1e-3
_SEEN = 0.5  # a point is flagged once so many draws hold it to be beyond the collapse
QUANTILES = {"median": 0.5, "q05": 0.05, "q95": 0.95}


def source_names(spec: StudySpec) -> list[str]:
    """The axes that are other ways to buy one."""
    return [axis.name for axis in spec.axes if axis.source_of is not None]


def held_point(spec: StudySpec) -> np.ndarray:
    """The middle of every axis, raw units (A,), nothing bought of any source."""
    middle = [
        0.0 if a.source_of is not None else np.sqrt(a.low * a.high) if a.is_log else 0.5 * (a.low + a.high)
        for a in spec.axes
    ]
    return np.array(middle, dtype=np.float64)


def source_draws(posterior: StudyPosterior, domain: int, axis: str) -> np.ndarray:
    """Draws (S, 3) of log kappa_1, log log R and q of a source in a domain."""
    pieces = []
    for part in posterior.parts:
        if len(part.theta):
            names = [parameter.name for parameter in part.law.law.parameters(part.law.context)]
            first = names.index(f"log_discount_{axis}")
            pieces.append(part.theta[:, domain, first : first + 3])
    return np.concatenate(pieces)


def added_worth(posterior: StudyPosterior, domain: int, axis: str, ratios: np.ndarray) -> np.ndarray:
    """Draws (S, R) of r kappa(r): the real units per real unit that the source adds at ratios (R,)."""
    from planner.laws.sources import worth

    return worth(source_draws(posterior, domain, axis)[:, None, :], ratios, np)


def source_table(
    spec: StudySpec, posterior: StudyPosterior, domain: str, at: np.ndarray | None = None
) -> list[dict[str, Any]]:
    """One row a source: quantiles of kappa(1), of the break-even, peak and collapse ratios, and of prices.

    `collapse` is the ratio beyond its peak at which the response is `COLLAPSED` of the real-only one (None: not within
    200), with everything else as at `at` (A,), by default the middle of the axes; it depends on how far from the floor
    the real-only run is.  `price` is that of one more unit in the study's cost unit, `effective_price` at ratio 1 what
    one real unit's worth costs, `real_price` that of a real unit.
    """
    from planner.laws.sources import break_even_ratio, peak_ratio

    index = spec.domain_index(domain)
    point = held_point(spec) if at is None else np.asarray(at, dtype=np.float64)
    rows = []
    for name in source_names(spec):
        draws = source_draws(posterior, index, name)
        target = spec.axes[spec.axis_names.index(name)].source_of or ""
        price, real_price = (_price(spec, domain, point, each) for each in (name, target))
        discount = np.exp(draws[:, 0])
        rows.append(
            {
                "source": name,
                "of": target,
                "discount": _quantiles(discount),
                "break_even": _quantiles(break_even_ratio(draws)),
                "peak": _quantiles(peak_ratio(draws)),
                "collapse": _quantiles(collapse_ratios(spec, posterior, index, name, point)),
                "price": price,
                "real_price": real_price,
                "effective_price": _quantiles(price / discount),
                "probability_cheaper": float((price / discount < real_price).mean()),
            }
        )
    return rows


def collapse_ratios(
    spec: StudySpec, posterior: StudyPosterior, domain: int, axis: str, point: np.ndarray
) -> np.ndarray:
    """Draws (S,) of the ratio beyond its peak at which the response is `COLLAPSED` of the real-only one."""
    source = spec.axis_names.index(axis)
    target = spec.axis_names.index(spec.axes[source].source_of or "")
    x = np.repeat(point[None], len(_RATIOS) + 1, axis=0)
    x[:, source] = point[target] * np.append(0.0, _RATIOS)
    share = _share_of_real(posterior, domain, x)
    fallen = share < COLLAPSED
    # The last crossing from above: small amounts may do nothing, large ones harm for good.
    last_good = len(_RATIOS) - 1 - np.argmin(fallen[:, ::-1], axis=1)
    result = np.full(len(share), np.inf)
    crossed = np.flatnonzero(fallen[:, -1] & ~fallen.all(axis=1))
    low = last_good[crossed]
    before, after = share[crossed, low], share[crossed, low + 1]
    part = (before - COLLAPSED) / (before - after)
    result[crossed] = np.exp(np.log(_RATIOS[low]) + part * np.log(_RATIOS[low + 1] / _RATIOS[low]))
    result[fallen.all(axis=1)] = _RATIOS[0]
    return result


def _share_of_real(posterior: StudyPosterior, domain: int, x: np.ndarray) -> np.ndarray:
    """Responses (S, P - 1) at x[1:] over that at x[0], so that less is worse; the laws alone."""
    coordinates = posterior.encoding.coordinates(x)
    where = np.full(len(x), domain)
    eta = np.concatenate([p.law.value_at(p.theta[:, where], coordinates) for p in posterior.parts if len(p.theta)])
    response = np.maximum(posterior.encoding.scale.from_eta(eta), 1e-12)
    share = response[:, 1:] / response[:, :1]
    return share if posterior.encoding.scale.goal == "maximise" else 1.0 / share


def collapsed(spec: StudySpec, posterior: StudyPosterior, domain: np.ndarray, x: np.ndarray) -> list[list[str]]:
    """For each point (P, A), the sources of which it has more than they bear: the median draw has collapsed."""
    found: list[list[str]] = [[] for _ in x]
    for name in source_names(spec):
        source = spec.axis_names.index(name)
        for i in np.flatnonzero(x[:, source] > 0):
            pair = np.stack([x[i], x[i]])
            pair[0, source] = 0.0
            if (_share_of_real(posterior, int(domain[i]), pair)[:, 0] < COLLAPSED).mean() > _SEEN:
                found[i].append(name)
    return found


def _price(spec: StudySpec, domain: str, point: np.ndarray, axis: str) -> float:
    """What one more unit of an axis costs at a point."""
    a = spec.axis_names.index(axis)
    x = np.repeat(point[None], 2, axis=0)
    x[1, a] += max(_STEP * x[0, a], _STEP * spec.axes[a].low)
    cost = spec.costs(np.full(2, spec.domain_index(domain)), x)
    return float((cost[1] - cost[0]) / (x[1, a] - x[0, a]))


def _quantiles(draws: np.ndarray) -> dict[str, float | None]:
    # A ratio beyond the grid is infinite, and interpolating towards it is not a number.
    levels = np.quantile(draws, list(QUANTILES.values()), method="inverted_cdf")
    return {name: float(level) if np.isfinite(level) else None for name, level in zip(QUANTILES, levels, strict=True)}
