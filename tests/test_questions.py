"""Efficiency, need, value, comparison and sensitivity against closed forms, and the commands that print them."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from planner import cli, recipe
from planner.commands import shared
from planner.errors import InputError, NothingAffordable
from planner.questions import compare, efficiency, need, plans, sensitivity, sweep, trust, value
from planner.questions.answer import Answer, quantiles
from planner.questions.setting import Setting
from planner.recipe import dual, search
from planner.spec import parse_study_spec
from planner.study import Study
from tests.test_recipe import (
    BOX,
    HIGH,
    LINEAR,
    LOW,
    NUM_AXES,
    additive,
    coefficients_of,
    draws_of_additive,
    water_filling,
)

FLOOR = np.exp(-2.0)
UNIT = LINEAR.coefficients


class Identity:
    def to_eta(self, y):
        return np.asarray(y, dtype=float)

    from_eta = to_eta


class Posterior:
    """Draws of the additive law without any discrepancy."""

    encoding = SimpleNamespace(scale=Identity())
    notes = ()
    parts = (SimpleNamespace(theta=np.zeros(1), noise_sd=np.full(1, 0.01), curve_sd=np.zeros(1)),)

    def __init__(self, thetas):
        self.thetas = thetas

    def eta_draws(self, domain, x):
        log_a, alpha = coefficients_of(self.thetas)
        return FLOOR + np.exp(log_a[:, None] - alpha[:, None] * np.log(x)).sum(axis=2)


def make(thetas, cost=LINEAR) -> Setting:
    """A study of three axes whose posterior is known."""
    names = ("N", "D", "E")
    terms = [
        {"coefficient": c, "powers": {n: p for n, p in zip(names, powers, strict=True) if p}}
        for c, powers in zip(cost.coefficients.tolist(), cost.powers.tolist(), strict=True)
        if c
    ]
    spec = parse_study_spec(
        {
            "study": {"name": "known"},
            "axes": [{"name": name, "low": 1.0, "high": 1e6} for name in names],
            "cost": {"unit": "hour", "terms": terms},
            "budget": {"total": 2e4},
            "targets": [{"kind": "recipe", "budgets": [2e4]}],
        }
    )
    laws = [recipe.RecipePart(additive, thetas, (), True)]
    return Setting(spec=spec, posterior=Posterior(thetas), domain="default", index=0, cost=cost, laws=laws)


@pytest.fixture(scope="module")
def thetas():
    return draws_of_additive(48, seed=5)


@pytest.fixture(scope="module")
def setting(thetas):
    return make(thetas)


def lowest(thetas, budget):
    """Closed form of the lowest response, one budget a draw or one for all."""
    log_x = np.array(
        [
            water_filling(thetas[[s]], UNIT, b, LOW, np.full(NUM_AXES, 60.0))[0]
            for s, b in enumerate(np.broadcast_to(budget, len(thetas)))
        ]
    )
    log_a, alpha = coefficients_of(thetas)
    return FLOOR + np.exp(log_a - alpha * log_x).sum(axis=1)


# ---- the dual -------------------------------------------------------------------------------------------------------


def test_the_budget_for_a_response_undoes_the_response_of_a_budget(thetas):
    budgets = np.geomspace(40.0, 1e5, len(thetas))
    part = [recipe.RecipePart(additive, thetas)]
    with jax.enable_x64(True):
        start = search.solve_laws(part, LINEAR, np.log(2e4), BOX, 1)
        wanted = np.array([lowest(thetas[[s]], b)[0] for s, b in enumerate(budgets)])
        wanted[0] = FLOOR - 0.01  # below the floor of the law: never
        wanted[1] = 1e9  # the cheapest allocation is enough
        got = dual.needed_budget(part, LINEAR, BOX, wanted, np.log(1e6), start, np.log(2e4))
    assert got.converged.all() and np.isinf(got.log_budget[0])
    np.testing.assert_allclose(np.exp(got.log_budget[1]), UNIT.sum(), rtol=1e-6)
    np.testing.assert_allclose(got.log_budget[2:], np.log(budgets[2:]), atol=2e-6)


def cliff(theta, log_x):
    """Falls by one at a place along the first axis, nearly flat before and after: Newton's method does not find it."""
    return jnp.tanh(1e4 * (theta[0] - log_x[0])) - 1e-3 * jnp.sum(log_x)


def test_a_response_that_jumps_takes_no_more_than_a_bracket(monkeypatch):
    calls = []
    solve = search.solve_laws
    monkeypatch.setattr(search, "solve_laws", lambda *args, **options: calls.append(0) or solve(*args, **options))
    cost = recipe.Posynomial(np.array([1.0]), np.array([[1.0, 0.0]]))
    box = recipe.Box(np.zeros(2), np.array([np.log(1e6), 0.0]))
    part, places = [recipe.RecipePart(cliff, np.array([[2.0], [5.5], [9.1]]))], np.array([2.0, 5.5, 9.1])
    with jax.enable_x64(True):
        start = solve(part, cost, np.log(1e6), box, 1)
        got = dual.needed_budget(part, cost, box, np.full(3, -0.01), np.log(1e6), start, np.log(1e6))
    np.testing.assert_allclose(got.log_budget, places, atol=3e-4)
    assert len(calls) <= np.log2(np.log(1e6) / dual.BRACKET) + 3


def test_efficiency_is_the_ratio_of_costs_of_equal_responses(thetas, setting):
    x = np.array([5000.0, 100.0, 3000.0])
    found = efficiency.efficiency(setting, x)
    cost = float(x @ UNIT)
    assert found.cost == pytest.approx(cost) and found.converged.all() and (found.ratio >= 1).all()
    np.testing.assert_allclose(lowest(thetas, found.needed), found.response, rtol=1e-6)
    # Against the best allocation of a draw there is nothing to save.
    best = np.exp(water_filling(thetas[:1], UNIT, 2e4, LOW, HIGH))[0]
    assert efficiency.efficiency(setting, best).ratio[0] == pytest.approx(1.0, abs=1e-5)


# ---- plans ----------------------------------------------------------------------------------------------------------


def test_plans_fix_axes_and_scale_others_until_the_budget_is_spent(setting, tmp_path: Path):
    def allocation(text, budget=2e4):
        return plans.read_plans(setting.spec, text)[0].allocation(setting, budget)

    np.testing.assert_allclose(allocation("N=10,D=20,E=30"), [10, 20, 30])
    np.testing.assert_allclose(allocation("D"), [1, (2e4 - 1.1) / 3, 1], rtol=1e-9)
    np.testing.assert_allclose(allocation({"N": 100, "D": "*"}), [100, (2e4 - 100.1) / 3, 1], rtol=1e-9)
    both = allocation("N=2*,D=4*,E=5")
    assert both[1] / both[0] == pytest.approx(2.0) and both @ UNIT == pytest.approx(2e4)
    (tmp_path / "plans.toml").write_text('[data-only]\nD = "*"\n[point]\nN = 7\n')
    assert [plan.name for plan in plans.read_plans(setting.spec, tmp_path / "plans.toml")] == ["data-only", "point"]
    assert plans.read_plans(setting.spec, f"{tmp_path}/plans.toml:point")[0].values["N"] == 7
    with pytest.raises(NothingAffordable, match="before anything is scaled"):
        allocation("N=1e6,D=*", budget=10.0)
    for wrong, words in (("N=x", "neither a value"), ("M=1", "unknown"), ("N=-1", "no point"), ("no.toml", "read")):
        with pytest.raises(InputError, match=words):
            plans.read_plans(setting.spec, wrong)


# ---- questions ------------------------------------------------------------------------------------------------------


def test_need_names_the_budget_that_the_recipe_reaches_a_response_with(thetas, setting):
    wanted = float(np.quantile(lowest(thetas, 2e4), 0.5))
    answer = need.need_answer(setting, wanted, 0.8)
    x = np.array([[answer["axes"][name] for name in setting.spec.axis_names]])
    assert float(x[0] @ UNIT) <= answer["budget"] * (1 + 1e-6)
    reached = setting.posterior.eta_draws(np.zeros(1, int), x)[:, 0] <= wanted
    assert reached.mean() >= 0.8
    # A budget 5 % smaller would not do, and each draw's own best allocation needs no more than the common one.
    rows = answer["budgets"].set_index("budget")
    assert (rows["probability"] <= rows["probability_own"] + 1e-12).all()
    less = need._Follow(setting, setting.box(1e9)[0], wanted, np.log(np.repeat(x, 4, axis=0)))
    assert less.probability(answer["budget"] * 0.9) < 0.8
    assert answer["never"] == 0.0 and answer["needed"]["q05"] < answer["needed"]["q95"]
    impossible = need.need_answer(setting, FLOOR * 0.99, 0.5)
    assert impossible["budget"] is None and impossible["never"] == 1.0 and "never" in impossible.notes[-1]
    assert impossible.document()["needed"]["median"] is None
    with pytest.raises(InputError, match="between 0 and 1"):
        need.need_answer(setting, 1.0, 1.5)


def test_the_worth_of_an_experiment_is_the_expected_fall_of_the_lowest_mean():
    rng = np.random.default_rng(0)
    mean, step = rng.normal(size=5), rng.normal(size=(3, 5)) * np.array([[0.0], [0.3], [2.0]])
    z = rng.standard_normal(200_000)
    expected = [mean.min() - (mean + s * z[:, None]).min(axis=1).mean() for s in step]
    got = value._worth(mean, step)
    assert got[0] == pytest.approx(0.0, abs=1e-12)
    # Two hundred outcomes against 200,000: about a standard error of the latter, a few per cent in the tails.
    np.testing.assert_allclose(got[1:], expected[1:], rtol=0.03)


def test_value_at_the_recipe_is_the_derivative_on_every_axis(thetas, setting):
    rows, point, multiplier = value._axes(setting, 2e4)
    log_a, alpha = coefficients_of(thetas)
    per_unit = alpha * np.exp(log_a - alpha * np.log(point)) / point / UNIT
    got = np.array([row["value_median"] for row in rows])
    assert all(np.isclose(per_unit[:, a], got[a], rtol=1e-9).any() for a in range(NUM_AXES))
    np.testing.assert_allclose(multiplier, 2e4 * (lowest(thetas, 19999.0) - lowest(thetas, 20001.0)) / 2, rtol=1e-4)
    assert sum(row["best"] for row in rows) == pytest.approx(1.0)


def test_compare_counts_the_axis_that_gains_most(thetas, setting):
    start = np.array([3000.0, 400.0, 9000.0])
    answer = compare.compare_answer([setting], 2e4, start)
    spent = start * UNIT
    scaled = np.log(start) + np.diag(np.log((2e4 - spent.sum() + spent) / spent))
    log_a, alpha = coefficients_of(thetas)
    response = np.exp(log_a[:, None] - alpha[:, None] * scaled).sum(axis=2)
    best = np.bincount(response.argmin(axis=1), minlength=3) / len(thetas)
    np.testing.assert_allclose(answer["axes"]["best"], best)
    pair = answer["pairs"].set_index(["axis", "over"])["probability"]
    assert pair["N", "E"] == pytest.approx((response[:, 0] < response[:, 2]).mean())
    assert answer["domains"]["best"].tolist() == [1.0]


def test_sensitivity_of_a_separable_study_moves_no_ratio_of_slopes(thetas):
    # mathematics.md 1.4 (b): (1 + alpha_j) / (1 + alpha_i) is the ratio of local slopes, whatever the prices.
    one = make(thetas[:1])
    table = sensitivity.sensitivity_answer(one, 2e4)["recipes"]
    _, alpha = coefficients_of(thetas[:1])
    assert len(table) == 3 * (1 + 2 * 3)
    for _, rows in table.groupby(["term", "factor"]):
        slope = rows.set_index("axis")["slope"]
        assert slope["N"] / slope["D"] == pytest.approx((1 + alpha[0, 1]) / (1 + alpha[0, 0]), rel=1e-6)
    declared = table[table["term"] == "as declared"]
    log_x = water_filling(thetas[:1], UNIT, 2e4, LOW, HIGH)[0]
    np.testing.assert_allclose(declared["recommended"], np.exp(log_x), rtol=1e-6)
    dearer = table[(table["term"] == "3 D") & (table["factor"] == 1.5)].set_index("axis")
    changed = water_filling(thetas[:1], UNIT * [1.0, 1.5, 1.0], 2e4, LOW, HIGH)[0]
    np.testing.assert_allclose(np.log(dearer["ratio"]), changed - log_x, atol=1e-6)


def test_sensitivity_of_a_product_cost_moves_no_slope(thetas):
    # mathematics.md 1.4 (c): slopes (1 / alpha_i) / sum (1 / alpha) do not know the price.
    cost = recipe.Posynomial(np.array([6.0]), np.ones((1, 3)))
    table = sensitivity.sensitivity_answer(make(thetas[:1], cost), 1e9)["recipes"]
    _, alpha = coefficients_of(thetas[:1])
    for _, rows in table.groupby(["term", "factor"]):
        np.testing.assert_allclose(rows["slope"], 1 / alpha[0] / (1 / alpha[0]).sum(), rtol=1e-6)
        np.testing.assert_allclose(rows["slope_over"], rows["slope"], rtol=1e-5)


def test_sweep_is_the_recipe_at_every_budget(thetas, setting):
    answer = sweep.sweep_answer(setting, 1e3, 1e5, 3)
    optimum = np.exp(water_filling(thetas, UNIT, 1e4, LOW, HIGH))
    rows = answer["axes"][np.isclose(answer["axes"]["budget"], 1e4)]
    for a, row in enumerate(rows.itertuples()):
        assert row.median == pytest.approx(quantiles(optimum[:, a])["median"], rel=1e-5)
    assert answer["responses"]["median"].is_monotonic_decreasing
    with pytest.raises(InputError, match="LO < HI"):
        sweep.sweep_answer(setting, 10.0, 1.0, 3)


def test_answers_survive_their_file(setting):
    answer = compare.compare_answer([setting], 2e4, None)
    again = Answer.from_arrays(answer.to_arrays())
    assert again.document() == answer.document()
    assert json.loads(json.dumps(answer.document(), allow_nan=False)) == answer.document()


def test_infinite_draws_count_in_quantiles():
    found = quantiles(np.array([1.0, 2.0, 3.0, np.inf, np.nan]))
    assert found["median"] == 2.0 and found["q95"] == np.inf


# ---- commands -------------------------------------------------------------------------------------------------------

STUDY = """
[study]
name = "asked"
[response]
name = "loss"
lower = 0.0
[[axes]]
name = "N"
low = 1e6
high = 1e9
[[axes]]
name = "D"
low = 1e7
high = 1e10
[[domains]]
name = "web"
[[domains]]
name = "code"
[cost]
terms = [{ coefficient = 6, powers = { N = 1, D = 1 } }]
[budget]
total = 1e19
[[targets]]
kind = "recipe"
budgets = [1e20]
[laws]
use = ["sum_of_powers"]
"""


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study with runs enough to be trusted, and its posterior kept beside it."""
    path = tmp_path_factory.mktemp("asked") / "asked.toml"
    path.write_text(STUDY)
    rng = np.random.default_rng(0)
    with Study.open(path) as study:
        for i in range(24):
            n, d = 10 ** rng.uniform(6, 9), 10 ** rng.uniform(7, 10)
            domain = ("web", "code")[i % 2]
            loss = 1.7 + 406.4 * n**-0.34 + 410.7 * d**-0.28 + 0.005 * rng.standard_normal()
            study.attach({"N": n, "D": d}, loss, domain=domain)
        study.posterior()
    return path


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, Any]]:
    """Runs `planner` in this process with --json: exit code and document."""
    monkeypatch.setattr(shared, "prepare_numerics", lambda **options: None)

    def run(*arguments: object) -> tuple[int, Any]:
        monkeypatch.setattr(sys, "argv", ["planner", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        out = capsys.readouterr().out
        return int(ended.value.code or 0), json.loads(out) if "--json" in arguments else out

    return run


COMMANDS = {
    "recipe": (("--budget", "1e20", "--versus", "D=*,N=1e8", "--versus", "N=1e8,D=1e9"), {"recipes"}),
    "recipe --sweep": (("--sweep", "1e19:1e21:3"), {"axes", "responses", "unit"}),
    "need": (("--response", "2.2"), {"budget", "axes", "never", "needed", "budgets", "probability", "limit"}),
    "value": (("--at", "N=1e8,D=1e9"), {"axes", "experiments", "regret", "value", "at", "budget"}),
    "compare": (("--budget", "1e20"), {"axes", "pairs", "domains", "budget"}),
    "sensitivity": ((), {"recipes", "budget", "change", "scale"}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", COMMANDS)
def test_every_question_is_a_command(command: Callable[..., tuple[int, Any]], asked: Path, name: str) -> None:
    options, keys = COMMANDS[name]
    verb = name.split()[0]
    code, document = command(verb, asked, *options, "--domain", "web", "--json")
    assert code == 0 and document["study"] == "asked" and document["response"] == "loss"
    answers = document["recipes" if name == "recipe" else "answers"]
    assert [answer["domain"] for answer in answers] == ["web"]
    assert answers[0]["trusted"] is True and answers[0]["reasons"] == []
    if name == "recipe":
        fixed = {row["plan"]: row for row in answers[0]["versus"]}["N=1e8,D=1e9"]
        assert fixed["cost"] == pytest.approx(6e17) and 1 <= fixed["efficiency"]["q05"] <= fixed["efficiency"]["q95"]
    else:
        assert keys <= set(answers[0])
    code, shown = command(verb, asked, *options)
    assert code == 0 and "web" in shown and "code" in shown


@pytest.mark.slow
def test_questions_of_a_posterior_that_no_law_fits_end_with_4(
    command: Callable[..., tuple[int, Any]], asked: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trust, "failures", lambda *arguments: ["laws that fit hold 0 % of the weight"])
    code, document = command("compare", asked, "--budget", "3e20", "--json")
    assert code == 4 and document["answers"][0]["trusted"] is False and document["answers"][0]["reasons"]
    code, document = command("recipe", asked, "--budget", "3e20", "--domain", "code", "--json")
    assert code == 4 and document["recipes"][0]["trusted"] is False


def test_a_recipe_needs_a_budget_or_a_sweep(command: Callable[..., tuple[int, Any]], tmp_path: Path) -> None:
    (path := tmp_path / "asked.toml").write_text(STUDY)
    assert command("recipe", path, "--json")[0] == 2
    assert command("recipe", path, "--sweep", "1:2", "--json")[0] == 2
