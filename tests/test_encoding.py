"""Links, coordinates, padding and factors."""

import numpy as np
import pytest

from planner import encoding
from planner.records import Design, DesignTable, Outcome, RunState
from planner.spec import parse_study_spec


def _spec(**response):
    return parse_study_spec(
        {
            "study": {"name": "s"},
            "response": {"name": "y", **response},
            "axes": [
                {"name": "N", "low": 1e6, "high": 1e12},
                {"name": "share", "low": 0.0, "high": 1.0, "scale": "linear"},
            ],
            "domains": [
                {"name": "a", "factors": {"model": "small", "task": "web"}},
                {"name": "b", "factors": {"model": "small", "task": "code"}},
                {"name": "c", "factors": {"model": "large", "task": "web"}},
            ],
            "cost": {"terms": [{"coefficient": 1.0, "powers": {"N": 1.0}}]},
            "budget": {"total": 1e15},
        }
    )


def _table(x):
    x = np.array(x, dtype=float)
    return DesignTable(domain=np.zeros(len(x), int), x=x, cost=np.ones(len(x)), row=np.arange(len(x)))


def _outcome(domain, n, response, **more):
    return Outcome(
        run_id=f"{domain}{n}",
        design=Design(domain=domain, axes={"N": n, "share": 0.5}),
        state=RunState.COMPLETED,
        response=response,
        cost=float(n),
        **more,
    )


@pytest.mark.parametrize(
    ("link", "goal", "values"),
    [
        ("identity", "minimise", [-3.0, 0.0, 2.5]),
        ("identity", "maximise", [0.1, 0.9]),
        ("log", "minimise", [1e-3, 7.0]),
        ("neg_log", "maximise", [0.01, 0.99]),
        ("logit", "maximise", [0.02, 0.5, 0.98]),
    ],
)
def test_links_go_there_and_back_and_smaller_is_better(link, goal, values):
    scale = encoding.ResponseScale(link, goal)
    values = np.array(values)
    eta = scale.to_eta(values)
    np.testing.assert_allclose(scale.from_eta(eta), values, rtol=1e-9)
    better = values.min() if goal == "minimise" else values.max()
    assert eta[values == better] == eta.min()
    step = 1e-6 * np.maximum(np.abs(values), 1e-3)
    numeric = np.abs(scale.to_eta(values + step) - scale.to_eta(values - step)) / (2 * step)
    np.testing.assert_allclose(scale.slope(values), numeric, rtol=1e-4)


@pytest.mark.parametrize("link", ["neg_log", "logit"])
def test_saturated_shares_stay_finite(link):
    eta = encoding.ResponseScale(link, "maximise").to_eta(np.array([0.0, 1.0]))
    assert np.isfinite(eta).all()


def test_counts_keep_zero_and_all_successes_finite_and_wide():
    spec = _spec(link="neg_log", goal="maximise", noise="binomial", trials=200)
    none, se_none = encoding.response_moments(_outcome("a", 1e6, 0.0, successes=0.0, trials=200.0), spec)
    half, se_half = encoding.response_moments(_outcome("a", 1e6, 0.5, successes=100.0, trials=200.0), spec)
    assert 0.0 < none < 0.01
    assert half == pytest.approx(0.5)
    scale = encoding.ResponseScale("neg_log", "maximise")
    assert se_none * scale.slope(np.array(none)) > 10 * se_half * scale.slope(np.array(half))


def test_huge_axis_values_survive(tmp_path):
    spec = _spec()
    designs = _table([[1e6, 0.0], [1e12, 1.0]])
    made = encoding.make_encoding(spec, designs)
    x = np.array([[np.int64(5_000_000_000), 0.25]], dtype=object).astype(float)
    coordinates = made.coordinates(x)
    np.testing.assert_allclose(coordinates, [[np.log(5e9), 0.25]])


def test_runs_are_padded_by_domain_and_masked():
    spec = _spec()
    designs = _table([[1e6, 0.0], [1e12, 1.0]])
    made = encoding.make_encoding(spec, designs)
    outcomes = [_outcome("b", 1e6, 3.0), _outcome("b", 1e8, 2.5), _outcome("a", 1e7, 2.8)]
    outcomes.append(
        Outcome(
            run_id="x",
            design=Design(domain="a", axes={"N": 1e9, "share": 0.5}),
            state=RunState.DIVERGED,
            response=None,
            cost=5.0,
        )
    )
    data, basis, heights = encoding.encode(spec, made, outcomes, designs, designs)
    assert data.y.shape == (3, 8)
    assert data.is_real.sum(axis=1).tolist() == [1, 2, 0]
    assert sorted(data.y[1][data.is_real[1]]) == [2.5, 3.0]
    assert np.isfinite(data.coordinates).all()
    assert (data.phi[~data.is_real] == 0).all()
    assert data.order[data.is_real].tolist() == [1, 0, 2]
    assert data.phi.shape[-1] == len(basis.inducing)
    assert float(data.context.lower) == 0.0  # every response seen is positive
    assert (data.height[~data.is_real] == 0).all() and (data.height >= 0).all()
    at = heights.at(np.array([1, 1]), made.coordinates(np.array([[1e6, 0.0], [1e8, 0.0]])))
    np.testing.assert_allclose(np.sort(at), np.sort(data.height[1][data.is_real[1], 0]))


def test_negative_responses_have_no_lower_bound():
    spec = _spec()
    designs = _table([[1e6, 0.0], [1e12, 1.0]])
    made = encoding.make_encoding(spec, designs)
    data, _, _ = encoding.encode(spec, made, [_outcome("a", 1e6, -1.0), _outcome("a", 1e8, -2.0)], designs, designs)
    assert data.context.lower == -np.inf
    assert data.context.scale > 0


def test_a_single_value_of_an_axis_or_of_the_response_gives_no_zero_scale():
    spec = _spec()
    designs = _table([[1e6, 0.5]])
    made = encoding.make_encoding(spec, designs)
    assert (made.spread > 0).all()
    for outcomes in ([], [_outcome("a", 1e6, 2.0)], [_outcome("a", 1e6, 2.0), _outcome("a", 1e6, 2.0)]):
        data, _, _ = encoding.encode(spec, made, outcomes, designs, designs)
        assert data.context.scale > 0
        assert np.isfinite(data.phi).all()


def test_factors_become_shared_rows_only_where_they_inform():
    design = encoding.factor_design(
        [{"model": "s", "task": "w"}, {"model": "s", "task": "c"}, {"model": "l", "task": "w"}]
    )
    assert design.shape == (3, 1 + 2 + 2)
    np.testing.assert_array_equal(design.sum(axis=1), 3.0)
    assert encoding.factor_design([{"model": "a"}, {"model": "b"}]).shape == (2, 1)  # a level for each domain
    assert encoding.factor_design([{}, {}, {}]).shape == (3, 1)
