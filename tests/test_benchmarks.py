"""The benchmark on simulated truths: problems, purses, the true optimum, the table of finished cells, messages."""

import dataclasses
import json

import numpy as np
import pandas as pd
import pytest
from scipy.optimize import minimize_scalar

import benchmarks.__main__ as command_line
from benchmarks import brute_force, cells, embedded, optimal, public
from benchmarks.active import buy_until_done, open_desk
from benchmarks.policies import POLICIES
from planner.errors import InputError
from planner.spec import parse_study_spec

SCENARIOS = embedded.scenario_names()
WITH_RECIPE = [name for name in SCENARIOS if not embedded.find_scenario(name).no_recipe]
FITTING = ("ours", "ours_batch8", "d_optimal", "v_optimal")


def _keys(table):
    return set(zip(table.domain.tolist(), map(tuple, table.x.tolist()), strict=True))


@pytest.mark.parametrize("name", SCENARIOS)
def test_simulated_problem(name):
    scenario, problem = embedded.find_scenario(name), embedded.load_problem(name)
    pool, targets = problem.pool, problem.targets
    assert 150 <= len(pool) <= 400
    assert len(_keys(pool)) == len(pool)
    assert not _keys(pool) & _keys(targets)
    np.testing.assert_allclose(problem.specs[0].costs(pool.domain, pool.x), pool.cost, rtol=1e-12)
    assert (pool.x >= scenario.low).all() and (pool.x <= scenario.high).all()
    ratio = targets.cost / pool.cost.max()
    assert 0.7 < (ratio > 1.0).mean() < 0.8 and 10.0 < ratio.max() <= 100.0
    for table, responses in ((pool, problem.pool_responses), (targets, problem.target_responses)):
        truth = np.concatenate([scenario.true_mean(g, table.x[table.domain == g]) for g in range(scenario.num_domains)])
        assert np.isfinite(truth).all() and np.isfinite(responses).all()
        # Noise of at most .023 (500 trials), but for the truth whose runs differ in what nobody records.
        assert np.std(responses[:, 0] - truth) < (0.2 if name == "sim_hidden_axis" else 0.03)


def test_domains_differ_in_half_of_the_scenarios():
    differing = 0
    for name in SCENARIOS:
        scenario = embedded.find_scenario(name)
        middle = np.sqrt(scenario.low * scenario.high)
        differing += np.ptp([float(scenario.true_mean(g, middle)) for g in range(scenario.num_domains)]) > 0.01
    assert len(SCENARIOS) == 10 and differing >= 5


def test_simulated_responses_are_the_same_again():
    problem = embedded.load_problem("sim_sigmoid")
    embedded.load_problem.cache_clear()
    again = embedded.load_problem("sim_sigmoid")
    np.testing.assert_array_equal(again.pool.x, problem.pool.x)
    np.testing.assert_array_equal(again.pool_responses, problem.pool_responses)
    np.testing.assert_array_equal(again.target_responses, problem.target_responses)


# ---- the true optimum ------------------------------------------------------------------------------------------------


def _recipe_budget(name):
    return 30.0 * embedded.load_problem(name).pool.cost.max()


@pytest.mark.parametrize("name", WITH_RECIPE)
def test_no_random_allocation_beats_the_brute_force_optimum(name):
    scenario, budget = embedded.find_scenario(name), _recipe_budget(name)
    best = brute_force.find_optimum(scenario, 0, budget)
    assert scenario.costs(best.x) <= budget * (1.0 + 1e-9)
    box = brute_force.Affordable(scenario, budget)
    rng = np.random.default_rng(1)
    x = np.exp(rng.uniform(box.low, box.high, (100_000, len(box.low))))
    x = x[scenario.costs(x) <= budget]
    assert len(x) > 1000
    loss = scenario.sign * scenario.true_mean(0, x)
    assert scenario.sign * best.response <= loss.min() + 1e-12
    assert scenario.sign * (best.reference - best.response) > 1e-3


def test_brute_force_agrees_with_a_search_along_the_budget_line():
    scenario, budget = embedded.find_scenario("sim_chinchilla"), _recipe_budget("sim_chinchilla")

    def loss(log_n):
        return float(scenario.true_mean(1, np.array([np.exp(log_n), budget / 6.0 / np.exp(log_n)])))

    line = minimize_scalar(loss, bounds=(np.log(1e8), np.log(1e11)), method="bounded", options={"xatol": 1e-10})
    best = brute_force.find_optimum(scenario, 1, budget)
    # The search moves by a few billionths of the box in the end, and the loss is flat to second order there.
    assert best.response == pytest.approx(line.fun, abs=1e-10)
    assert best.x[0] == pytest.approx(np.exp(line.x), rel=1e-3)


# ---- policies --------------------------------------------------------------------------------------------------------


def _spend(problem, policy, fraction, scope):
    desk = open_desk(problem, fraction=fraction, scope=scope, rule="strict", seed=3)
    purses = desk.purses.copy()
    buy_until_done(desk, POLICIES[policy])
    bought = problem.pool.take(np.array(desk.bought, dtype=int))
    spent = np.bincount(desk.purse[desk.bought], weights=bought.cost, minlength=len(purses))
    assert len(set(desk.bought)) == len(desk.bought)
    assert (spent <= purses * (1.0 + 1e-9)).all()
    return desk, spent / purses


@pytest.mark.parametrize("scope", ["group", "pooled"])
@pytest.mark.parametrize("policy", [name for name in POLICIES if name not in FITTING])
def test_policies_without_a_fit_stay_within_their_purses(policy, scope):
    for name in ("sim_repeated_data", "sim_sigmoid", "sim_agentic"):
        problem = embedded.load_problem(name)
        for fraction in (1e-9, 0.01, 0.05):
            desk, _ = _spend(problem, policy, fraction, scope)
            assert bool(desk.bought) == (fraction > 1e-9)
            # What a ladder has no rung for is left.
            assert policy == "ladder" or not len(desk.affordable())


def test_latin_hypercube_covers_what_can_be_paid():
    problem = embedded.load_problem("sim_outside")
    desk, _ = _spend(problem, "latin_hypercube", 0.2, "group")
    payable = np.log(problem.pool.x[problem.pool.cost <= 0.2 * problem.pool.cost.sum()])
    bought = np.log(problem.pool.x[desk.bought])
    assert (np.ptp(bought, axis=0) > 0.8 * np.ptp(payable, axis=0)).all()


def test_gains_of_a_linear_law_are_those_of_its_covariance():
    rng = np.random.default_rng(0)
    noise_var = 0.3
    pool, targets = rng.standard_normal((6, 4)), rng.standard_normal((3, 4))
    linear = optimal.Linear(pool, targets, noise_var, 1.0).condition(2).condition(4)
    precision = np.eye(4) + pool[[2, 4]].T @ pool[[2, 4]] / noise_var
    covariance = np.linalg.inv(precision)
    for row in range(len(pool)):
        more = precision + np.outer(pool[row], pool[row]) / noise_var
        fall = np.trace(targets @ (covariance - np.linalg.inv(more)) @ targets.T)
        assert optimal.v_gain(linear)[row] == pytest.approx(fall, rel=1e-10)
        nats = 0.5 * (np.linalg.slogdet(more)[1] - np.linalg.slogdet(precision)[1])
        assert optimal.d_gain(linear)[row] == pytest.approx(nats, rel=1e-10)


@pytest.mark.slow
@pytest.mark.parametrize("policy", FITTING)
def test_policies_with_a_fit_stay_within_their_purses(policy):
    problem = embedded.load_problem("sim_broken")
    document = problem.specs[0].model_dump(by_alias=True, exclude_unset=True)
    spec = parse_study_spec(document | {"laws": {"use": ["sum_of_powers"]}})
    desk, share = _spend(dataclasses.replace(problem, specs=[spec]), policy, 0.005, "group")
    assert len(desk.bought) >= 4 and share.max() > 0.5


# ---- the command line ------------------------------------------------------------------------------------------------


def _run(monkeypatch, *arguments):
    # The cache of compiled code is a setting of the whole process, which other tests share.
    monkeypatch.setattr(command_line, "_keep_compiled_code", lambda: None)
    return command_line.main(list(arguments))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], ["--corpus DIR", "--embedded"]),
        (["run", "--corpus", "/nowhere"], ["/nowhere", "manifest.toml"]),
        (["run", "--embedded", "--scenario", "sim_x"], ["unknown scenario sim_x", "sim_chinchilla"]),
        (["recipe", "--scenario", "sim_x"], ["unknown scenario sim_x", "sim_chinchilla"]),
    ],
)
def test_mistakes_are_named(monkeypatch, capsys, arguments, words):
    assert _run(monkeypatch, *arguments) == 2
    message = capsys.readouterr().err
    assert all(word in message for word in words)


def test_status_is_timed_on_ledgers_of_runs(monkeypatch, capsys):
    assert _run(monkeypatch, "status", "--runs", "3", "--repeats", "1", "--json") == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(row["state"], row["num_events"]) for row in rows] == [("reserved", 4), ("completed", 7)]
    assert all(0.0 < row["least"] <= row["seconds"] <= row["most"] for row in rows)


def test_a_scenario_without_a_recipe_is_left_out_and_says_why(monkeypatch, capsys):
    assert _run(monkeypatch, "recipe", "--scenario", "sim_sigmoid") == 0
    assert "sim_sigmoid is left out: its one axis" in capsys.readouterr().err


def test_a_table_resumes_after_its_last_whole_line(tmp_path):
    path, shape = tmp_path / "cells.csv", {"columns": ("name", "seed", "score"), "key": ("name", "seed")}
    table = cells.Table(path, **shape)
    every = [{"name": "a", "seed": seed} for seed in range(3)]
    for cell in every[:2]:
        table.add(cell | {"score": 0.5}, line=str)
    path.write_bytes(path.read_bytes()[:-3])
    again = cells.Table(path, **shape)
    assert again.missing(every) == every[1:]
    again.add(every[1] | {"score": 0.25}, line=str)
    assert [row["score"] for row in cells.Table(path, **shape).rows] == [0.5, 0.25]
    with pytest.raises(InputError, match="other columns"):
        cells.Table(path, columns=("name", "score"), key=("name",))


def test_public_task_folders_are_read(tmp_path):
    folder = tmp_path / "data" / "moe_scaling_law"
    folder.mkdir(parents=True)
    columns = {"num_experts": [1.0, 8.0], "dense_parameter_count": [1e7, 2e7], "loss_validation": [3.0, 2.5]}
    for part, factor in (("train", 1.0), ("test", 10.0)):
        frame = pd.DataFrame(columns).assign(group="all", dense_parameter_count=[factor * 1e7, factor * 2e7])
        frame.to_parquet(folder / f"{part}-00000-of-00001.parquet")
    assert public.scenario_names(tmp_path) == ["moe"]
    problem = public.load_problem(tmp_path, "moe")
    np.testing.assert_array_equal(problem.pool.cost, [1e7, 1.6e8])
    np.testing.assert_array_equal(problem.targets.x, [[1.0, 1e8], [8.0, 2e8]])
    assert [axis.role for axis in problem.specs[0].axes] == ["experts", "parameters"]
    frame.drop(columns="num_experts").to_parquet(folder / "test-00000-of-00001.parquet")
    frame.drop(columns="num_experts").to_parquet(folder / "train-00000-of-00001.parquet")
    with pytest.raises(InputError, match="num_experts"):
        public.load_problem(tmp_path, "moe")


def test_a_finished_cell_is_known_again_whatever_its_numbers_look_like(tmp_path):
    columns = ("scenario", "budget", "seed", "r2")
    wanted = [{"scenario": "a", "budget": budget, "seed": 0} for budget in (1.0, 0.05, 1.0 / 3.0)]
    table = cells.Table(tmp_path / "t.csv", columns=columns, key=columns[:3])
    for cell in wanted[:2]:
        table.add(cell | {"r2": 0.5}, line=str)
    again = cells.Table(tmp_path / "t.csv", columns=columns, key=columns[:3])
    assert again.missing(wanted) == wanted[2:]
    again.add(wanted[2] | {"r2": 0.5}, line=str)
    assert cells.Table(tmp_path / "t.csv", columns=columns, key=columns[:3]).missing(wanted) == []
