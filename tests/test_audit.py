"""The audit: its statistics against oracles, its rules on plain numbers, and whole studies good and bad."""

import dataclasses
import itertools
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from planner import cli, verdict
from planner.commands import shared
from planner.inference import diagnostics
from planner.inference.diagnostics import LawCheck, Repeats, Runs
from planner.report import text
from planner.study import Study

# ---- statistics -----------------------------------------------------------------------------------------------------


def test_normal_scores_recover_the_normal_deviate_inside_and_outside_the_draws() -> None:
    num_draws = 40_000
    draws = np.sort(np.random.default_rng(0).standard_normal(num_draws))[:, None] * 2.0 + 1.0
    for true in (-8.0, -1.5, 0.0, 0.7, 2.0, 6.0):
        found = diagnostics.normal_scores(draws, np.array([1.0 + 2.0 * true]))[0]
        # sqrt(p (1 - p) / S) / density: at most 1.8 / sqrt(S) within two deviations; beyond the 1 % quantile (2.33)
        # 3.7 / sqrt(S) there, growing with the distance.
        error = max(1.8, 3.7 * abs(true) / 2.33) / np.sqrt(num_draws)
        assert found == pytest.approx(true, abs=5.0 * error)


def test_normal_scores_of_skew_draws_use_the_quantile_of_their_side() -> None:
    draws = np.exp(np.random.default_rng(1).standard_normal((20_000, 1)))
    far = diagnostics.normal_scores(draws, np.array([1.0 + 2.0 * (np.exp(2.326) - 1.0)]))[0]
    assert far == pytest.approx(2.0 * 2.326, rel=0.1)


def test_runs_test_is_the_share_of_orders_with_as_few_changes() -> None:
    residual = np.array([1.0, 2.0, 3.0, 1.5, -1.0, -2.0, -3.0, -1.5, -0.5, 0.5])
    along, domain = np.arange(10.0), np.zeros(10, dtype=int)
    signs = np.sign(residual - np.median(residual))

    def changes(order: Sequence[float]) -> int:
        return sum(a != b for a, b in itertools.pairwise(order))

    orders = set(itertools.combinations(range(10), int((signs > 0).sum())))
    as_few = [changes([i in chosen for i in range(10)]) <= changes(list(signs)) for chosen in orders]
    # Exact by enumeration of the sign orders; the normal approximation is within a few per cent at ten signs.
    assert diagnostics.sign_run_level(residual, along, domain) == pytest.approx(np.mean(as_few), abs=0.02)


def test_runs_test_orders_by_the_axis_and_within_domains() -> None:
    rng = np.random.default_rng(2)
    along = rng.permutation(24).astype(float)
    bowl = (along - 11.5) ** 2
    none = np.zeros(24, dtype=int)
    assert diagnostics.sign_run_level(bowl, along, none) < 1e-3
    assert diagnostics.sign_run_level(bowl, rng.permutation(24).astype(float), none) > 0.05
    # Two domains, each alternating: interleaved they look like stretches, apart they do not.
    alternating = np.tile([1.0, 1.0, -1.0, -1.0], 6)
    domain = np.tile([0, 1], 12)
    assert diagnostics.sign_run_level(alternating, np.arange(24.0), domain) > 0.99
    assert diagnostics.sign_run_level(alternating, np.arange(24.0), none) < 0.9


def test_spread_ignores_the_levels_of_domains() -> None:
    domain = np.array([0, 0, 1, 1])
    assert diagnostics.spread_within(np.array([1.0, 3.0, 101.0, 103.0]), domain) == pytest.approx(1.0)
    assert diagnostics.spread_within(np.zeros(0), np.zeros(0, dtype=int)) == 0.0


def test_repeats_pool_the_spread_of_equal_inputs() -> None:
    eta = np.array([1.0, 1.2, 5.0, 2.0, 2.6, 2.3])
    domain = np.array([0, 0, 1, 0, 0, 0])
    at = np.array([[1.0], [1.0], [1.0], [2.0], [2.0], [2.0]])
    found = diagnostics.repeats(Runs(domain, at, eta, np.full(6, 0.05)), at, np.zeros(6))
    assert found is not None
    assert [rows.tolist() for rows in found.groups] == [[3, 4, 5], [0, 1]]
    assert found.spread == pytest.approx(np.sqrt((0.02 + 0.18) / 3))
    assert (found.degrees, found.range, found.elsewhere) == (3, pytest.approx(0.6), 0.0)
    assert found.known == pytest.approx(0.05)
    alone = Runs(domain[2:4], at[2:4], eta[2:4], np.zeros(2))
    assert diagnostics.repeats(alone, at[2:4], np.zeros(2)) is None


# ---- rules ----------------------------------------------------------------------------------------------------------

GOOD = LawCheck(weight=1.0, explained=1.0, discrepancy=0.05, noise=0.02, residual=0.06, turning=0.4)
SOUND = verdict.Findings(
    num_runs=20,
    moved=1.0,
    laws={"good": GOOD},
    surprises={"a": 0.3, "b": -1.1, "c": 0.8},
    spread=1.0,
    covered=0.9,
    multipliers={"a": 1.0, "b": 0.9},
    repeats=None,
    repeat_ids=[],
    prior_driven=[],
    far=[],
    notes=["one domain: no sharing possible"],
)


def test_a_sound_study_is_trusted() -> None:
    assert verdict.judge(SOUND) == (verdict.TRUST, [], [])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"discrepancy": 0.4}, "needs a discrepancy of 0.4"),
        ({"residual": 0.9}, "residuals of 0.9"),
        ({"residual": 0.25, "turning": 1e-4}, "turn along an axis"),
        ({"explained": 0.0}, "explains nothing"),
    ],
)
def test_a_law_that_does_not_follow_the_runs_is_refused(change: dict[str, float], words: str) -> None:
    bad = GOOD._replace(**change)
    assert not verdict.law_fits(bad) and verdict.law_fits(GOOD)
    judged, failures, _ = verdict.judge(dataclasses.replace(SOUND, laws={"bad": bad}))
    assert judged == verdict.NO_LAW
    assert "bad" in failures[0] and words in failures[0]
    # Too few runs, or runs in one place, cannot refuse a law.
    for few in ({"num_runs": 7}, {"moved": 0.1}):
        assert verdict.judge(dataclasses.replace(SOUND, laws={"bad": bad}, **few))[0] == verdict.TRUST


def test_turning_residuals_too_small_to_matter_are_forgiven() -> None:
    assert verdict.law_fits(GOOD._replace(residual=0.1, turning=1e-8))


def test_laws_are_refused_by_their_weight() -> None:
    good, bad = GOOD._replace(weight=0.25), GOOD._replace(weight=0.75, discrepancy=2.0)
    judged, _, reasons = verdict.judge(dataclasses.replace(SOUND, laws={"good": good, "bad": bad}))
    assert judged == verdict.CARE and reasons == ["misfit: laws with 75 % of the weight do not follow the runs (bad)"]
    good, bad = GOOD._replace(weight=0.15), bad._replace(weight=0.85)
    assert verdict.judge(dataclasses.replace(SOUND, laws={"good": good, "bad": bad}))[0] == verdict.NO_LAW


@pytest.mark.parametrize(
    ("change", "judged", "words"),
    [
        ({"surprises": {"a": 3.5, "b": -4.0, "c": 3.2}}, verdict.NO_LAW, "dearest runs were missed"),
        ({"surprises": {"a": 2.5, "b": -2.0, "c": 2.2}}, verdict.CARE, "median |z| 2.2"),
        ({"surprises": {"a": 0.5, "b": 6.0, "c": 0.2}}, verdict.CARE, "b (z 6.0)"),
        ({"covered": 0.3}, verdict.CARE, "held 30 %"),
        ({"multipliers": dict.fromkeys("abc", 0.1)}, verdict.CARE, "3 of 20 runs"),
        ({"prior_driven": ["floor"]}, verdict.CARE, "prior-driven: the runs hardly moved floor"),
        ({"far": ["predictions in d0"]}, verdict.CARE, "far targets"),
        ({"notes": ["axis N never moved: its exponent is the prior's"]}, verdict.CARE, "axis N never moved"),
    ],
)
def test_each_finding_has_its_words(change: dict[str, Any], judged: str, words: str) -> None:
    found, failures, reasons = verdict.judge(dataclasses.replace(SOUND, **change))
    assert found == judged
    assert words in " ".join([*failures, *reasons])


def test_two_outliers_of_twenty_are_named_in_a_table_and_no_reason() -> None:
    assert verdict.judge(dataclasses.replace(SOUND, multipliers=dict.fromkeys("ab", 0.05)))[0] == verdict.TRUST


@pytest.mark.parametrize(
    ("change", "suspected"),
    [
        ({}, True),
        ({"spread": 0.05}, False),  # little against all responses
        ({"degrees": 2}, False),  # too few to say
        ({"known": 0.15}, False),  # the runs said so themselves
        ({"elsewhere": 0.2}, False),  # as noisy as everything
        ({"elsewhere": 0.05}, True),
    ],
)
def test_a_hidden_axis_is_suspected_where_repeats_differ_more_than_noise(
    change: dict[str, float], suspected: bool
) -> None:
    found = Repeats([np.arange(5)], spread=0.25, degrees=4, range=0.6, known=0.0, elsewhere=0.0)._replace(**change)
    findings = dataclasses.replace(SOUND, repeats=found, repeat_ids=["r1", "r2"])
    assert verdict.hidden_axis_suspected(findings) is suspected
    assert any(reason.startswith("hidden_axis_suspected") for reason in verdict.cautions(findings)) is suspected


# ---- studies --------------------------------------------------------------------------------------------------------

STUDY = """
[study]
name = "audited"

[response]
name = "loss"

[[axes]]
name = "N"
low = 1e6
high = 1e9
role = "parameters"

[[domains]]
name = "web"

[[domains]]
name = "code"

[cost]
terms = [{ coefficient = 1, powers = { N = 1 } }]

[budget]
total = 1e12

[laws]
use = ["sum_of_powers"]

[[targets]]
kind = "prediction"
points = [{ N = 3e9 }, { N = 1e13 }]
"""
ONE_DOMAIN = STUDY.replace('[[domains]]\nname = "code"\n', "")


def _study(folder: Path, n: np.ndarray, loss: np.ndarray, *, domains: Sequence[str] = ("web",)) -> Path:
    """A study whose run i, of the domain i modulo their number, has size n[i] and the response loss[i]."""
    path = folder / "audited.toml"
    path.write_text(STUDY if len(domains) > 1 else ONE_DOMAIN)
    with Study.open(path) as study:
        for i, (size, response) in enumerate(zip(n, loss, strict=True)):
            study.attach({"N": float(size)}, float(response), domain=domains[i % len(domains)], seed=i)
    return path


def _sizes(num: int) -> np.ndarray:
    return np.geomspace(1.1e6, 9e8, num)


def _power(n: np.ndarray, seed: int = 0, noise: float = 0.003) -> np.ndarray:
    return 1.7 + 400.0 * n**-0.34 + noise * np.random.default_rng(seed).standard_normal(len(n))


def _bowl(n: np.ndarray) -> np.ndarray:
    return 3.0 + 0.1 * np.log(n / 1e7) ** 2 + 0.02 * np.random.default_rng(1).standard_normal(len(n))


def test_a_power_law_fits_its_own_runs(tmp_path: Path) -> None:
    path = _study(tmp_path, _sizes(20), _power(_sizes(20)))
    with Study.open(path) as study:
        audit = study.audit()
        again = study.audit()
    assert audit.verdict == verdict.CARE
    assert [reason.split(":")[0] for reason in audit.reasons] == ["far targets"]  # 1e13 is meant to be
    assert audit.laws["fits"].tolist() == [True] and audit.laws["formula"][0].startswith("E +")
    assert "power laws" in audit.laws["why"][0]
    assert audit.dearest["num_known"].tolist() == [16, 16, 18, 19]
    assert (audit.dearest["z"].abs() < 4).all()
    assert audit.dearest["cost"].is_monotonic_increasing and audit.dearest["cost"].iloc[-1] == pytest.approx(9e8)
    assert set(audit.parameters["parameter"]) == {"floor", "log_amplitude_N", "log_exponent_N"}
    assert (audit.parameters["contraction"] > 0.5).all()
    assert len(audit.runs) == 20 and not audit.runs["outlier"].any()
    targets = audit.targets.set_index("target").loc["predictions"]
    assert (targets["points"], targets["num_far"]) == (2, 1)
    assert list(tmp_path.glob("*.audit-*.npz"))
    assert again.document() == audit.document()


def test_a_bowl_is_refused_where_laws_only_fall(tmp_path: Path, run: Callable[..., tuple[int, str, str]]) -> None:
    path = _study(tmp_path, _sizes(20), _bowl(_sizes(20)))
    code, out, err = run("audit", path, "--json")
    document = json.loads(out, parse_constant=lambda name: pytest.fail(f"bare {name}"))
    assert code == 4 and err.startswith("error: no law fits: ")
    assert document["verdict"] == "no law fits" and "sum_of_powers" in document["failures"][0]
    assert [row["fits"] for row in document["laws"]] == [False]
    code, out, _ = run("audit", path)
    assert code == 4 and out.startswith("verdict  no law fits\n  because ")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., tuple[int, str, str]]:
    """Runs `planner` in this process: exit code, standard output, standard error."""
    monkeypatch.setattr(shared, "prepare_numerics", lambda **options: None)

    def command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["planner", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        captured = capsys.readouterr()
        return int(ended.value.code or 0), captured.out, captured.err

    return command


def test_shuffled_responses_are_refused(tmp_path: Path) -> None:
    shuffled = np.random.default_rng(3).permutation(_power(_sizes(20)))
    with Study.open(_study(tmp_path, _sizes(20), shuffled)) as study:
        assert study.audit().verdict == verdict.NO_LAW


@pytest.mark.parametrize("num", [0, 1, 2])
def test_few_runs_say_what_cannot_be_checked(tmp_path: Path, num: int) -> None:
    path = _study(tmp_path, _sizes(3)[:num], _power(_sizes(3))[:num], domains=("web", "code"))
    with Study.open(path) as study:
        audit = study.audit()
    assert audit.verdict == verdict.CARE
    unchecked = " ".join(audit.unchecked)
    assert "the dearest runs" in unchecked
    assert ("domains predicted from one another" in unchecked) == (num < 2)
    assert ("prior only" in " ".join(audit.reasons)) == (num == 0)
    assert len(audit.left_out) == (2 if num == 2 else 0)
    assert audit.laws["fits"].isna().all()
    text.audit(json.loads(json.dumps(audit.document(), allow_nan=False)))


def test_without_runs_nothing_contracts(tmp_path: Path) -> None:
    with Study.open(_study(tmp_path, np.zeros(0), np.zeros(0), domains=("web", "code"))) as study:
        parameters = study.audit().parameters
    # A standard deviation from 1000 draws is known to 2 %; that of a scale mixture over domains to somewhat less.
    assert (parameters["contraction"].abs() < 0.15).all() and parameters["prior_driven"].all()


def test_an_outlier_and_a_hidden_axis_are_named(tmp_path: Path) -> None:
    n = np.repeat(_sizes(12), 2)
    loss = _power(n)
    loss[7] += 1.0
    with Study.open(_study(tmp_path, n, loss)) as study:
        audit = study.audit()
        ids = [run.run_id for run in study.state.runs.values()]
    assert audit.runs.loc[audit.runs["outlier"], "run"].tolist() == [ids[7]]
    assert audit.numbers["num_outliers"] == 1 and audit.numbers["num_repeated"] == 24
    assert any(ids[7] in reason for reason in audit.reasons if reason.startswith("hidden_axis_suspected"))
    shown = "\n".join(text.audit(audit.document()))
    assert f"\n{ids[7]}" in shown and "noise deviations off" in shown


def test_each_domain_is_predicted_from_the_others(tmp_path: Path) -> None:
    n = _sizes(16)
    with Study.open(_study(tmp_path, n, _power(n), domains=("web", "code"))) as study:
        left_out = study.audit().left_out.set_index("domain")
    assert left_out["runs"].to_dict() == {"web": 8, "code": 8}
    # The same law in both domains: eight runs of one say nearly all of the other.
    assert (left_out["coverage_90"] > 0.7).all()
    assert (left_out["error"] < 0.3 * np.ptp(_power(n))).all()
