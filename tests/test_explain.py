"""What a proposal says of the run it asks for."""

import numpy as np
import pytest

from planner import inference
from planner.design.explain import explain, words
from planner.records import Design, DesignTable, Outcome, RunState
from planner.spec import parse_study_spec


@pytest.fixture(scope="module", params=["identity", "neg_log"])
def posterior(request):
    """Six runs of one axis under two laws; with "neg_log" the responses are success rates."""
    is_rate = request.param == "neg_log"
    spec = parse_study_spec(
        {
            "study": {"name": "s"},
            "response": {"name": "y", "link": request.param},
            "axes": [
                {"name": "N", "low": 1e6, "high": 1e9, "role": "parameters"},
                {"name": "D", "low": 1e8, "high": 1e11, "role": "tokens"},
            ],
            "cost": {"terms": [{"coefficient": 6.0, "powers": {"N": 1.0, "D": 1.0}}]},
            "budget": {"total": 1e22},
            "laws": {"use": ["sum_of_powers", "product_of_powers"]},
        }
    )
    x = np.exp(np.random.default_rng(0).uniform(np.log([1e6, 1e8]), np.log([1e8, 1e10]), (6, 2)))
    loss = 0.3 + 30.0 * x[:, 0] ** -0.3 + 30.0 * x[:, 1] ** -0.25
    y = np.exp(-loss) if is_rate else loss
    table = DesignTable(domain=np.zeros(6, int), x=x, cost=6.0 * x.prod(1), row=np.arange(6))
    outcomes = [
        Outcome(
            run_id=f"r{i}",
            design=Design(domain="default", axes={"N": x[i, 0], "D": x[i, 1]}),
            state=RunState.COMPLETED,
            response=float(y[i]),
            cost=float(table.cost[i]),
        )
        for i in range(6)
    ]
    return inference.fit_study(spec, outcomes, table, table, num_draws=2000)


POINTS = np.array([[1e7, 1e9], [1e9, 1e11], [1e11, 1e8]])


def test_predictions_agree_with_draws(posterior):
    found = explain(posterior, np.zeros(3, int), POINTS)
    draws = posterior.response_draws(np.zeros(3, int), POINTS)
    low, middle, high = np.quantile(draws, [0.05, 0.5, 0.95], axis=0)
    for i, one in enumerate(found):
        predicted = one["predicted"]
        assert predicted["q05"] <= predicted["median"] <= predicted["q95"]
        # One Gaussian for a mixture: of the right place and size, not of the same shape.
        assert low[i] < predicted["median"] < high[i]
        assert 0.3 < (predicted["q95"] - predicted["q05"]) / (high[i] - low[i]) < 3.0
        assert abs(predicted["median"] - middle[i]) < high[i] - low[i]


def test_the_disagreement_between_laws_is_named(posterior):
    found = explain(posterior, np.zeros(3, int), POINTS)
    settled = [one["settles"] for one in found if "settles" in one]
    assert settled, "far out along one axis a sum and a product of powers must differ"
    for one in settled:
        assert set(one["laws"]) == {"sum_of_powers", "product_of_powers"} and one["medians"][0] != one["medians"][1]
    assert "sum_of_powers predicts" in words({"settles": settled[0]}) or "and sum_of_powers" in words(
        {"settles": settled[0]}
    )
    assert words({"predicted": {}}) == ""
