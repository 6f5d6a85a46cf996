"""Plans for the whole remaining budget: greedy by several rules with rank-one updates, the best end kept and swapped.

The utility is the state in which the budget ends, so a plan is judged by the variance of the target that it leaves,
not by gain per cost: with one cheap, nearly useless and one dear, essential run, gain per cost buys only cheap runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from planner.design.surrogate import Surrogate

# Exponents of cost in the greedy rules: blind to cost, in between, gain per cost.
_RULES = (0.0, 0.4, 1.0)
_MAX_PICKS = 48
_MAX_SWAPPED = 10  # a longer plan is refined enough by being made anew as results come in


class Plan(NamedTuple):
    """Designs to buy with the remaining budget, in the order chosen.  K picks."""

    picks: np.ndarray  # (K,) indices of candidates
    gains: np.ndarray  # (K,) fall of the target variance when picked
    first_gains: np.ndarray  # (C,) fall of the target variance by one run of each candidate now
    variance_before: float  # of the target, summed, in units of each response
    variance_after: float
    rule: float  # exponent of cost that won
    target_var: np.ndarray  # (R,) of each functional of the first response now
    target_var_after: np.ndarray  # (R,)


class _State:
    """Covariances of candidates with targets and with themselves, updated as runs are conditioned on."""

    def __init__(self, candidates: Surrogate, targets: Surrogate, target_rows: np.ndarray | None) -> None:
        same = (candidates.domain[:, None] == targets.domain[None, :]).astype(float)
        self.cross = candidates.shared @ targets.shared.T + same * (candidates.local @ targets.local.T)
        self.target_var = (targets.shared**2).sum(1) + (targets.local**2).sum(1) + targets.own_var
        if target_rows is not None:
            covariance = targets.shared @ targets.shared.T
            covariance += (targets.domain[:, None] == targets.domain) * (targets.local @ targets.local.T)
            covariance += np.diag(targets.own_var)
            self.target_var = np.einsum("ti,ij,tj->t", target_rows, covariance, target_rows)
            self.cross = self.cross @ target_rows.T
        self.own = (candidates.shared**2).sum(1) + (candidates.local**2).sum(1) + candidates.own_var
        self.noise = candidates.noise_var
        self.candidates = candidates
        self.updates: list[np.ndarray] = []

    def copy(self) -> _State:
        other = object.__new__(_State)
        other.__dict__.update(self.__dict__)
        other.updates = list(self.updates)
        return other

    def gains(self) -> np.ndarray:
        return (self.cross**2).sum(axis=1) / np.maximum(self.own + self.noise, 1e-300)

    def condition(self, pick: int) -> None:
        c = self.candidates
        covariance = c.shared @ c.shared[pick] + (c.domain == c.domain[pick]) * (c.local @ c.local[pick])
        covariance[pick] += c.own_var[pick]
        for update in self.updates:
            covariance -= update * update[pick]
        update = covariance / np.sqrt(max(self.own[pick] + self.noise[pick], 1e-300))
        step = self.cross[pick] / np.sqrt(max(self.own[pick] + self.noise[pick], 1e-300))
        self.updates.append(update)
        self.cross = self.cross - update[:, None] * step[None, :]
        self.own = np.maximum(self.own - update**2, 0.0)
        self.target_var = np.maximum(self.target_var - step**2, 0.0)


def conditioned(
    candidates: Surrogate, targets: Surrogate, target_rows: np.ndarray | None, pending: np.ndarray
) -> tuple[np.ndarray, np.ndarray, float]:
    """Covariances with the targets, (C, R), and variances, (C,), of candidates once those in `pending` are known, and
    the summed variance of the targets then.
    """
    state = _State(candidates, targets, target_rows)
    for index in pending:
        state.condition(int(index))
    return state.cross, state.own, float(state.target_var.sum())


class _Responses:
    """Several responses of the same runs: gains add up, each in units of its own target variance at the start."""

    def __init__(self, states: Sequence[_State], units: np.ndarray) -> None:
        self.states, self.units = states, units

    def copy(self) -> _Responses:
        return _Responses([state.copy() for state in self.states], self.units)

    def gains(self) -> np.ndarray:
        return np.sum([state.gains() / unit for state, unit in zip(self.states, self.units, strict=True)], axis=0)

    def condition(self, pick: int) -> None:
        for state in self.states:
            state.condition(pick)

    def variance(self) -> float:
        return float(sum(state.target_var.sum() / unit for state, unit in zip(self.states, self.units, strict=True)))


def plan_budget(
    candidates: Sequence[Surrogate],
    targets: Sequence[Surrogate],
    cost: np.ndarray,
    *,
    budget: float | np.ndarray,
    purse: np.ndarray | None = None,
    pending: np.ndarray | None = None,
    may_repeat: bool = False,
    target_rows: np.ndarray | None = None,
    units: np.ndarray | None = None,
    max_picks: int = _MAX_PICKS,
) -> Plan:
    """The set of candidates that leaves the least variance of the targets within the budget.

    Args:
        candidates: features of C candidates, for each response.
        targets: features of T points of the target, for each response.
        cost: (C,) predicted cost.
        budget: what may be spent; one number, or one a purse (K,).
        purse: which purse pays each candidate, (C,); a single one if not given.
        pending: indices of candidates that are running: conditioned on, not paid again.
        may_repeat: whether a candidate may be bought more than once (replicates).
        target_rows: (R, T) linear functionals of the targets' responses to learn instead of the responses themselves.
        units: variance unit of each response, so that responses of different scale weigh alike; 1 if not given.
    """
    states = [_State(c, t, target_rows) for c, t in zip(candidates, targets, strict=True)]
    start = _Responses(states, np.ones(len(states)) if units is None else units)
    taken = np.zeros(len(cost), dtype=bool)
    for index in pending if pending is not None else []:
        start.condition(int(index))
        taken[index] = not may_repeat
    first_gains = start.gains()
    before = start.variance()
    best: Plan | None = None
    purses = np.atleast_1d(np.asarray(budget, dtype=np.float64))
    purse = np.zeros(len(cost), dtype=int) if purse is None else purse
    for rule in _RULES:
        left = purses.copy()
        end = start.copy()
        picks, gains = _greedy(end, cost, left, purse, taken.copy(), rule, may_repeat, max_picks)
        after = end.variance()
        if best is None or after < best.variance_after * (1.0 - 1e-9):
            now, then = start.states[0].target_var, end.states[0].target_var
            best = Plan(np.array(picks, dtype=int), np.array(gains), first_gains, before, after, rule, now, then)
    assert best is not None
    if 1 < len(best.picks) <= _MAX_SWAPPED:
        best = _swap(best, start, cost, purses, purse, taken, may_repeat, max_picks)
    return best


def worth_of_more(
    candidates: Surrogate,
    targets: Surrogate,
    cost: np.ndarray,
    *,
    plan: Plan,
    pending: np.ndarray,
    budgets: Sequence[float],
    target_rows: np.ndarray | None = None,
) -> list[float]:
    """How much less variance is left when a plan goes on with each of so many budgets; arguments as for `plan_budget`.

    What the plan holds is kept, so that this is a lower bound of what a plan made anew would gain.
    """
    start = _Responses([_State(candidates, targets, target_rows)], np.ones(1))
    taken = np.zeros(len(cost), dtype=bool)
    for index in [*pending, *plan.picks]:
        start.condition(int(index))
        taken[index] = True
    before, purse, falls = start.variance(), np.zeros(len(cost), dtype=int), []
    for budget in budgets:
        ends = []
        for rule in _RULES[:2]:
            end = start.copy()
            _greedy(end, cost, np.array([float(budget)]), purse, taken.copy(), rule, False, _MAX_PICKS)
            ends.append(end.variance())
        falls.append(max(0.0, before - min(ends)))
    return falls


def _swap(
    plan: Plan,
    start: _Responses,
    cost: np.ndarray,
    purses: np.ndarray,
    purse: np.ndarray,
    taken: np.ndarray,
    may_repeat: bool,
    max_picks: int,
) -> Plan:
    """Takes out each pick in turn and fills up again, dearest first: a greedy choice regrets its first picks."""
    picks, after = list(map(int, plan.picks)), plan.variance_after
    for leaver in sorted(picks, key=lambda pick: -cost[pick]):
        kept = [pick for pick in picks if pick != leaver]
        state, left, gone = start.copy(), purses.copy(), taken.copy()
        for pick in kept:
            state.condition(pick)
            left[purse[pick]] -= cost[pick]
            gone[pick] = not may_repeat
        gone[leaver] = True
        added, _ = _greedy(state, cost, left, purse, gone, 0.0, may_repeat, max_picks - len(kept))
        if added and state.variance() < after * (1.0 - 1e-9):
            picks, after = [*kept, *added], state.variance()
    if picks == list(plan.picks):
        return plan
    state, gains = start.copy(), []
    for pick in picks:
        gains.append(float(state.gains()[pick]))
        state.condition(pick)
    return plan._replace(
        picks=np.array(picks, dtype=int),
        gains=np.array(gains),
        variance_after=state.variance(),
        target_var_after=state.states[0].target_var,
    )


def _greedy(
    state: _Responses,
    cost: np.ndarray,
    left: np.ndarray,
    purse: np.ndarray,
    taken: np.ndarray,
    rule: float,
    may_repeat: bool,
    max_picks: int,
) -> tuple[list[int], list[float]]:
    """Picks in order and their gains; `state` ends conditioned on them."""
    picks: list[int] = []
    gains: list[float] = []
    price = (cost / cost.min()) ** rule
    while len(picks) < max_picks:
        allowed = (cost <= left[purse] * (1.0 + 1e-12)) & ~taken
        if not allowed.any():
            break
        gain = state.gains()
        score = np.where(allowed, gain / price, -1.0)
        pick = int(np.argmax(score))
        if gain[pick] <= 1e-12 * max(state.variance(), 1e-300):
            break
        state.condition(pick)
        picks.append(pick)
        gains.append(float(gain[pick]))
        left[purse[pick]] -= cost[pick]
        taken[pick] = not may_repeat
    return picks, gains
