"""Axes bought from several sources: the form of their worth, nothing bought, and what runs say of them."""

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from backends.simulator import Simulator
from backends.truths.sources import with_worth
from planner import candidates, laws, sources
from planner.errors import SpecError
from planner.laws.sources import break_even_ratio, peak_ratio, worth
from planner.spec import StudySpec, parse_study_spec
from planner.study import Study

TRUE = {"of": "environments", "discount": 0.71, "break_even": 8.5, "bend": -0.39}
THETA = np.array([np.log(0.71), np.log(np.log(8.5)), -0.39])


def spec_of(**changes: Any) -> StudySpec:
    source = {"name": "synthetic", "source_of": "environments", "low": 4, "high": 4000, "integer": True}
    document: dict[str, Any] = {
        "study": {"name": "sources"},
        "response": {"name": "success", "link": "neg_log", "noise": "binomial", "trials": 4000, "expect": [0.2, 0.8]},
        "axes": [
            {"name": "environments", "role": "environments", "low": 4, "high": 384, "integer": True},
            {k: v for k, v in (source | changes.pop("source", {})).items() if v is not None},
            {"name": "tasks", "role": "tasks", "low": 160, "high": 20480, "integer": True},
        ],
        "cost": {
            "terms": [
                {"coefficient": 20, "powers": {"environments": 1}},
                {"coefficient": 4.1, "powers": {"synthetic": 1}},
                {"coefficient": 0.18, "powers": {"tasks": 1}},
            ]
        },
        "budget": {"total": 2e5},
        "laws": {"use": ["sum_of_powers"]},
        "targets": [{"kind": "source", "axis": "synthetic"}],
    }
    return parse_study_spec(document | changes)


def test_the_form_passes_through_its_discount_break_even_and_peak() -> None:
    # Table 17 of He et al. gives peak and crossing; the note's own solution for q is rounded to two digits.
    for theta, peak in ((THETA, 2.4), (np.array([np.log(0.34), np.log(np.log(1.1)), -0.02]), 0.4)):
        even = break_even_ratio(theta)
        assert worth(theta, np.array(1.0), np) == pytest.approx(np.exp(theta[0]))
        assert worth(theta, even, np) == pytest.approx(0.0, abs=1e-12)
        assert worth(theta, 1.3 * even, np) < 0.0
        ratios = np.geomspace(0.01, 20.0, 4001)
        best = ratios[np.argmax(worth(theta, ratios, np))]
        assert peak_ratio(theta) == pytest.approx(best, rel=2e-3)
        assert best == pytest.approx(peak, rel=0.03)


def test_the_bend_has_a_limit_at_zero() -> None:
    at_zero = worth(np.array([0.0, 0.5, 0.0]), np.array([0.1, 1.0, 7.0]), np)
    near = worth(np.array([0.0, 0.5, 1e-6]), np.array([0.1, 1.0, 7.0]), np)
    np.testing.assert_allclose(at_zero, near, rtol=1e-5, atol=1e-6)


def test_a_law_sees_what_the_hidden_truth_of_the_simulator_says() -> None:
    spec = spec_of()
    axes = laws.law_axes(spec.axes)
    law, plain = (laws.select(each, ["sum_of_powers"])[0] for each in (axes, laws.sources.real_axes(axes)))
    centre = np.log(np.array([40.0, 40.0, 2000.0]))
    context = laws.Context(centre, np.ones(3), np.array(1.2), np.array(0.3), np.array(0.0))
    real = context._replace(centre=centre[::2], spread=np.ones(2))
    theta = np.array([p.mean for p in plain.parameters(real)])
    assert [p.name for p in law.parameters(context)][-1] == "bend_synthetic"
    with jax.enable_x64(True):
        for amount in (0.0, 30.0, 300.0, 1000.0):
            effective = with_worth({"synthetic": TRUE}, {"environments": 100.0, "synthetic": amount})["environments"]
            place = np.log(np.array([100.0, max(amount, spec.low[1]), 5000.0]))
            got = law.mean(jnp.append(theta, THETA), jnp.asarray(place), context)
            expected = plain.mean(jnp.asarray(theta), jnp.log(jnp.array([effective, 5000.0])), real)
            # Nothing is a coordinate of its own, which takes 2.5e-3 of `low` from every amount.
            assert float(got) == pytest.approx(float(expected), rel=1e-4)
            assert np.isfinite(jax.grad(law.mean)(jnp.append(theta, THETA), jnp.asarray(place), context)).all()


def test_designs_with_nothing_of_a_source_exist_and_are_priced() -> None:
    spec = spec_of()
    designs = candidates.all_designs(spec)
    share = float((designs.x[:, 1] == 0).mean())
    assert 0.1 < share < 0.4
    assert (designs.x[:, 1][designs.x[:, 1] > 0] >= 4).all()
    assert spec.cost_of("default", {"environments": 10, "synthetic": 0, "tasks": 1000}) == pytest.approx(380.0)
    few = spec_of(source={"values": [0, 10, 100], "low": None, "high": None, "integer": False})
    assert set(candidates.all_designs(few).x[:, 1]) == {0.0, 10.0, 100.0}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"source": {"source_of": "envs"}}, "is not an axis"),
        ({"source": {"source_of": "synthetic"}}, "no source itself"),
        ({"source": {"break_even": [0.9, 0.1]}}, "above 1"),
        ({"source": {"scale": "linear"}}, "does not go with source_of"),
        ({"targets": [{"kind": "source", "axis": "tasks"}]}, "is not a source"),
        ({"targets": [{"kind": "source"}]}, "needs the axis"),
    ],
)
def test_mistakes_about_sources_are_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError, match=message):
        spec_of(**changes)


@pytest.fixture(scope="module")
def told() -> Study:
    """A study with runs over ratios, amounts and tasks, from a hidden truth."""
    study = Study.from_spec(spec_of())
    simulator = Simulator({"truth": "agentic", "spread": 0.0, "sources": {"synthetic": TRUE}}, Path())
    rng = np.random.default_rng(1)
    for seed, real in enumerate((8, 30, 100, 300)):
        for ratio in (0.0, 0.5, 2.0, 6.0, 12.0):
            for tasks in (400, 10000):
                axes = {"environments": real, "synthetic": round(real * ratio), "tasks": tasks}
                successes = rng.binomial(4000, float(simulator.truth_mean("default", axes)))
                study.attach(axes, successes / 4000, successes=successes, trials=4000, seed=seed)
    return study


@pytest.mark.slow
def test_runs_tell_what_a_source_is_worth(told: Study) -> None:
    row = told.sources().iloc[0]
    truth = {"discount": 0.71, "break_even": 8.5, "peak": float(peak_ratio(THETA))}
    for name, value in truth.items():
        quantiles = row[name]
        assert quantiles["q05"] < value < quantiles["q95"], name
        assert quantiles["q95"] / quantiles["q05"] < 2.5, name
    assert row["price"] == pytest.approx(4.1)
    assert row["probability_cheaper"] > 0.99
    flags = told.predict([{"environments": 50, "synthetic": s, "tasks": 5000} for s in (0, 50, 2000)])["flags"]
    assert ["synthetic" in " ".join(words) for words in flags] == [False, False, True]


@pytest.mark.slow
def test_the_collapse_ratio_is_that_of_the_truth(told: Study) -> None:
    simulator = Simulator({"truth": "agentic", "spread": 0.0, "sources": {"synthetic": TRUE}}, Path())
    point = sources.held_point(told.spec)
    ratios = np.geomspace(2.0, 60.0, 2000)
    axes = {"environments": point[0], "synthetic": point[0] * np.append(0.0, ratios), "tasks": point[2]}
    mean = np.asarray(simulator.truth_mean("default", axes))
    true = float(ratios[np.argmax(mean[1:] / mean[0] < sources.COLLAPSED)])
    quantiles = told.sources().iloc[0]["collapse"]
    assert quantiles["q05"] < true < quantiles["q95"]
