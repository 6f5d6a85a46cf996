"""What runs cost, learned from what they came to."""

from pathlib import Path

import numpy as np
import pytest

from planner import candidates, costs
from planner.report import text
from planner.study import Study
from tests.worlds import open_toy, write_study


def test_a_declaration_that_holds_is_kept_exactly() -> None:
    declared = np.geomspace(1.0, 1e12, 7)
    model = costs.fit_costs(np.arange(7) % 2, declared, declared, 2)
    np.testing.assert_array_equal(model.factor(np.arange(7) % 2, declared), np.ones(7))


def test_it_finds_the_factor_of_every_domain_and_says_how_well() -> None:
    rng = np.random.default_rng(0)
    errors, inside = [], []
    for _ in range(300):
        shift = 0.5 * rng.standard_normal() + 0.25 * rng.standard_normal(3)
        slope = 0.08 * rng.standard_normal()
        domain = np.repeat([0, 1, 2], [8, 4, 1])
        declared = 10.0 ** rng.uniform(16, 20, len(domain))
        centre = np.log(declared).mean()
        actual = declared * np.exp(
            shift[domain] + slope * (np.log(declared) - centre) + 0.1 * rng.standard_normal(len(domain))
        )
        model = costs.fit_costs(domain, declared, actual, 3)
        where, new = np.arange(3), 10.0 ** rng.uniform(16, 20, 3)
        truth = shift + slope * (np.log(new) - centre)
        found = np.log(model.factor(where, new))
        errors.append(np.abs(found - truth))
        seen = truth + 0.1 * rng.standard_normal(3)
        inside.append(np.abs(seen - found) < 1.645 * model.log_sd(where, new))
    assert (np.mean(errors, axis=0) < [0.12, 0.14, 0.2]).all(), np.mean(errors, axis=0)
    assert (np.abs(np.mean(inside, axis=0) - 0.9) < 0.06).all(), np.mean(inside, axis=0)


def test_one_odd_run_is_not_believed_without_limit() -> None:
    model = costs.fit_costs(np.zeros(1, dtype=int), np.array([1.0]), np.array([1e9]), 1)
    assert model.factor(np.zeros(1, dtype=int), np.array([1.0]))[0] <= 10.0


def test_ten_thousand_runs_are_no_burden() -> None:
    declared = np.geomspace(1.0, 1e6, 10_000)
    model = costs.fit_costs(np.zeros(10_000, dtype=int), declared, 1.5 * declared, 1)
    assert model.factor(np.zeros(1, dtype=int), np.array([10.0]))[0] == pytest.approx(1.5, rel=1e-3)


def _spend(study: Study, factor: float) -> None:
    while True:
        try:
            runs = study.ask(1)
        except Exception as error:
            assert "nothing can be bought" in str(error)
            return
        for run in runs:
            declared = run.design.axes["N"] * run.design.axes["D"]
            study.tell(run.run_id, response=2.0, cost=factor * declared)


def test_a_study_whose_runs_cost_double_keeps_its_budget(tmp_path: Path) -> None:
    """Declared costs of 30 are allowed; only the first run may be bought at the declared price."""
    with open_toy(write_study(tmp_path, total="20")) as study:
        _spend(study, 2.0)
        state = study.state
        assert 16.0 < state.spent <= 20.0
        told = study.status()
    assert told["costs"]["actual_over_declared"]["web"] == pytest.approx(2.0, rel=0.1)
    assert any(line.startswith("costs   actual over declared") for line in text.status(told))


def test_runs_cheaper_than_declared_leave_more_to_buy(tmp_path: Path) -> None:
    with open_toy(write_study(tmp_path, total="20")) as study:
        _spend(study, 0.5)
        assert len(study.state.runs) == 8 and study.state.spent == 15.0
        assert not len(candidates.candidate_designs(study.spec, study.state))
