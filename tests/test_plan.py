"""Plans against direct conditioning and brute force."""

import itertools

import numpy as np
import pytest

from planner.design.plan import plan_budget
from planner.design.policies import _first_of
from planner.design.seeding import seed_designs
from planner.design.surrogate import Surrogate, compress


def _points(rng, num, *, num_domains=1, noise=0.1):
    return Surrogate(
        domain=rng.integers(0, num_domains, num),
        shared=rng.standard_normal((num, 3)),
        local=rng.standard_normal((num, 4)),
        own_var=rng.uniform(0.0, 0.2, num),
        noise_var=np.full(num, noise),
        mean=np.zeros(num),
    )


def _covariance(a, b, same):
    return a.shared @ b.shared.T + same * (a.local @ b.local.T)


def _variance_left(candidates, targets, picks):
    """Summed target variance after the picks, by dense conditioning."""
    picked = candidates.take(np.array(picks, dtype=int))
    prior = _covariance(targets, targets, targets.domain[:, None] == targets.domain) + np.diag(targets.own_var)
    if not picks:
        return float(np.trace(prior))
    cross = _covariance(targets, picked, targets.domain[:, None] == picked.domain)
    own = _covariance(picked, picked, picked.domain[:, None] == picked.domain)
    own += np.diag(picked.own_var + picked.noise_var)
    return float(np.trace(prior - cross @ np.linalg.solve(own, cross.T)))


@pytest.mark.parametrize("num_domains", [1, 3])
def test_gains_and_end_equal_dense_conditioning(num_domains):
    rng = np.random.default_rng(num_domains)
    candidates, targets = _points(rng, 12, num_domains=num_domains), _points(rng, 5, num_domains=num_domains)
    plan = plan_budget([candidates], [targets], np.ones(12), budget=4.0)
    assert len(plan.picks) == 4
    before = _variance_left(candidates, targets, [])
    assert plan.variance_before == pytest.approx(before, rel=1e-9)
    assert plan.variance_after == pytest.approx(_variance_left(candidates, targets, list(plan.picks)), rel=1e-9)
    falls = [before - _variance_left(candidates, targets, [c]) for c in range(12)]
    np.testing.assert_allclose(plan.first_gains, falls, rtol=1e-8)


def test_pending_runs_are_conditioned_on_and_not_paid_again():
    rng = np.random.default_rng(5)
    candidates, targets = _points(rng, 8), _points(rng, 4)
    plan = plan_budget([candidates], [targets], np.ones(8), budget=2.0, pending=np.array([1, 6]))
    assert not {1, 6} & set(plan.picks)
    assert plan.variance_before == pytest.approx(_variance_left(candidates, targets, [1, 6]), rel=1e-9)
    assert plan.variance_after == pytest.approx(_variance_left(candidates, targets, [1, 6, *plan.picks]), rel=1e-9)


def test_plan_is_near_the_best_affordable_set():
    ratios = []
    for seed in range(12):
        rng = np.random.default_rng(seed)
        candidates, targets = _points(rng, 9), _points(rng, 4)
        cost = np.exp(rng.uniform(0.0, 3.0, 9))
        budget = 0.4 * cost.sum()
        affordable = [
            subset
            for size in range(10)
            for subset in itertools.combinations(range(9), size)
            if cost[list(subset)].sum() <= budget
        ]
        best = min(_variance_left(candidates, targets, list(subset)) for subset in affordable)
        plan = plan_budget([candidates], [targets], cost, budget=budget)
        assert cost[plan.picks].sum() <= budget * (1 + 1e-9)
        ratios.append((plan.variance_before - plan.variance_after) / (plan.variance_before - best))
    assert min(ratios) > 0.95
    assert np.mean(ratios) > 0.99


def test_one_dear_essential_run_is_not_left_for_many_cheap_ones():
    # Cheap runs see a direction that hardly matters to the target, the dear one sees what does.
    shared = np.concatenate([np.tile([1.0, 0.0], (20, 1)), [[0.0, 1.0]]])
    points = Surrogate(np.zeros(21, int), shared, np.zeros((21, 1)), np.zeros(21), np.full(21, 0.05), np.zeros(21))
    target = Surrogate(
        np.zeros(1, int), np.array([[0.1, 1.0]]), np.zeros((1, 1)), np.zeros(1), np.zeros(1), np.zeros(1)
    )
    cost = np.append(np.ones(20), 1000.0)
    plan = plan_budget([points], [target], cost, budget=1001.0)
    assert 20 in plan.picks
    assert _first_of(plan, cost, 1)[0] == 20


def test_equal_costs_rank_by_gain_alone():
    rng = np.random.default_rng(3)
    candidates, targets = _points(rng, 10), _points(rng, 3)
    plan = plan_budget([candidates], [targets], np.full(10, 7.0), budget=7.0)
    assert plan.picks[0] == np.argmax(plan.first_gains)


def test_purses_are_kept_apart():
    rng = np.random.default_rng(4)
    candidates, targets = _points(rng, 10), _points(rng, 3)
    purse = np.array([0] * 5 + [1] * 5)
    plan = plan_budget([candidates], [targets], np.ones(10), budget=np.array([2.0, 1.0]), purse=purse)
    assert (purse[plan.picks] == 0).sum() == 2
    assert (purse[plan.picks] == 1).sum() == 1


def test_contrasts_ignore_the_common_level():
    # Two target points that differ only in the second direction: a run along the first teaches nothing about them.
    target = Surrogate(
        np.zeros(2, int), np.array([[3.0, 0.5], [3.0, -0.5]]), np.zeros((2, 1)), np.zeros(2), np.zeros(2), np.zeros(2)
    )
    points = Surrogate(np.zeros(2, int), np.eye(2), np.zeros((2, 1)), np.zeros(2), np.full(2, 0.1), np.zeros(2))
    plan = plan_budget([points], [target], np.ones(2), budget=1.0, target_rows=np.array([[1.0, -1.0]]))
    assert plan.first_gains[0] == pytest.approx(0.0, abs=1e-12)
    assert plan.picks.tolist() == [1]


def test_compression_keeps_variances_and_covariances_with_anchors():
    rng = np.random.default_rng(6)
    points = _points(rng, 40)._replace(shared=rng.standard_normal((40, 25)), local=rng.standard_normal((40, 30)))
    anchor = np.array([0, 3, 17, 39])
    small = compress(points, anchor=anchor)
    assert small.shared.shape[1] == small.local.shape[1] == 4
    every = np.ones((40, 4))
    np.testing.assert_allclose(
        _covariance(small, small.take(anchor), every), _covariance(points, points.take(anchor), every), atol=1e-4
    )
    total = [(p.shared**2).sum(1) + (p.local**2).sum(1) + p.own_var for p in (points, small)]
    np.testing.assert_allclose(total[1], total[0], rtol=1e-6)


def test_first_runs_are_chosen_where_a_domain_has_no_candidate_left():
    rng = np.random.default_rng(0)
    bought = np.column_stack([[0, 3, 3], rng.standard_normal((3, 2))])
    coordinates, domain = rng.standard_normal((30, 2)), np.repeat([0, 1, 2], 10)
    picks = seed_designs(coordinates, domain, np.ones(30), bought, budget=100.0, num=4)
    assert len(set(picks)) == 4
    # Nothing is known of domains 1 and 2.
    assert {1, 2} <= set(domain[picks])
