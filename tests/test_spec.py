"""The study file: what is accepted, what is refused and in which words, and what follows from it."""

import itertools
import json
import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from planner.errors import InputError, SpecError
from planner.spec import StudySpec, check_response, load_study_spec, parse_study_spec, parse_study_toml, study_schema
from planner.spec.templates import TEMPLATE_NAMES, render_template
from planner.spec.tomllines import line_of

SMALL = """\
[study]
name = "small"

[[axes]]
name = "N"
low = 1e6
high = 1e9

[[axes]]
name = "D"
low = 100000000
high = 1000000000000000000000000

[cost]
terms = [{ coefficient = 6, powers = { N = 1, D = 1 } }]

[budget]
total = 1e21
"""


def study(**sections: Any) -> dict[str, Any]:
    """A valid two-axis study as nested dictionaries, with some sections exchanged."""
    base: dict[str, Any] = {
        "study": {"name": "small"},
        "axes": [{"name": "N", "low": 1e6, "high": 1e9}, {"name": "D", "low": 1e8, "high": 1e11}],
        "cost": {"terms": [{"coefficient": 6, "powers": {"N": 1, "D": 1}}]},
        "budget": {"total": 1e21},
    }
    return {name: value for name, value in (base | sections).items() if value is not None}


def axis(**changes: Any) -> dict[str, Any]:
    """A study whose first axis has these keys changed; None removes a key."""
    first = {k: v for k, v in ({"name": "N", "low": 1e6, "high": 1e9} | changes).items() if v is not None}
    constant = {"terms": [{"coefficient": 1}]}
    return study(axes=[first, {"name": "D", "low": 1e8, "high": 1e11}], cost=constant)


def problems(raw: dict[str, Any]) -> dict[str, str]:
    """Key -> message and hint of every problem found."""
    with pytest.raises(SpecError) as caught:
        parse_study_spec(raw)
    return {problem.key: str(problem) for problem in caught.value.problems}


# ---- what is accepted -----------------------------------------------------------------------------------------------


def test_a_small_study_gets_the_stated_defaults(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_text(SMALL)

    spec = load_study_spec(path)

    assert spec.axis_names == ("N", "D")
    assert spec.domain_names == ("default",)
    assert (spec.response.name, spec.response.link, spec.response.goal) == ("loss", "identity", "minimise")
    assert spec.response.noise == "student_t" and spec.response.lower is None
    assert spec.backend.kind == "simulator" and spec.policy.name == "planner" and spec.laws.use == "auto"
    assert spec.path == path and spec.folder == tmp_path and spec.resolve("pool.csv") == tmp_path / "pool.csv"
    assert spec.seed == 0 and spec.warnings == ()


def test_integers_of_any_size_become_floats() -> None:
    spec = parse_study_toml(SMALL)

    assert spec.axes[1].high == 1e24 and isinstance(spec.axes[1].high, float)
    assert isinstance(spec.axes[1].low, float)


def test_a_byte_order_mark_is_no_syntax_error(tmp_path: Path) -> None:
    path = tmp_path / "small.toml"
    path.write_bytes(b"\xef\xbb\xbf" + SMALL.encode())

    assert load_study_spec(path).name == "small"


@pytest.mark.parametrize("kind", TEMPLATE_NAMES)
def test_templates_load_without_problem_or_warning(kind: str) -> None:
    spec = parse_study_toml(render_template(kind, 'a "quoted" näme'))

    assert spec.name == 'a "quoted" näme'
    assert spec.warnings == ()
    assert spec.backend.kind == "simulator"
    assert spec.backend.options.keys() - {"sources"} == {"truth"}


def test_an_unknown_template_names_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"did you mean 'rl-sampling'\?.*agentic-data"):
        render_template("rl_sampling", "x")


def test_backend_and_policy_keep_free_options() -> None:
    spec = parse_study_spec(study(backend={"kind": "local", "slots": 2}, policy={"name": "grid", "levels": 3}))

    assert spec.backend.options == {"slots": 2}
    assert spec.policy.options == {"levels": 3}


@pytest.mark.parametrize("spelling", ["minimize", "minimise"])
def test_both_spellings_of_the_goal(spelling: str) -> None:
    assert parse_study_spec(study(response={"goal": spelling})).response.goal == "minimise"


@pytest.mark.parametrize(
    ("response", "goal", "bounds"),
    [
        ({"link": "neg_log"}, "maximise", (0.0, 1.0)),
        ({"link": "logit"}, "maximise", (0.0, 1.0)),
        ({"link": "logit", "goal": "minimise"}, "minimise", (0.0, 1.0)),
        ({"noise": "binomial", "trials": 200}, "minimise", (0.0, 1.0)),
        ({"link": "log"}, "minimise", (0.0, None)),
        ({}, "minimise", (None, None)),
    ],
)
def test_links_imply_goal_and_bounds(response: dict[str, Any], goal: str, bounds: tuple[float, float]) -> None:
    found = parse_study_spec(study(response=response)).response

    assert (found.goal, (found.lower, found.upper)) == (goal, bounds)


def test_an_axis_of_a_single_value_is_allowed() -> None:
    for changes in ({"low": 1e8, "high": 1e8}, {"low": None, "high": None, "values": [1e8]}):
        first = parse_study_spec(axis(**changes)).axes[0]
        assert first.low == first.high == 1e8 and first.is_fixed


def test_values_are_sorted_and_give_the_bounds() -> None:
    first = parse_study_spec(axis(low=None, high=None, values=[4e8, 1e8, 2e8])).axes[0]

    assert first.values == (1e8, 2e8, 4e8)
    assert (first.low, first.high) == (1e8, 4e8)


def test_shares_may_be_zero() -> None:
    shares = [{"name": f"share_{i}", "simplex": "mixture", "role": "mixture"} for i in range(3)]
    cost = {"terms": [{"coefficient": 1}]}
    spec = parse_study_spec(study(axes=shares, cost=cost))

    assert [(a.low, a.high, a.scale) for a in spec.axes] == [(0.0, 1.0, "linear")] * 3
    assert spec.simplex_groups == {"mixture": (0, 1, 2)}


def test_an_unknown_role_is_a_warning_that_lists_the_known() -> None:
    (warning,) = parse_study_spec(axis(role="parameter")).warnings

    assert warning.startswith("W:unknown_role")
    assert "did you mean 'parameters'" in warning


# ---- what is refused ------------------------------------------------------------------------------------------------


def test_all_mistakes_are_reported_at_once_with_lines(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text(
        """\
[study]
name = "demo"
sead = 3

[response]
noise = "binomal"
link = "log"
lower = -1

[[axes]]
name = "N"
low = "1e6"
high = 1e5

[[axes]]
name = "D"
low = 0
high = nan
integer = "yes"

[[axes]]
name = "D"
low = 10
high = 1
unit = 5

[[domains]]
name = "web"

[cost]
terms = [
  { coefficient = -6, powers = { N = 1, M = 1 } },
  { coeficient = 6, powers = { n = 1 }, domains = { wev = 1 } },
]

[budget]
total = -1

[[targets]]
kind = "recipe"
domain = "code"

[bckend]
kind = "local"
"""
    )

    with pytest.raises(SpecError) as caught:
        load_study_spec(path)

    found = {(problem.line, problem.key) for problem in caught.value.problems}
    assert found == {
        (3, "study.sead"),
        (6, "response.noise"),
        (8, "response.lower"),
        (12, "axes[0].low"),
        (17, "axes[1].low"),
        (18, "axes[1].high"),
        (19, "axes[1].integer"),
        (22, "axes[2].name"),
        (23, "axes[2].low"),
        (25, "axes[2].unit"),
        (31, "cost.terms[0].coefficient"),
        (31, "cost.terms[0].powers.M"),
        (31, "cost.terms[1].coefficient"),
        (31, "cost.terms[1].coeficient"),
        (31, "cost.terms[1].powers.n"),
        (31, "cost.terms[1].domains.wev"),
        (37, "budget.total"),
        (39, "targets[0].budgets"),
        (41, "targets[0].domain"),
        (43, "bckend"),
    }
    assert all(problem.file == str(path) and problem.message for problem in caught.value.problems)
    assert str(caught.value).count("\n") == len(found) - 1


@pytest.mark.parametrize(
    ("raw", "key", "words"),
    [
        (axis(low="1e6"), "axes[0].low", ("not text", "1e6", "without quotes")),
        (axis(low=True), "axes[0].low", ("not true or false",)),
        (axis(low=math.nan), "axes[0].low", ("finite", "nan")),
        (axis(high=10**400), "axes[0].high", ("1.8e308",)),
        (axis(low=0), "axes[0].low", ("log scale", "got 0", 'scale = "linear"')),
        (axis(low=-5), "axes[0].low", ("log scale", "-5", 'scale = "linear"')),
        (axis(low=1e10), "axes[0].low", ("high", "1e+10")),
        (axis(integer=True, low=1.5), "axes[0].low", ("integer", "1.5", "write 1 or 2".capitalize())),
        (axis(integer="true"), "axes[0].integer", ("true or false", "without quotes")),
        (axis(step=0), "axes[0].step", ("greater than 0",)),
        (axis(low=1, high=10, step=4), "axes[0].step", ("high = 9",)),
        (axis(low=1, high=10, step=0.5, integer=True), "axes[0].step", ("integer",)),
        (axis(values=[]), "axes[0].values", ("at least one",)),
        (axis(values=[1e7, 1e7]), "axes[0].values", ("twice",)),
        (axis(values=[1e5]), "axes[0].values", ("between low",)),
        (axis(values=[0, 1e7], low=None, high=None), "axes[0].values", ("log scale",)),
        (axis(values=[1e7], step=1), "axes[0].step", ("values",)),
        (axis(low=None), "axes[0].low", ("required", "pool")),
        (axis(name=""), "axes[0].name", ("not empty",)),
        (axis(name="a=b"), "axes[0].name", ("'='", "'a_b'")),
        (axis(name="cost"), "axes[0].name", ("meaning of its own",)),
        (axis(name="loss"), "axes[0].name", ("response's name",)),
        (axis(scale="lin"), "axes[0].scale", ("'linear'", "Did you mean")),
        (axis(simplex="mix", low=0, high=1), "axes[0].simplex", ("only this axis",)),
        (axis(role="mixture", low=0, high=2), "axes[0].high", ("share",)),
        (study(axes=[]), "axes", ("not be empty",)),
        (study(axes={"name": "N"}), "axes", ("two brackets",)),
        (study(axes=None), "axes", ("required",)),
        (study(cost=None), "cost", ("required",)),
        (study(cost={}), "cost.terms", ("at least one term", "coefficient = 6")),
        (study(cost={"terms": [3]}), "cost.terms[0]", ("table",)),
        (study(cost={"terms": [{"coefficient": 0}]}), "cost.terms[0].coefficient", ("greater than 0", "got 0")),
        (study(cost={"terms": [{"coefficient": math.nan}]}), "cost.terms[0].coefficient", ("finite", "nan")),
        (study(cost={"terms": [{"coefficient": 1, "powers": {"N": "1"}}]}), "cost.terms[0].powers.N", ("not text",)),
        (study(cost={"terms": [{"coefficient": 1, "powers": {"n": 1}}]}), "cost.terms[0].powers.n", ("'N'",)),
        (study(cost={"column": "cost"}), "cost.column", ("pool file",)),
        (study(budget=None), "budget", ("required", "total")),
        (study(budget={"total": math.inf}), "budget.total", ("finite",)),
        (study(budget={"total": 1, "per_run_max": -1}), "budget.per_run_max", ("greater than 0",)),
        (study(domains=[{"name": "a"}, {"name": "a"}]), "domains[1].name", ("domains[0]",)),
        (study(domains=[{"name": "a", "factors": {"x": "1"}}, {"name": "b"}]), "domains[1].factors.x", ("needed",)),
        (study(domains=[{"name": "a", "factors": {"N": "1"}}]), "domains[0].factors.N", ("axis",)),
        (study(targets=[{"kind": "recipe"}]), "targets[0].budgets", ("budgets",)),
        (study(targets=[{"kind": "recipy"}]), "targets[0].kind", ("'recipe'",)),
        (study(targets=[{"kind": "recipe", "budgets": [-1]}]), "targets[0].budgets[0]", ("greater than 0",)),
        (study(targets=[{"kind": "exponent", "axis": "n"}]), "targets[0].axis", ("'N'",)),
        (study(targets=[{"kind": "exponent"}]), "targets[0].axis", ("needs an axis",)),
        (study(targets=[{"kind": "exponent", "axis": "N", "budgets": [1]}]), "targets[0].budgets", ("recipe",)),
        (study(targets=[{"kind": "threshold"}]), "targets[0].response", ("needs a response",)),
        (
            study(targets=[{"kind": "threshold", "response": 1, "probability": 2}]),
            "targets[0].probability",
            ("between 0 and 1",),
        ),
        (study(targets=[{"kind": "prediction", "points": [{"N": 1e9}]}]), "targets[0].points[0].D", ("every axis",)),
        (
            study(targets=[{"kind": "prediction", "points": [{"N": 0, "D": 1e9}]}]),
            "targets[0].points[0].N",
            ("greater than 0",),
        ),
        (
            study(targets=[{"kind": "prediction", "points": [{"N": "1e9", "D": 1e9}]}]),
            "targets[0].points[0].N",
            ("without quotes",),
        ),
        (
            study(targets=[{"kind": "prediction", "points": [{"N": 1e9, "D": 1e9, "domain": "x"}]}]),
            "targets[0].points[0].domain",
            ("default",),
        ),
        (study(laws={"use": "chinchilla"}), "laws.use", ('["chinchilla"]',)),
        (study(laws={"use": []}), "laws.use", ("list of law names",)),
        (study(pool={"where": {"split": "pool"}}), "pool.where", ("file",)),
        (study(pool={"size": 0}), "pool.size", ("greater than 0",)),
        (study(study={"name": "x", "seed": -1}), "study.seed", ("between 0",)),
        (study(study={}), "study.name", ("required",)),
        (study(study="x"), "study", ("table",)),
        (study(study={"name": "x\ny"}), "study.name", ("printable",)),
        (study(response={"noise": "binomial"}), "response.trials", ("trials",)),
        (study(response={"trials": 20}), "response.trials", ("binomial",)),
        (study(response={"noise": "binomial", "trials": 0}), "response.trials", ("at least 1",)),
        (study(response={"noise": "binomial", "trials": 9, "se": "s"}), "response.se", ("binomial",)),
        (study(response={"link": "log", "lower": -6}), "response.lower", ("link log", 'link = "identity"')),
        (study(response={"link": "log", "expect": [-6, -1]}), "response.expect", ("bounds",)),
        (study(response={"link": "neg_log", "upper": 100}), "response.upper", ("between 0 and 1", "per cent")),
        (study(response={"link": "neg_log", "expect": [0, 1]}), "response.expect", ("above 0",)),
        (study(response={"link": "logit", "expect": [0.1, 1]}), "response.expect", ("below 1",)),
        (study(response={"link": "neg_log", "goal": "minimise"}), "response.goal", ("maximise", "link = ")),
        (study(response={"lower": 3, "upper": 2}), "response.lower", ("upper = 2",)),
        (study(response={"expect": [3, 2]}), "response.expect", ("low < high",)),
        (study(response={"expect": [3]}), "response.expect[1]", ("required",)),
    ],
)
def test_a_mistake_is_named_with_rule_and_fix(raw: dict[str, Any], key: str, words: tuple[str, ...]) -> None:
    found = problems(raw)

    assert list(found) == [key]
    for word in words:
        assert word in found[key]


def test_shares_whose_bounds_cannot_sum_to_one() -> None:
    def shares(low: float, high: float) -> dict[str, Any]:
        both = [{"name": name, "simplex": "mix", "low": low, "high": high} for name in "ab"]
        return study(axes=both, cost={"terms": [{"coefficient": 1}]})

    assert "low bounds to 1.2" in problems(shares(0.6, 1.0))["axes[0].simplex"]
    assert "high bounds to 0.8" in problems(shares(0.1, 0.4))["axes[0].simplex"]
    assert parse_study_spec(shares(0.5, 0.5)).simplex_groups == {"mix": (0, 1)}


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ('[study]\nname = "a"\nname = "b"\n', 3, "given twice"),
        ('[study]\nname = "a"\n[study]\n', 3, "given twice"),
        ("[study]\nname = \n", 2, "at column 8"),
        ('[study]\nname = "a\n', 2, "at column"),
        ("[[axes]\n", 1, "at column"),
        ("[study]\nname = [1,\n", 3, "TOML syntax"),
    ],
)
def test_a_syntax_error_has_line_and_column(text: str, line: int, words: str) -> None:
    with pytest.raises(SpecError) as caught:
        parse_study_toml(text, path="x.toml")

    (problem,) = caught.value.problems
    assert problem.file == "x.toml" and problem.line == line
    assert words in str(problem)


@pytest.mark.parametrize(
    ("content", "words"), [(b"\xff\xfe[\x00", "not UTF-8"), (b"a = " + b"9" * 5000, "not readable")]
)
def test_a_file_that_is_no_text(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "x.toml"
    path.write_bytes(content)

    with pytest.raises(SpecError, match=words):
        load_study_spec(path)


def test_a_missing_file_says_how_to_write_one(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.toml: there is no such file.*planner init"):
        load_study_spec(tmp_path / "none.toml")
    with pytest.raises(SpecError, match="directory"):
        load_study_spec(tmp_path)


ODD_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=5), inner, max_size=2),
    max_leaves=4,
)
PLACES = [
    *itertools.product(["study"], ["name", "seed"]),
    *itertools.product(["response"], ["link", "lower", "noise", "trials", "expect", "se"]),
    *itertools.product(["axes"], ["name", "low", "values", "step", "simplex", "role"]),
    *itertools.product(["cost"], ["terms", "column"]),
    *itertools.product(["targets"], ["kind", "points", "budgets", "where", "axis"]),
    *itertools.product(["domains"], ["name", "factors"]),
    *itertools.product(["pool", "laws", "backend", "store", "policy"], ["file", "use", "kind", "url", "name"]),
]


@given(place=st.sampled_from(PLACES), value=ODD_VALUES, whole=st.booleans())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_any_value_anywhere_is_accepted_or_a_spec_error(place: tuple[str, str], value: Any, whole: bool) -> None:
    section, key = place
    raw = study(targets=[{"kind": "recipe", "budgets": [1e22]}], domains=[{"name": "web"}])
    raw.setdefault(section, {})
    if whole:
        raw[section] = value
    elif isinstance(raw[section], list):
        raw[section][0][key] = value
    else:
        raw[section] = {**raw[section], key: value}

    try:
        spec = parse_study_spec(raw)
    except SpecError as error:
        assert error.problems and str(error)
    else:
        assert spec.axis_names


# ---- what follows ---------------------------------------------------------------------------------------------------


@given(n=st.integers(10**6, 10**13), d=st.integers(10**6, 10**15))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_costs_do_not_wrap_round_for_integers(n: int, d: int) -> None:
    spec = parse_study_spec(study())
    exact = 6 * n * d

    assert spec.cost_of("default", {"N": n, "D": d}) == pytest.approx(exact, rel=1e-15)
    assert spec.costs(np.array([0]), np.array([[n, d]], dtype=np.int64))[0] == pytest.approx(exact, rel=1e-15)


def test_costs_of_the_public_overflow_case() -> None:
    spec = parse_study_spec(study())

    costs = spec.costs(np.zeros(3, dtype=np.int64), np.array([[7_000_000_000, 2_000_000_000_000]] * 3))

    assert costs.dtype == np.float64
    assert costs.tolist() == [8.4e22] * 3


def test_costs_follow_the_posynomial_with_coefficients_per_domain() -> None:
    terms = [
        {"coefficient": 6.0, "powers": {"N": 1, "D": 1}, "domains": {"code": 8.0}},
        {"coefficient": 0.5, "powers": {"N": 1.5, "D": -0.25}},
        {"coefficient": 3e15},
    ]
    spec = parse_study_spec(study(domains=[{"name": "web"}, {"name": "code"}], cost={"terms": terms}))
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(np.log(1e6), np.log(1e11), (40, 2)))
    domain = rng.integers(0, 2, 40)

    expected = np.where(domain == 1, 8.0, 6.0) * x[:, 0] * x[:, 1] + 0.5 * x[:, 0] ** 1.5 / x[:, 1] ** 0.25 + 3e15
    assert spec.costs(domain, x) == pytest.approx(expected, rel=1e-12)

    for name, index in (("web", 0), ("code", 1)):
        coefficients, powers = spec.posynomial(name)
        assert coefficients.shape == (3,) and powers.shape == (3, 2)
        by_logs = np.exp(np.log(x) @ powers.T) @ coefficients
        assert by_logs[domain == index] == pytest.approx(expected[domain == index], rel=1e-10)
        point = dict(zip(spec.axis_names, x[0], strict=True))
        assert spec.cost_of(name, point) == spec.costs(np.array([index]), x[:1])[0]


def test_points_are_checked() -> None:
    spec = parse_study_spec(study())

    assert spec.point({"D": 2e10, "N": 1e9}).tolist() == [1e9, 2e10]
    for axes, words in (
        ({"N": 1e9}, "lacks a value for axis 'D'"),
        ({"N": 1e9, "d": 1}, "unknown axis 'd'; did you mean 'D'"),
        ({"N": 0.0, "D": 1e9}, "greater than 0, got 0"),
        ({"N": 1e9, "D": math.nan}, "got nan"),
    ):
        with pytest.raises(InputError, match=words):
            spec.point(axes)
    with pytest.raises(InputError, match="unknown domain 'x'; known: default"):
        spec.cost_of("x", {"N": 1e9, "D": 1e9})


@pytest.mark.parametrize(
    ("response", "value", "words"),
    [
        ({"link": "log"}, -5.34, 'link = "identity"'),
        ({"link": "log"}, 0.0, "greater than 0"),
        ({"link": "log"}, 2.0, None),
        ({}, -5.34, None),
        ({"lower": -6.0, "upper": 0.0}, -5.34, None),
        ({"lower": -6.0, "upper": 0.0}, 0.1, "upper = 0"),
        ({"lower": 1.0}, 0.5, "lower = 1"),
        ({"link": "neg_log"}, 35.0, "divide per cent by 100"),
        ({"link": "neg_log"}, -0.1, "between 0 and 1"),
        ({"link": "neg_log"}, 0.0, None),
        ({"link": "logit"}, 1.0, None),
        ({"noise": "binomial", "trials": 200}, 1.0, None),
        ({"link": "log"}, math.nan, None),
        ({"link": "neg_log"}, math.inf, None),
    ],
)
def test_responses_are_refused_with_a_hint(response: dict[str, Any], value: float, words: str | None) -> None:
    complaint = check_response(parse_study_spec(study(response=response)), value)

    if words is None:
        assert complaint is None
    else:
        assert complaint is not None and words in complaint and f"{value:g}" in complaint


def test_the_digest_is_that_of_the_statistics(tmp_path: Path) -> None:
    base = parse_study_spec(study()).digest

    for same in (
        study(budget={"total": 5}),
        study(study={"name": "other", "seed": 4}),
        study(backend={"kind": "local"}),
        study(store={"url": "sqlite:///x"}),
        study(axes=[{"name": "N", "low": 1000000, "high": 1e9}, {"name": "D", "low": 1e8, "high": 100000000000}]),
    ):
        assert parse_study_spec(same).digest == base
    for other in (
        study(axes=[{"name": "N", "low": 2e6, "high": 1e9}, {"name": "D", "low": 1e8, "high": 1e11}]),
        study(response={"link": "log"}),
        study(domains=[{"name": "web"}]),
        study(cost={"terms": [{"coefficient": 5, "powers": {"N": 1, "D": 1}}]}),
        study(laws={"use": ["chinchilla"]}),
        study(targets=[{"kind": "recipe", "budgets": [1e22]}]),
    ):
        assert parse_study_spec(other).digest != base


def test_the_digest_follows_the_contents_of_the_pool(tmp_path: Path) -> None:
    pool = tmp_path / "pool.csv"
    digests = []
    for text in ("N,D\n1e7,1e9\n", "N,D\n1e7,2e9\n"):
        pool.write_text(text)
        digests.append(parse_study_spec(study(pool={"file": str(pool)})).digest)
    pool.unlink()
    digests.append(parse_study_spec(study(pool={"file": str(pool)})).digest)

    assert len(set(digests)) == 3


def test_a_loaded_study_does_not_change() -> None:
    spec = parse_study_spec(study())

    with pytest.raises(ValueError, match="frozen"):
        spec.budget.total = 3.0
    with pytest.raises(ValueError, match="frozen"):
        spec.budget = spec.budget


def test_a_changed_copy_forgets_what_was_derived() -> None:
    spec = parse_study_spec(study())
    digest, kept = spec.digest, spec.cached("x", lambda: 1)
    other = spec.model_copy(update={"response": spec.response.model_copy(update={"name": "other"})})

    assert kept == 1 and other.cached("x", lambda: 2) == 2 and spec.cached("x", lambda: 3) == 1
    assert other.digest != digest == spec.digest


def test_models_built_without_the_loader_check_references_too() -> None:
    with pytest.raises(ValueError, match=r"axes\[1\].name: is already the name"):
        StudySpec.model_validate(study(axes=[{"name": "N", "low": 1, "high": 2}] * 2))


def test_the_schema_describes_the_file() -> None:
    schema = json.loads(json.dumps(study_schema()))

    assert schema["required"] == ["study", "axes", "cost", "budget"]
    assert set(schema["properties"]) >= {"axes", "domains", "targets", "pool"}
    assert schema["additionalProperties"] is False


# ---- studies with a pool file ---------------------------------------------------------------------------------------


def pool_study(path: Path, text: str, **sections: Any) -> StudySpec:
    path.write_text(text)
    raw = study(axes=[{"name": "N"}, {"name": "D"}], pool={"file": path.name, "domain": "group"}, **sections)
    return parse_study_spec(raw, path=path.parent / "study.toml")


def test_bounds_and_domains_come_from_the_pool(tmp_path: Path) -> None:
    spec = pool_study(tmp_path / "p.csv", "group,N,D\nweb,1e7,1e9\n3,1e8,2e9\nweb,5e6,1e10\n")

    assert spec.domain_names == ("web", "3")
    assert [(a.low, a.high) for a in spec.axes] == [(5e6, 1e8), (1e9, 1e10)]


def test_the_pool_is_read_only_when_needed(tmp_path: Path) -> None:
    raw = study(axes=[{"name": "N"}, {"name": "D"}], pool={"file": "absent.csv", "domain": "group"})
    spec = parse_study_spec(raw, path=tmp_path / "study.toml")

    assert spec.axis_names == ("N", "D") and spec.digest
    with pytest.raises(InputError, match=r"absent\.csv: there is no such file"):
        _ = spec.domains


def test_the_price_of_a_pool_row_comes_from_its_column(tmp_path: Path) -> None:
    text = "group,N,D,price\nweb,1e7,1e9,5\ncode,1e7,1e9,7\n"
    spec = pool_study(tmp_path / "p.csv", text, cost={"column": "price"})

    assert spec.cost_of("code", {"N": 1e7, "D": 1e9}) == 7.0
    assert spec.costs(np.array([1, 0, 1]), np.array([[1e7, 1e9]] * 3)).tolist() == [7.0, 5.0, 7.0]
    with pytest.raises(InputError, match=r"not a row of the pool.*column 'price'.*cost\.terms"):
        spec.cost_of("web", {"N": 1e7, "D": 2e9})
    with pytest.raises(InputError, match="only known for rows of the pool"):
        spec.posynomial("web")
    recipe = [{"kind": "recipe", "budgets": [1e22]}]
    with pytest.raises(SpecError, match=r"targets\[0\]\.kind: a recipe weighs points.*\[\[cost\.terms\]\]"):
        pool_study(tmp_path / "p.csv", text, cost={"column": "price"}, targets=recipe)


def test_points_off_the_pool_are_priced_by_terms_if_there_are_any(tmp_path: Path) -> None:
    cost = {"column": "price", "terms": [{"coefficient": 2, "powers": {"N": 1}}]}
    spec = pool_study(tmp_path / "p.csv", "group,N,D,price\nweb,1e7,1e9,5\n", cost=cost)

    assert spec.costs(np.array([0, 0]), np.array([[1e7, 1e9], [1e7, 2e9]])).tolist() == [5.0, 2e7]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("group,N,D\nweb,0,1e9\n", r"p\.csv:2: N: .*log scale.*got 0.*scale = \"linear\""),
        ("group,N,D\nweb,1e7,1e9\nweb,-1,1e9\n", r"p\.csv:3: N: .*got -1"),
        ("group,N,D\nweb,,1e9\n", r"p\.csv:2: N: the axis value is missing"),
        ("group,N,D\nweb,inf,1e9\n", r"p\.csv:2: N: the axis value is infinite"),
        ("group,N,D\n,1e7,1e9\n", r"p\.csv:2: group: the domain is missing"),
        ("group,N\nweb,1e7\n", r"has no column 'D'"),
        ("domain,N,D\nweb,1e7,1e9\n", r"has no column 'group'"),
    ],
)
def test_mistakes_in_the_pool_are_refused_by_line(tmp_path: Path, text: str, words: str) -> None:
    spec = pool_study(tmp_path / "p.csv", text)

    with pytest.raises(InputError, match=words):
        _ = spec.pool_rows


@pytest.mark.parametrize("price", ["-3", "0", "nan", "", "inf"])
def test_a_cost_that_is_not_positive_is_refused_by_row(tmp_path: Path, price: str) -> None:
    spec = pool_study(tmp_path / "p.csv", f"group,N,D,c\nweb,1e7,1e9,1\nweb,1e7,2e9,{price}\n", cost={"column": "c"})

    with pytest.raises(InputError, match=r"p\.csv:3: c: a cost must be finite and greater than 0"):
        _ = spec.pool_rows


def test_declared_domains_must_cover_the_pool(tmp_path: Path) -> None:
    domains = [{"name": "web"}, {"name": "new"}]
    spec = pool_study(tmp_path / "p.csv", "group,N,D\nweb,1e7,1e9\nwbe,1e7,2e9\n", domains=domains)

    assert spec.domain_names == ("web", "new")
    with pytest.raises(InputError, match=r"p\.csv:3: group: is not a declared domain.*got wbe.*Did you mean 'web'"):
        _ = spec.pool_rows


def test_rows_outside_declared_bounds_are_left_out_and_said(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("N,D\n0,1e9\n1e7,1e9\n1e8,2e9\n")
    raw = study(axes=[{"name": "N", "low": 1e7, "high": 5e7}, {"name": "D"}], pool={"file": "p.csv"})
    rows = parse_study_spec(raw, path=tmp_path / "study.toml").pool_rows

    assert rows.x.tolist() == [[1e7, 1e9]]
    assert rows.row.tolist() == [1]
    assert rows.warnings[0].startswith("W:outside_bounds") and "2 rows" in rows.warnings[0]


def test_where_selects_rows_and_says_what_a_column_holds(tmp_path: Path) -> None:
    text = "group,N,D,split,k\nweb,1e7,1e9,pool,1\nweb,1e7,2e9,target,1\nweb,1e7,3e9,pool,2\n"
    path = tmp_path / "p.csv"
    path.write_text(text)

    def rows(where: dict[str, Any]) -> list[float]:
        raw = study(axes=[{"name": "N"}, {"name": "D"}], pool={"file": str(path), "domain": "group", "where": where})
        found: list[float] = parse_study_spec(raw).pool_rows.x[:, 1].tolist()
        return found

    assert rows({"split": "pool"}) == [1e9, 3e9]
    assert rows({"split": "pool", "k": 2}) == [3e9]
    assert rows({"split": ["pool", "target"], "k": 1}) == [1e9, 2e9]
    with pytest.raises(InputError, match=r"selects no row.*column 'split' holds 'pool', 'target'"):
        rows({"split": "train"})


# ---- lines and imports ----------------------------------------------------------------------------------------------


def test_lines_of_keys_are_found_in_all_ways_of_writing_them() -> None:
    text = """\
# comment = 1
study = { name = "a" }

[[axes]]   # first
name = "N"

[[axes]]
"low" = 1
[cost]
terms = [
  { coefficient = 1 },
]
[[cost.extra]]
a.b = 1
"""
    assert line_of(text, "study.name") == 2
    assert line_of(text, "axes[0].name") == 5
    assert line_of(text, "axes[0].high") == 4
    assert line_of(text, "axes[1].low") == 8
    assert line_of(text, "cost.terms[0].coefficient") == 10
    assert line_of(text, "cost.extra[0].a.b") == 14
    assert line_of(text, "nothing.here") is None


def test_loading_a_study_imports_nothing_heavy() -> None:
    program = (
        "import sys; from planner.spec import parse_study_toml; from planner.spec.templates import render_template;"
        "spec = parse_study_toml(render_template('language-model', 'x')); spec.digest, spec.axes, spec.domains;"
        "print([m for m in ('jax', 'numpyro', 'pandas', 'pyarrow', 'scipy', 'sqlalchemy') if m in sys.modules])"
    )
    root = Path(__file__).resolve().parents[1]
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=root)

    assert done.stdout.strip() == "[]"
