"""The simulator: truths against formulas worked out by hand, its clock, and that it always answers the same."""

import dataclasses
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from backends.simulator import Simulator
from backends.truths import TRUTHS
from backends.truths.losses import Chinchilla, Experts, RepeatedData, Valley
from backends.truths.rewards import Agentic, RewardSampling
from planner.execution import BackendError, Job, Report
from planner.records import Design, RunState


def job_of(run_id: str = "r1", attempt: int = 0, cost: float | None = 1.0, **changes: Any) -> Job:
    design = changes.pop("design", Design(domain="web", axes={"N": 1e9, "D": 2e10}))
    options = {} if cost is None else {"predicted_cost": cost}
    return Job(run_id=run_id, design=design, folder=Path("unused"), attempt=attempt, options=options, **changes)


def open_simulator(**options: Any) -> Simulator:
    return Simulator(options, Path("unused"))


def finish(backend: Simulator, handles: list[str]) -> list[Report]:
    for _ in range(len(handles)):
        reports = backend.poll(handles)
    return reports


# ---- truths ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TRUTHS)
def test_every_truth_is_finite_and_broadcasts(name: str) -> None:
    truth = TRUTHS[name]()
    role = next(iter(truth.axes))
    values = truth.axes[role] * np.array([0.1, 1.0, 10.0])
    curve = np.asarray(truth.mean("web", {role: values}))
    assert curve.shape == (3,) and np.isfinite(curve).all() and np.ptp(curve) > 0
    assert curve == pytest.approx([float(truth.mean("web", {role: float(value)})) for value in values], rel=1e-12)
    if truth.response != "loss":
        assert ((curve > 0) & (curve < 1)).all()


@pytest.mark.parametrize("name", TRUTHS)
def test_domains_differ_unless_the_spread_is_zero(name: str) -> None:
    truth, flat = TRUTHS[name](), TRUTHS[name](spread=0.0)
    at = {role: 3.0 * value for role, value in truth.axes.items()}
    means = {float(truth.mean(domain, at)) for domain in ("web", "code", "math")}
    assert len(means) == 3
    assert len({float(flat.mean(domain, at)) for domain in ("web", "code", "math")}) == 1
    assert float(TRUTHS[name](domain_seed=1).mean("web", at)) not in means


@pytest.mark.parametrize(
    ("truth", "axes", "expected"),
    [
        # 1.69 + 406.4 / 1e8^0.34 + 410.7 / 2e9^0.28, by hand: 0.7748 + 1.0209.
        (Chinchilla(spread=0.0), {"parameters": 1e8, "tokens": 2e9}, 3.4862),
        # Four epochs: D' = U (1 + 15.39 (1 - exp(-3 / 15.39))); N below what U calls for (0.0511 U).
        (
            RepeatedData(spread=0.0),
            {"parameters": 1e8, "tokens": 4e10, "unique_tokens": 1e10},
            1.87 + 521 * 1e8**-0.353 + 1488 * (1e10 * (1 + 15.39 * (1 - np.exp(-3 / 15.39)))) ** -0.353,
        ),
        # One expert is the dense model of Clark et al. with E' = 1 / (1/start) = 1.847.
        (
            Experts(spread=0.0),
            {"parameters": 1e8, "experts": 1.0},
            10 ** (1.104 - 0.082 * 8 + (0.009 * 8 - 0.108) * np.log10(1.847)),
        ),
    ],
)
def test_published_constants_give_the_published_law(truth: Any, axes: dict[str, float], expected: float) -> None:
    assert truth.mean("web", axes) == pytest.approx(expected, rel=2e-4)


def test_agentic_terms_add_up_on_the_scale_of_minus_log_success() -> None:
    truth = Agentic(spread=0.0)
    many = dict.fromkeys(("environments", "tasks", "trajectories", "parameters"), 1e60)
    assert -np.log(truth.mean("swe", many)) == pytest.approx(truth.floor, rel=1e-4)
    environments = np.array([64.0, 128.0, 256.0])
    drops = -np.diff(-np.log(truth.mean("swe", many | {"environments": environments})))
    assert drops[0] / drops[1] == pytest.approx(2**0.41, rel=1e-6)
    changed = Agentic(spread=0.0, exponents={"environments": 1.0})
    drops = -np.diff(-np.log(changed.mean("swe", many | {"environments": environments})))
    assert drops[0] / drops[1] == pytest.approx(2.0, rel=1e-6)
    split = truth.mean("swe", {"worlds": 8.0, "structures": 8.0})
    assert truth.mean("swe", {"worlds": 16.0, "structures": 8.0}) > split, "two factors in place of environments"


def test_denser_rewards_shrink_all_terms_of_an_agent_but_not_its_floor() -> None:
    truth = Agentic(spread=0.0, density_exponent=0.3)
    dense, sparse = (-np.log(truth.mean("swe", {"reward_density": rho})) - truth.floor for rho in (1.0, 0.1))
    assert sparse / dense == pytest.approx(10**0.3)
    assert dense == pytest.approx(-np.log(truth.mean("swe", {})) - truth.floor), "dense where a study has no such axis"


def test_environments_gate_tasks_where_the_truth_says_so() -> None:
    free, gated = Agentic(spread=0.0), Agentic(spread=0.0, gate=2.0, gate_exponent=0.5, gate_order=4.0)

    def fall(truth: Agentic, environments: float, key: str = "environments") -> float:
        low, high = (truth.mean("swe", {key: environments, "tasks": tasks}) for tasks in (1e3, 1e6))
        return float(np.log(high / low))

    assert fall(free, 4.0) == pytest.approx(fall(free, 1e6)), "without a gate tasks are worth the same everywhere"
    assert fall(gated, 1e9) == pytest.approx(fall(free, 1e9), rel=1e-3), "environments without end"
    # With 4 of 256, there is use for 2 * 8 ** -1 = 1/4 of the 10,240 stand-in tasks; the term falls by that much only.
    term = 0.14 * ((1e3 / 10240) ** -0.26 - 0.25**-0.26)
    assert fall(gated, 4.0) == pytest.approx(term, rel=0.02)
    assert fall(gated, 8.0 / 64, "worlds") == pytest.approx(term, rel=0.02), "worlds gate where a study has them"
    with pytest.raises(BackendError, match="gate must not be negative"):
        open_simulator(truth="agentic", gate=-1.0)


def test_the_best_number_of_rollouts_rises_and_saturates() -> None:
    truth = RewardSampling(spread=0.0)
    n = 2.0 ** np.arange(1, 14)
    compute = 10.0 ** np.arange(3, 13)
    reward = np.asarray(truth.mean("easy", {"rollouts": n[None, :], "compute": compute[:, None]}))
    best = n[reward.argmax(axis=1)]
    assert (np.diff(best) >= 0).all() and best[0] < 64 and best[-1] == 512
    assert (np.diff(reward, axis=0) > 0).all(), "more compute never hurts at fixed n"
    split = truth.mean("easy", {"problems": 64.0, "rollouts": 8.0, "updates": 100.0})
    assert split == truth.mean("easy", {"rollouts": 8.0, "compute": 64.0 * 8.0 * 100.0})


def test_the_valley_is_lowest_at_the_published_optimum() -> None:
    truth, at = Valley(spread=0.0), {"parameters": 1e9, "tokens": 2e10}
    rates, batches = np.geomspace(1e-4, 1e-2, 401), np.geomspace(1e4, 1e7, 301)
    loss = np.asarray(truth.mean("web", at | {"learning_rate": rates[:, None], "batch_size": batches[None, :]}))
    row, column = np.unravel_index(loss.argmin(), loss.shape)
    assert rates[row] == pytest.approx(1.8 * 1e9**-0.713 * 2e10**0.307, rel=0.012)  # one step of the grid
    assert batches[column] == pytest.approx(0.58 * 2e10**0.571, rel=0.024)
    assert loss.min() == pytest.approx(Chinchilla(spread=0.0).mean("web", at), abs=1e-4)


def test_repeated_tokens_are_worth_less_than_new_ones() -> None:
    truth = RepeatedData(spread=0.0)
    fresh = truth.mean("web", {"parameters": 1e9, "tokens": 1e11, "unique_tokens": 1e11})
    repeated = truth.mean("web", {"parameters": 1e9, "tokens": 1e11, "unique_tokens": 1e9})
    once = truth.mean("web", {"parameters": 1e9, "tokens": 1e9, "unique_tokens": 1e9})
    assert fresh < repeated < once


# ---- answers --------------------------------------------------------------------------------------------------------


def test_an_answer_depends_on_seed_and_run_only() -> None:
    ids = [f"r{index}" for index in range(6)]
    forward, backward = open_simulator(noise_df=3), open_simulator(noise_df=3, slots=1)
    first = finish(forward, [forward.submit(job_of(each)) for each in ids])
    second = finish(backward, [backward.submit(job_of(each)) for each in reversed(ids)])
    assert [report.response for report in first] == [report.response for report in reversed(second)]
    assert len({report.response for report in first}) == 6
    other = open_simulator(noise_df=3, seed=1)
    assert finish(other, [other.submit(job_of(ids[0]))])[0].response != first[0].response


def test_the_noise_has_the_size_that_was_asked_for() -> None:
    backend = open_simulator(noise=0.05, slots=2000)
    handles = [backend.submit(job_of(f"r{index}")) for index in range(2000)]
    residuals = np.array([report.response for report in backend.poll(handles)])
    residuals -= float(backend.truth_mean("web", {"N": 1e9, "D": 2e10}))
    assert residuals.std() == pytest.approx(0.05, rel=5 / np.sqrt(2 * 2000))
    assert abs(residuals.mean()) < 5 * 0.05 / np.sqrt(2000)


def test_success_rates_come_with_their_counts() -> None:
    backend = open_simulator(truth="agentic", trials=40)
    report = finish(backend, [backend.submit(job_of())])[0]
    assert report.trials == 40 and report.successes is not None
    assert report.response == report.successes / 40
    plain = open_simulator(truth="agentic", trials=0)
    assert finish(plain, [plain.submit(job_of())])[0].trials is None


def test_runs_have_a_hidden_axis_of_their_own() -> None:
    hidden, seen = (open_simulator(truth="hidden_axis", noise=1e-6, slots=200) for _ in range(2))
    spread = np.std([each.response for each in hidden.poll([hidden.submit(job_of(f"r{i}")) for i in range(200)])])
    assert spread > 0.05
    design = Design(domain="web", axes={"N": 1e9, "D": 2e10, "depth": 24.0})
    handles = [seen.submit(job_of(f"r{i}", design=design)) for i in range(200)]
    assert np.std([each.response for each in seen.poll(handles)]) < 1e-5


@pytest.mark.parametrize(
    ("axes", "options"),
    [
        ({"tokens": 2e9, "parameters": 1e8}, {}),
        ({"D": 2e9, "N": 1e8}, {}),
        ({"size": 1e8, "amount": 2e9}, {}),
        ({"amount": 2e9, "size": 1e8}, {"roles": {"size": "parameters"}}),
        ({"rate": 1e-3, "size": 1e8, "amount": 2e9}, {"roles": {"rate": "learning_rate"}}),
        ({"size": 1e8, "amount": 2e9, "more": 7.0}, {}),
    ],
)
def test_axes_find_their_roles(axes: dict[str, float], options: dict[str, Any]) -> None:
    backend = open_simulator(**options)
    expected = backend.truth.mean("web", {"parameters": 1e8, "tokens": 2e9})
    assert backend.truth_mean("web", axes) == pytest.approx(expected, rel=1e-12)


def test_one_role_for_two_axes_is_refused() -> None:
    with pytest.raises(BackendError, match="same role"):
        open_simulator().truth_mean("web", {"N": 1e8, "params": 1e8})


# ---- costs and failures ---------------------------------------------------------------------------------------------


def test_costs_are_noisy_and_keep_their_mean_on_the_log_scale() -> None:
    backend = open_simulator(cost_noise=0.2, slots=500)
    reports = backend.poll([backend.submit(job_of(f"r{i}", cost=1.0)) for i in range(500)])
    for _ in range(500):
        reports = backend.poll([report.handle for report in reports])
    logs = np.log([report.cost for report in reports if report.cost is not None])
    assert len(logs) == 500
    assert logs.std() == pytest.approx(0.2, rel=5 / np.sqrt(1000)) and abs(logs.mean()) < 5 * 0.2 / np.sqrt(500)
    unknown = open_simulator()
    assert finish(unknown, [unknown.submit(job_of(cost=None))])[0].cost is None


def test_failures_strike_where_they_are_told_to() -> None:
    rule = {"state": "out_of_memory", "above": {"N": 5e9}, "domains": ["web"], "cost_fraction": 0.25}
    backend = open_simulator(failures=[rule])
    designs = [("web", 1e10), ("web", 1e9), ("code", 1e10)]
    handles = [
        backend.submit(job_of(f"r{i}", cost=8.0, design=Design(domain=domain, axes={"N": n, "D": 2e10})))
        for i, (domain, n) in enumerate(designs)
    ]
    reports = finish(backend, handles)
    assert [report.state for report in reports] == ["out_of_memory", "completed", "completed"]
    assert [report.cost for report in reports] == [2.0, 8.0, 8.0]
    assert reports[0].response is None


def test_failures_by_chance_do_not_change_the_answer_of_the_next_attempt() -> None:
    clean, unlucky = open_simulator(), open_simulator(failures=[{"state": "preempted", "probability": 0.5}], slots=400)
    ids = [f"r{i}" for i in range(400)]
    reports = {report.run_id: report for report in finish_all(unlucky, ids, attempt=0)}
    share = np.mean([report.state is RunState.PREEMPTED for report in reports.values()])
    assert share == pytest.approx(0.5, abs=5 * 0.5 / np.sqrt(400))
    victim = next(run_id for run_id in ids if reports[run_id].state is RunState.PREEMPTED)
    attempt = 1
    while (report := finish_all(unlucky, [victim], attempt)[0]).state is RunState.PREEMPTED:
        attempt += 1
    assert report.response == finish_all(clean, [victim], 0)[0].response


def finish_all(backend: Simulator, ids: list[str], attempt: int) -> list[Report]:
    return finish(backend, [backend.submit(job_of(each, attempt=attempt)) for each in ids])


def test_a_deadline_ends_a_run_that_would_take_longer() -> None:
    backend = open_simulator(seconds_per_cost=2.0)
    handle = backend.submit(job_of(cost=10.0, deadline_seconds=5.0))
    report = backend.poll([handle])[0]
    assert (report.state, report.cost, backend.clock) == (RunState.TIMED_OUT, 2.5, 5.0)


# ---- the clock ------------------------------------------------------------------------------------------------------


def test_every_poll_ends_the_next_run() -> None:
    backend = open_simulator(slots=2)
    handles = [backend.submit(job_of(f"r{cost:g}", cost=cost)) for cost in (5.0, 2.0, 1.0, 10.0)]
    seen, clocks = [], []
    for _ in range(4):
        reports = backend.poll(handles)
        seen.append([str(report.state)[:4] for report in reports])
        clocks.append(backend.clock)
    # Two slots: r5 and r2 from 0, r1 from 2 to 3, r10 from 3 to 13.
    assert clocks == [2.0, 3.0, 5.0, 13.0]
    assert seen == [
        ["runn", "comp", "runn", "subm"],
        ["runn", "comp", "comp", "runn"],
        ["comp", "comp", "comp", "runn"],
        ["comp", "comp", "comp", "comp"],
    ]


def test_cancelling_charges_what_was_used_and_frees_the_slot() -> None:
    backend = open_simulator(slots=1)
    long, short, never = (
        backend.submit(job_of(run_id, cost=cost)) for run_id, cost in [("a", 4.0), ("b", 1.0), ("c", 9.0)]
    )
    backend.cancel(never)
    backend.clock = 1.0
    backend.cancel(long)
    reports = backend.poll([long, short, never])
    assert [report.state for report in reports] == ["cancelled", "completed", "cancelled"]
    assert [report.cost for report in reports] == [1.0, 1.0, 0.0]


@pytest.mark.parametrize("truth", ["chinchilla", "rewards"])
def test_runs_report_curves_that_come_to_their_end_value(truth: str) -> None:
    name = next(name for name in TRUTHS if name == truth or (truth == "rewards" and TRUTHS[name].response != "loss"))
    backend = open_simulator(truth=name, curve_points=20, slots=2)
    long, short = backend.submit(job_of("a", cost=8.0)), backend.submit(job_of("b", cost=1.0))
    seen = [backend.poll([long, short]) for _ in range(45)]
    reports = [each[0] for each in seen]
    assert {report.state for report in reports[:10]} == {RunState.RUNNING} and reports[-1].state is RunState.COMPLETED
    lengths = [len(report.points) for report in reports]
    assert lengths == sorted(lengths) and lengths[0] == 0 and lengths[-1] == 20 and len(set(lengths)) > 15
    final = reports[-1]
    assert all(report.points == final.points[: len(report.points)] for report in reports)
    assert final.points[-1].value == final.response and final.points[-1].schedule_complete
    assert final.points[-1].cost == final.cost == 8.0
    assert not any(point.schedule_complete for point in final.points[:-1])
    again = open_simulator(truth=name, curve_points=20, slots=2)
    assert finish(again, [long] * 25)[0].points == final.points


def test_a_run_that_diverges_shows_it_and_a_cancelled_one_keeps_its_curve() -> None:
    backend = open_simulator(curve_points=20, failures=[{"state": "diverged", "cost_fraction": 1.0}])
    handle = backend.submit(job_of())
    for _ in range(18):
        (report,) = backend.poll([handle])
    assert report.state is RunState.RUNNING and [point.value for point in report.points[-2:]] == [None, None]
    backend.cancel(handle)
    (cancelled,) = backend.poll([handle])
    assert cancelled.state is RunState.CANCELLED and cancelled.points == report.points
    assert cancelled.cost == pytest.approx(report.cost)


@pytest.mark.parametrize("value", [-1, 2.5, True, "many", 10_000])
def test_a_wrong_number_of_points_is_refused(value: Any) -> None:
    with pytest.raises(BackendError, match="curve_points"):
        open_simulator(curve_points=value)


def test_realtime_runs_take_their_time() -> None:
    backend = open_simulator(realtime_seconds=0.2, slots=1)
    started = time.monotonic()
    handles = [backend.submit(job_of(run_id)) for run_id in ("a", "b")]
    assert [report.state for report in backend.poll(handles)] == ["running", "submitted"]
    while backend.poll(handles)[1].state is not RunState.COMPLETED:
        time.sleep(0.01)
        assert time.monotonic() - started < 10
    assert time.monotonic() - started >= 0.4


# ---- options --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"truth": "chinchila"}, "Known: agentic, broken, chinchilla"),
        ({"flor": 1.0}, r"backend.flor is unknown.*floor"),
        ({"floor": "low"}, "finite number"),
        ({"floor": float("nan")}, "finite number"),
        ({"noise_df": 0}, "positive"),
        ({"cost_noise": -1.0}, "positive"),
        ({"failures": [{"state": "melted"}]}, "state must be one of diverged"),
        ({"failures": [{"state": "lost", "chance": 1}]}, "probability"),
        ({"truth": "agentic", "exponents": {"worlds_": 1.0}}, "known: environments"),
    ],
)
def test_wrong_options_name_the_key(options: dict[str, Any], words: str) -> None:
    with pytest.raises(BackendError, match=words):
        open_simulator(**options)


def test_constants_of_the_truth_can_be_set_and_foreign_options_do_no_harm() -> None:
    backend = open_simulator(floor=3.0, spread=0.0, trainer="module:function", grace_seconds=1.0)
    assert dataclasses.replace(backend.truth, floor=1.69) == Chinchilla(spread=0.0)
    assert backend.truth_mean("web", {"N": 1e60, "D": 1e60}) == pytest.approx(3.0)
