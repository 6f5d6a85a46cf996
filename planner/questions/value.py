"""What more would be worth: the next unit of budget on each axis of a run, and the next experiment of the study."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from planner import candidates
from planner.errors import InputError, NothingAffordable
from planner.questions.answer import Answer, quantiles

if TYPE_CHECKING:
    from planner.inference import StudyPosterior
    from planner.questions.setting import Setting
    from planner.records import StudyState

MORE = 0.1  # of the cost of a run, what one axis alone is given
_MAX_CANDIDATES = 1500
_NODES = 200  # outcomes of equal probability; the kinks of a minimum make a Gauss rule err by a quarter


def value_answer(
    setting: Setting, budget: float, state: StudyState, experiments: Sequence[Mapping[str, float]]
) -> Answer:
    """Worth of more budget at the recipe of `budget`, and of experiments: the best affordable ones and those given.

    Args:
        experiments: designs in this domain, values for every axis in raw units.
    """
    import pandas as pd

    axes, point, found = _axes(setting, budget)
    values = {
        "budget": budget,
        "unit": setting.spec.cost.unit,
        "at": dict(zip(setting.spec.axis_names, point.tolist(), strict=True)),
        "value": quantiles(found / budget),
    }
    tables = {"axes": pd.DataFrame(axes)}
    notes = list(setting.posterior.notes)
    if setting.spec.targets:
        rows, regret = _experiments(setting, budget, state, experiments)
        tables["experiments"] = pd.DataFrame(rows)
        values["regret"] = regret
    elif experiments:
        raise InputError("what an experiment is worth needs [[targets]]: say what the study is to find out")
    else:
        notes.append("the study has no [[targets]]: nothing is said of experiments")
    return Answer(question="value", domain=setting.domain, values=values, tables=tables, notes=notes)


def _axes(setting: Setting, budget: float) -> tuple[list[dict[str, Any]], np.ndarray, np.ndarray]:
    """Rows for the axes at the recipe of the budget; the recipe (A,), raw; and multipliers of the log budget (S,)."""
    from planner.recipe import curves
    from planner.recipe.curves import double_precision
    from planner.recipe.problem import largest_step

    box, _ = setting.box(budget * (1.0 + MORE))
    optima = setting.solve(budget, box)
    log_x = setting.allocation(budget, box, optima.log_x[optima.converged])
    with double_precision():
        gradient = np.concatenate(
            [
                curves.curves(law, np.arange(law.num_draws), np.repeat(log_x[:, None], law.num_draws, axis=1)).gradient
                for law in setting.laws
            ],
            axis=1,
        )
    elasticity, cost = setting.cost.elasticity(log_x), float(np.exp(setting.cost.log_cost(log_x)))
    with np.errstate(divide="ignore", invalid="ignore"):
        per_unit = np.where(elasticity[:, None] > 0, -gradient / (elasticity[:, None] * cost), np.nan)
    along = np.diag(np.maximum(box.high - log_x, 0.0))
    more = float(np.log(cost * (1.0 + MORE)))
    raised = log_x + largest_step(setting.cost, more, log_x, along, box.limits)[:, None] * along
    points = box.raw(np.concatenate([log_x[None], raised]))
    raw = setting.posterior.encoding.scale.from_eta(setting.responses(points))
    sign = -1.0 if setting.spec.response.goal == "maximise" else 1.0
    gain = sign * (raw[:, :1] - raw[:, 1:])
    good = np.isfinite(gain).all(axis=1)
    best = np.argmax(gain[good], axis=1)
    rows = [
        {
            "axis": name,
            "at": float(points[0, a]),
            **quantiles(per_unit[a], "value_"),
            **quantiles(gain[good, a], "gain_"),
            "best": float((best == a).mean()) if good.any() else float("nan"),
        }
        for a, name in enumerate(setting.spec.axis_names)
    ]
    return rows, points[0], optima.multiplier[optima.converged]


def _experiments(
    setting: Setting, budget: float, state: StudyState, given: Sequence[Mapping[str, float]]
) -> tuple[list[dict[str, Any]], float]:
    """Rows for the best affordable experiments and for those given; the expected regret now."""
    from planner.design import targets

    spec, posterior = setting.spec, setting.posterior
    table = candidates.candidate_designs(spec, state)
    kept = np.unique(np.linspace(0, len(table) - 1, min(_MAX_CANDIDATES, len(table))).astype(int))
    table = table.take(kept) if len(table) else table
    own = np.array([spec.point(design) for design in given]).reshape(-1, len(spec.axes))
    if not len(table) and not len(own):
        raise NothingAffordable("no experiment is affordable with what is left of the budget; name one to judge it")
    domain = np.concatenate([table.domain, np.full(len(own), setting.index)]).astype(int)
    x = np.concatenate([table.x.reshape(-1, len(spec.axes)), own])
    cost = np.concatenate([table.cost, spec.costs(np.full(len(own), setting.index), own)])
    aims = targets.target_points(spec, posterior, candidates.target_points(spec))
    wanted = targets.allocations(spec, posterior, setting.domain, budget)
    outcome = posterior.eta_draws(domain, x)
    spread = np.sqrt(outcome.var(axis=0) + _noise_var(posterior, domain, x))
    of_aims = posterior.eta_draws(aims.domain, aims.x)
    of_aims = of_aims if aims.rows is None else of_aims @ aims.rows.T
    fall = (_covariance(outcome, of_aims) ** 2).sum(axis=1) / spread**2 / of_aims.var(axis=0).sum()
    choices = posterior.eta_draws(wanted.domain, wanted.x)
    mean = choices.mean(axis=0)
    regret = float(mean.min() - choices.min(axis=1).mean())
    worth = _worth(mean, _covariance(outcome, choices) / spread[:, None])
    picks = []
    if len(table):
        picks = [("best for the targets", int(np.argmax(fall[: len(table)])))]
        picks += [("best for the recipe", int(np.argmax(worth[: len(table)])))]
        picks += [("best for the targets per cost", int(np.argmax((fall / cost)[: len(table)])))]
    picks += [("given", len(table) + i) for i in range(len(own))]
    rows = [
        {
            "what": what,
            "domain": spec.domain_names[domain[i]],
            **dict(zip(spec.axis_names, x[i].tolist(), strict=True)),
            "cost": float(cost[i]),
            "variance_fall": float(min(fall[i], 1.0)),
            "regret_fall": float(worth[i]),
        }
        for what, i in picks
    ]
    return rows, regret


def _noise_var(posterior: StudyPosterior, domain: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Of one run at each point (P,), averaged over draws: Student-t noise of 4 degrees has twice its squared scale."""
    noise_sd, curve_sd = posterior.noise_scales(domain, x)
    return (2.0 * noise_sd**2 + curve_sd**2).mean(axis=0)


def _covariance(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Of the columns of (S, C) and (S, T); (C, T)."""
    return (first - first.mean(axis=0)).T @ (second - second.mean(axis=0)) / len(first)


def _worth(mean: np.ndarray, step: np.ndarray) -> np.ndarray:
    """Expected fall of the lowest mean response over K allocations by one experiment each, (C,).

    The knowledge gradient min_k mu_k - E min_k (mu_k + s_k Z), Z standard normal (Frazier et al. 2009).

    Args:
        mean: expected responses now, (K,).
        step: how far a one-sigma outcome of each experiment moves them, (C, K).
    """
    from scipy.special import ndtri

    outcome = ndtri((np.arange(_NODES) + 0.5) / _NODES)
    after = np.array([(mean[:, None] + one[:, None] * outcome).min(axis=0).mean() for one in step])
    return np.maximum(mean.min() - after, 0.0)
