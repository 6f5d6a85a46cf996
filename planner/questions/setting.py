"""What every question about allocations begins with: the laws' draws in one domain, its cost, the ranges to search."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from planner.candidates import NOT_SCALED_ROLES
from planner.errors import InputError, NothingAffordable, UnreliableFit
from planner.limits import log_limits, require_feasible

if TYPE_CHECKING:
    from planner.inference import StudyPosterior
    from planner.inference.draws import LawDraws
    from planner.recipe.curves import RecipePart
    from planner.recipe.optimum import Optimum
    from planner.recipe.problem import Box, Posynomial
    from planner.recipe.rounding import AllowedValues
    from planner.spec import Axis, StudySpec

# How far beyond its declared range an axis is searched when the budget allows it.
MAX_EXTENSION = 1e12
NUM_STARTS = 3


@dataclass(frozen=True, kw_only=True)
class Setting:
    """One domain of a study as a recipe problem; S draws over all laws, A axes."""

    spec: StudySpec
    posterior: StudyPosterior
    domain: str
    index: int
    cost: Posynomial
    laws: list[RecipePart]

    def box(self, budget: float) -> tuple[Box, np.ndarray]:
        """The ranges and limits to search within, and which axes are searched beyond their declared range, (A,) bool.

        `low` and `high` bound the runs one would pay for now; what a larger budget should buy lies beyond `high`.
        `[[limits]]` hold for any budget.

        Raises `InputError` naming the limits that no point of the ranges keeps to.
        """
        from planner.recipe.problem import Box, cheapest_point, largest_step

        spec, cost = self.spec, self.cost
        is_log = np.array([axis.is_log for axis in spec.axes])
        limits = log_limits(spec)
        low, high = (np.where(is_log, np.log(np.where(is_log, bound, 1.0)), bound) for bound in (spec.low, spec.high))
        middle = _held(spec)
        low, high = np.where(np.isnan(middle), low, middle), np.where(np.isnan(middle), high, middle)
        box = Box(low=low, high=high, is_log=is_log)
        can_grow = np.array([_can_grow(axis) for axis in spec.axes]) & (cost.powers > 0).any(axis=0)
        origin = cheapest_point(cost, box)
        for a in np.flatnonzero(can_grow):
            along = np.zeros(len(low))
            along[a] = np.log(MAX_EXTENSION)
            high[a] = max(high[a], origin[a] + float(largest_step(cost, np.log(budget), origin, along)) * along[a])
        box = Box(low=low, high=high, is_log=is_log, limits=limits)
        require_feasible(spec, box)
        return box, can_grow

    def allowed_values(self) -> list[AllowedValues | None] | None:
        """The values of each axis that a run may take, None for any; None where no axis is bound."""
        from planner.recipe.rounding import AllowedValues

        allowed: list[AllowedValues | None] = []
        for axis in self.spec.axes:
            if axis.is_fixed or axis.simplex is not None:
                allowed.append(None)
            elif axis.values is not None:
                allowed.append(AllowedValues(values=tuple(axis.values)))
            elif axis.step is not None:
                allowed.append(AllowedValues(step=axis.step, origin=axis.low))
            else:
                allowed.append(AllowedValues(step=1.0) if axis.integer else None)
        return None if all(each is None for each in allowed) else allowed

    def solve(
        self, budget: float, box: Box, *, guess: np.ndarray | None = None, cost: Posynomial | None = None
    ) -> Optimum:
        """The optima of all draws; near `guess` (S, A) where it is given.

        Raises `NothingAffordable` where the budget does not buy the cheapest point of the box.
        """
        from planner.recipe import search
        from planner.recipe.curves import double_precision
        from planner.recipe.problem import cheapest_point

        cost = self.cost if cost is None else cost
        log_budget = float(np.log(budget))
        if (least := float(cost.log_cost(cheapest_point(cost, box)))) > log_budget:
            within = "" if box.limits is None else " within [[limits]]"
            raise NothingAffordable(
                f"a budget of {budget:g} buys nothing: the cheapest allocation{within} costs {np.exp(least):g}"
            )
        starts = (NUM_STARTS, NUM_STARTS) if guess is None else (1, 2)
        with double_precision():
            return search.solve_laws(self.laws, cost, log_budget, box, starts[0], guess, retry=starts[1])

    def allocation(self, budget: float, box: Box, found: np.ndarray, *, cost: Posynomial | None = None) -> np.ndarray:
        """The one allocation to follow, (A,) coordinates: lowest response on average; from optima `found` (S, A)."""
        from planner.recipe import joint
        from planner.recipe.curves import double_precision

        some = found[np.unique(np.linspace(0, len(found) - 1, joint.NUM_CANDIDATES).astype(int))]
        starts = np.concatenate([np.median(found, axis=0)[None], some])
        with double_precision():
            point = joint.average_allocation(
                self.laws, self.cost if cost is None else cost, float(np.log(budget)), box, starts
            )
        if point is None:
            raise UnreliableFit(f"no allocation of {budget:g} in {self.domain} has a finite response for all laws")
        return point

    def log_x(self, x: np.ndarray) -> np.ndarray:
        """Coordinates of raw axis values (..., A); nothing of a source has a place among the logarithms."""
        is_log = np.array([axis.is_log for axis in self.spec.axes])
        least = np.where([axis.source_of is not None for axis in self.spec.axes], self.spec.low, 0.0)
        return np.where(is_log, np.log(np.where(is_log, np.maximum(x, least), 1.0)), x)

    def responses(self, x: np.ndarray) -> np.ndarray:
        """Responses of every draw, law after law, at raw points (M, A), on the scale of the laws; (S, M)."""
        from planner.recipe import curves
        from planner.recipe.curves import double_precision

        with double_precision():
            return np.concatenate([curves.responses(law, self.log_x(x)) for law in self.laws])


def make_setting(spec: StudySpec, posterior: StudyPosterior, domain: str, *, discrepancy: bool = True) -> Setting:
    """The recipe problem of a domain.  Raises `InputError` when the study cannot price points off its pool.

    `discrepancy` says whether the surface of a draw is its law with its discrepancy, or the law alone, which is too
    sure where no law is right.
    """
    from planner.recipe.problem import Posynomial

    index = spec.domain_index(domain)
    cost = Posynomial(*spec.posynomial(domain))
    for axis, powers in zip(spec.axes, cost.powers.T, strict=True):
        if not axis.is_log and powers.any():
            raise InputError(f"no recipe: axis {axis.name!r} has a price and a linear scale; give it scale = 'log'")
    laws = [_part(posterior, part, index, discrepancy) for part in posterior.parts if len(part.theta)]
    return Setting(spec=spec, posterior=posterior, domain=domain, index=index, cost=cost, laws=laws)


def _part(posterior: StudyPosterior, part: LawDraws, index: int, discrepancy: bool) -> RecipePart:
    """The draws of one law in one domain."""
    from planner.recipe import bent
    from planner.recipe.curves import RecipePart

    law = part.law.law
    if not discrepancy:
        return RecipePart(law.mean, part.theta[:, index], (part.law.context,), law.unimodal)
    draws = (part.theta[:, index], bent.coefficients(posterior.basis, part.weights[:, index]))
    shared = (part.law.context, (posterior.basis.inducing, posterior.basis.scale))
    return RecipePart(bent.bent(law.mean), draws, shared)


def _can_grow(axis: Axis) -> bool:
    fixed = axis.is_fixed or axis.values is not None or axis.simplex is not None
    return axis.is_log and not fixed and axis.role not in NOT_SCALED_ROLES


def _held(spec: StudySpec) -> np.ndarray:
    """Shares that must sum to 1 are held at equal parts, which the search over a box cannot vary; NaN elsewhere."""
    held = np.full(len(spec.axes), np.nan)
    for members in spec.simplex_groups.values():
        held[list(members)] = 1.0 / len(members)
    return held
