"""How many rollouts per problem a sampling budget wants: compute C = problems x rollouts x updates, split by draws.

For every posterior draw the best split of C is searched on a fine grid of rollouts and problems, updates being what is
left of C; with a fixed batch, problems are the batch over the rollouts.  Cheng et al. 2026 (IsoCompute Playbook,
arXiv:2603.12151) read the same off an envelope of fitted curves; maxima of noisy points, their record-breaking ones,
are kept for display only, because they are too high on average.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from planner.errors import InputError, NothingAffordable

if TYPE_CHECKING:
    from planner.inference import StudyPosterior
    from planner.records import Outcome
    from planner.spec import StudySpec

ROLES = ("rollouts", "problems", "updates")
_PER_DOUBLING = 4
# Budgets so many times the asked one show where the best number of rollouts ends.
_FAR = 1e4
_BINS = 40


def rollout_table(
    spec: StudySpec, posterior: StudyPosterior, domain: str, budgets: Sequence[float], *, batch: float | None = None
) -> list[dict[str, Any]]:
    """One row a budget of `problems x rollouts x updates`.

    Quantiles of the best rollouts n, problems and updates; `grows`, the probability that twice the budget wants more
    rollouts; `saturates`, the probability that n stays below the most that the study offers however large the budget.

    Args:
        batch: problems x rollouts, held fixed; None leaves both free within their ranges, unless a limit fixes it.

    Raises:
        InputError: the axes do not have these roles.
        NothingAffordable: a budget below one update of the smallest batch.
    """
    axes = _positions(spec)
    index = spec.domain_index(domain)
    batch = _fixed_batch(spec, axes) if batch is None else batch
    rows = []
    for budget in map(float, budgets):
        now = _best(spec, posterior, index, axes, budget, batch)
        more = _best(spec, posterior, index, axes, 2.0 * budget, batch)
        end = _best(spec, posterior, index, axes, _FAR * budget, batch)
        most = spec.axes[axes[0]].high
        rows.append(
            {
                "domain": domain,
                "budget": budget,
                **{role: _quantiles(values) for role, values in zip(ROLES, now.T, strict=True)},
                "grows": float((more[:, 0] > now[:, 0] * 1.001).mean()),
                "saturates": float((end[:, 0] < most * 0.999).mean()),
                "levels_off_at": _quantiles(end[:, 0]),
            }
        )
    return rows


def record_breaking(compute: np.ndarray, reward: np.ndarray, *, bins: int = _BINS) -> np.ndarray:
    """Indices of the points that enter a higher bin of reward than all cheaper ones, cheapest first."""
    order = np.lexsort((-reward, compute))
    width = max(float(np.ptp(reward)) / bins, 1e-12)
    level = np.floor((reward[order] - reward.min()) / width)
    best = np.maximum.accumulate(np.append(-1.0, level[:-1]))
    return order[level > best]


def frontier(spec: StudySpec, outcomes: Sequence[Outcome], domain: str) -> list[dict[str, float]]:
    """The record-breaking runs of a domain: compute, reward, rollouts; for display."""
    axes = _positions(spec)
    names = [spec.axis_names[a] for a in axes]
    own = [o for o in outcomes if o.design.domain == domain and o.response is not None]
    if not own:
        return []
    amounts = np.array([[o.design.axes[name] for name in names] for o in own])
    reward = np.array([float(o.response or 0.0) for o in own])
    sign = 1.0 if spec.response.goal == "maximise" else -1.0
    compute = amounts.prod(axis=1)
    return [
        {"compute": float(compute[i]), "rollouts": float(amounts[i, 0]), "response": float(reward[i])}
        for i in record_breaking(compute, sign * reward)
    ]


def _positions(spec: StudySpec) -> list[int]:
    roles = [axis.role for axis in spec.axes]
    missing = [role for role in ROLES if roles.count(role) != 1]
    if missing or len(roles) != len(ROLES):
        raise InputError(
            f"the split of a sampling budget needs exactly the axes with roles {', '.join(ROLES)};"
            f" this study has {', '.join(str(role) for role in roles)}"
        )
    return [roles.index(role) for role in ROLES]


def _fixed_batch(spec: StudySpec, axes: Sequence[int]) -> float | None:
    """The batch that `[[limits]]` fix, None where they do not."""
    names = {spec.axis_names[axes[0]]: 1.0, spec.axis_names[axes[1]]: 1.0}
    fixed = [limit.low for limit in spec.limits if dict(limit.powers) == names and limit.low == limit.high]
    return fixed[0] if fixed else None


def _best(
    spec: StudySpec,
    posterior: StudyPosterior,
    domain: int,
    axes: Sequence[int],
    budget: float,
    batch: float | None,
) -> np.ndarray:
    """The best split of a budget for every draw, (S, 3) in the order of `ROLES`."""
    points = _splits(spec, axes, budget, batch)
    x = np.zeros((len(points), len(spec.axes)))
    x[:, list(axes)] = points
    coordinates = posterior.encoding.coordinates(x)
    where = np.full(len(x), domain)
    best = [p.law.value_at(p.theta[:, where], coordinates).argmin(axis=1) for p in posterior.parts if len(p.theta)]
    return points[np.concatenate(best)]


def _splits(spec: StudySpec, axes: Sequence[int], budget: float, batch: float | None) -> np.ndarray:
    """Splits (P, 3) of a budget within the ranges of rollouts and problems and the limits on them."""
    rollouts, problems, updates = (spec.axes[a] for a in axes)
    n = _fine(rollouts.low, rollouts.high)
    if batch is None:
        grid = np.stack(np.meshgrid(n, _fine(problems.low, problems.high), indexing="ij"), axis=-1).reshape(-1, 2)
    else:
        grid = np.column_stack([n, batch / n])
        grid = grid[(grid[:, 1] >= problems.low * 0.999) & (grid[:, 1] <= problems.high * 1.001)]
    points = np.column_stack([grid, budget / grid.prod(axis=1)])
    points = points[points[:, 2] >= updates.low]
    x = np.zeros((len(points), len(spec.axes)))
    x[:, list(axes)] = points
    points = points[spec.within_limits(x)]
    if not len(points):
        held = "" if batch is None else f" with a batch of {batch:g}"
        raise NothingAffordable(
            f"{budget:g} buys no {updates.low:g} updates of any allowed number of rollouts and problems{held}"
        )
    return points


def _fine(low: float, high: float) -> np.ndarray:
    return np.geomspace(low, high, 1 + max(1, round(_PER_DOUBLING * float(np.log2(high / low)))))


def _quantiles(draws: np.ndarray) -> dict[str, float]:
    levels = np.quantile(draws, [0.5, 0.05, 0.95], method="inverted_cdf")
    return dict(zip(("median", "q05", "q95"), map(float, levels), strict=True))
