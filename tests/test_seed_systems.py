"""What the studies of agents and of sampling need: drivers of cost, limits, derived settings, gates, rollouts."""

import itertools
import os
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import seed_tables, seeds
from planner import candidates, diagnosis, laws, rollouts
from planner.errors import InputError, SpecError
from planner.laws.base import Context, LawAxis
from planner.pooling import pool
from planner.rollouts import record_breaking
from planner.spec import StudySpec, parse_study_spec
from planner.spec.templates import TEMPLATE_NAMES, render_template
from planner.study import Study

ROLLOUTS, PROBLEMS, UPDATES = (LawAxis(name=role, role=role) for role in ("rollouts", "problems", "updates"))
WORLDS, TASKS = (LawAxis(name=role, role=role) for role in ("environments", "tasks"))


def study(**changes: Any) -> StudySpec:
    document: dict[str, Any] = {
        "study": {"name": "drivers"},
        "axes": [
            {"name": "N", "low": 1e8, "high": 1e9},
            {"name": "tasks", "low": 10, "high": 1000},
            {"name": "trajectories", "values": [1, 2, 4, 8]},
        ],
        "domains": [{"name": "math"}, {"name": "swe"}],
        "cost": {
            "unit": "second",
            "conversions": {"dollar": 1800.0, "FLOP": 1e-15},
            "constants": {
                "tokens": {"math": 2600, "swe": 11400},
                "kept": {"math": 0.93, "swe": 0.81},
                "busy": {"math": 0.61, "swe": 0.38},
                "verifier": {"math": 0.4, "swe": 41},
            },
            "terms": [
                {"coefficient": 0.02, "unit": "dollar", "powers": {"tasks": 1}},
                {
                    "coefficient": 8,
                    "unit": "FLOP",
                    "powers": {"N": 1, "tasks": 1, "trajectories": 1, "tokens": 1, "kept": -1, "busy": -1},
                },
                {"coefficient": 1, "powers": {"tasks": 1, "trajectories": 1, "verifier": 1, "kept": -1}},
            ],
        },
        "budget": {"total": 1e7},
    }
    return parse_study_spec(document | changes)


def test_drivers_of_cost_enter_with_their_powers_and_units() -> None:
    point = {"N": 5e8, "tasks": 100, "trajectories": 4}
    for domain, tokens, kept, busy, verifier in (("math", 2600, 0.93, 0.61, 0.4), ("swe", 11400, 0.81, 0.38, 41)):
        rollouts = 100 * 4 / kept
        expected = 0.02 * 100 * 1800 + 8e-15 * 5e8 * rollouts * tokens / busy + rollouts * verifier
        assert study().cost_of(domain, point) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("cost", "message"),
    [
        ({"constants": {"tokens": {"math": 1.0}}}, "every domain needs a value"),
        ({"constants": {"tokens": {"math": 1.0, "swe": 1.0, "web": 1.0}}}, "is not a domain"),
        ({"constants": {"N": 1.0}}, "name of an axis"),
        ({"terms": [{"coefficient": 1, "powers": {"busyness": 1}}], "constants": {"busy": 1.0}}, "Did you mean 'busy'"),
        ({"terms": [{"coefficient": 1, "unit": "euro"}]}, "cannot be turned into"),
    ],
)
def test_mistakes_about_drivers_are_named(cost: dict[str, Any], message: str) -> None:
    terms = [{"coefficient": 1, "powers": {"N": 1}}]
    with pytest.raises(SpecError, match=message):
        study(cost={"unit": "second", "terms": terms} | cost)


def test_limits_bound_products_of_axes() -> None:
    batch = {"powers": {"tasks": 1, "trajectories": 1}}
    designs = candidates.all_designs(study(limits=[batch | {"high": 100}]))
    product = designs.x[:, 1] * designs.x[:, 2]
    assert len(designs) > 100 and product.max() <= 100 * (1 + 1e-9)
    fixed = study(
        axes=[{"name": "N", "values": [8, 16, 32]}, {"name": "tasks", "values": [32, 64, 128]}],
        cost={"terms": [{"coefficient": 1, "powers": {"N": 1}}]},
        limits=[{"powers": {"N": 1, "tasks": 1}, "low": 1024, "high": 1024}],
    )
    assert {tuple(row) for row in candidates.all_designs(fixed).x} == {(8.0, 128.0), (16.0, 64.0), (32.0, 32.0)}
    with pytest.raises(SpecError, match="bounds nothing"):
        study(limits=[batch])
    with pytest.raises(SpecError, match="is not an axis"):
        study(limits=[{"powers": {"batch": 1}, "high": 1}])


def test_derived_values_follow_from_the_axes() -> None:
    rule = {"name": "rate", "coefficient": 1e-6 / 32, "powers": {"tasks": 0.5, "trajectories": 0.5}}
    values = study(derived=[rule]).derived_values({"N": 1e9, "tasks": 1024, "trajectories": 4})
    assert values == {"rate": pytest.approx(2e-6)}
    with pytest.raises(SpecError, match="is taken"):
        study(derived=[rule | {"name": "tasks"}])


@pytest.mark.parametrize("name", TEMPLATE_NAMES)
def test_templates_have_designs_and_laws(name: str) -> None:
    import tomllib

    spec = parse_study_spec(tomllib.loads(render_template(name, "mine")))
    designs = candidates.all_designs(spec)
    payable = designs.cost <= min(spec.budget.total, spec.budget.per_run_max or np.inf)
    assert payable.mean() > 0.25
    assert laws.select(laws.law_axes(spec.axes), spec.laws.use, is_score=spec.response.is_score)


def test_agents_have_a_control_and_may_split_environments() -> None:
    import tomllib

    text = render_template("agentic-data", "mine")
    spec = parse_study_spec(tomllib.loads(text))
    roles = {axis.role: axis for axis in spec.axes}
    assert {"parameters", "environments", "tasks", "trajectories", "reward_density"} <= roles.keys()
    control = spec.axis_names.index(roles["reward_density"].name)
    assert not any(spec.posynomial(name)[1][:, control].any() for name in spec.domain_names), "a control has no price"
    # What a comment of the template says to write where domains have worlds.
    start, end = text.index("# Where the domains have worlds"), text.index("# An axis is one of all domains")
    uncommented = "\n".join(line[4:] for line in text[start:end].splitlines() if line.startswith("#   "))
    split = tomllib.loads(text)
    split["axes"] = [axis for axis in split["axes"] if axis["name"] not in ("environments", "synthetic")]
    split["axes"][2:2] = tomllib.loads(uncommented)["axes"]
    split["cost"]["terms"] = [term for term in split["cost"]["terms"] if term["name"] != "synthesis"]
    split["cost"]["terms"][0]["powers"] = {"worlds": 1, "structures": 1}
    split["targets"] = split["targets"][:1]
    other = parse_study_spec(split)
    assert {"worlds", "structures"} <= {axis.role for axis in other.axes} and other.warnings == ()
    assert len(laws.select(laws.law_axes(other.axes), other.laws.use)) == len(other.laws.use)
    assert len(candidates.all_designs(other)) > 100


def test_a_limit_that_fixes_the_batch_splits_rollouts_and_problems() -> None:
    axes = [
        {"name": "n", "role": "rollouts", "values": [8, 16, 32, 64]},
        {"name": "p", "role": "problems", "values": [30, 60, 120, 240]},
        {"name": "u", "role": "updates", "low": 1, "high": 100},
    ]
    cost = {"terms": [{"coefficient": 1, "powers": {"n": 1, "p": 1, "u": 1}}]}
    batch = {"powers": {"n": 1, "p": 1}}
    spec = study(axes=axes, cost=cost, limits=[batch | {"low": 1920, "high": 1920}])
    assert rollouts._fixed_batch(spec, [0, 1, 2]) == 1920
    points = rollouts._splits(spec, [0, 1, 2], 1e5, 1920)
    assert len(points) > 8 and np.ptp(points[:, 0]) > 40
    np.testing.assert_allclose(points[:, 0] * points[:, 1], 1920, rtol=1e-9)
    np.testing.assert_allclose(points.prod(axis=1), 1e5)
    assert rollouts._fixed_batch(study(axes=axes, cost=cost, limits=[batch | {"high": 1920}]), [0, 1, 2]) is None


def context_of(num_axes: int, reference: float, lower: float) -> Context:
    return Context(np.zeros(num_axes), np.ones(num_axes), np.array(reference), np.array(0.2), np.array(lower))


def test_without_environments_tasks_do_not_matter() -> None:
    law = laws.select([WORLDS, TASKS], ["gated_powers"])[0]
    context = context_of(2, 1.0, 0.0)
    theta = jnp.array([p.mean for p in law.parameters(context)])

    def effect_of_tasks(worlds: float) -> float:
        few, many = (float(law.mean(theta, jnp.array([worlds, tasks]), context)) for tasks in (0.0, 3.0))
        return few - many

    assert effect_of_tasks(-4.0) < 0.05 * effect_of_tasks(4.0)


def test_the_best_number_of_rollouts_grows_and_levels_off() -> None:
    law = laws.select([ROLLOUTS, PROBLEMS, UPDATES], ["rollout_sigmoid"])[0]
    context = context_of(3, -0.5, -1.0)
    names = [p.name for p in law.parameters(context)]
    theta = jnp.array([p.mean for p in law.parameters(context)]).at[names.index("best_rollouts")].set(2.0)
    n = np.linspace(-3.0, 4.0, 701)

    def best(log_compute: float) -> float:
        points = jnp.stack([jnp.asarray(n), jnp.zeros(len(n)), log_compute - jnp.asarray(n)], axis=1)
        return float(n[int(jax.vmap(law.mean, (None, 0, None))(theta, points, context).argmin())])

    found = [best(c) for c in (0.0, 2.0, 4.0, 8.0, 30.0)]
    assert (np.diff(found) > 0).all()
    assert found[-1] == pytest.approx(2.0, abs=0.02) and found[0] < 1.0


def test_with_a_fixed_batch_compute_is_counted_by_updates() -> None:
    """Problems are the batch over the rollouts, so that neither changes the compute of an update."""
    law = laws.select([ROLLOUTS, UPDATES], ["rollout_sigmoid"])[0]
    full = laws.select([ROLLOUTS, PROBLEMS, UPDATES], ["rollout_sigmoid"])[0]
    context, wide = context_of(2, -0.5, -1.0), context_of(3, -0.5, -1.0)
    theta = jnp.array([p.mean for p in law.parameters(context)])
    with jax.enable_x64(True):
        for n, updates in ((-1.0, 2.0), (0.5, 0.0), (2.0, 3.0)):
            held = law.mean(theta, jnp.array([n, updates]), context)
            free = full.mean(jnp.append(theta, 0.0), jnp.array([n, -n, updates]), wide)
            assert float(held) == pytest.approx(float(free), rel=1e-6)


def test_record_breaking_points_enter_higher_bins_only() -> None:
    compute = np.array([4.0, 1.0, 2.0, 3.0, 8.0, 16.0])
    reward = np.array([0.32, 0.10, 0.22, 0.17, 0.33, 0.60])
    kept = record_breaking(compute, reward, bins=10)
    np.testing.assert_array_equal(compute[kept], [1.0, 2.0, 4.0, 16.0])


def sweep_study() -> Study:
    """Two axes swept one at a time, three repeats, from an additive law."""
    grids = {"environments": (4, 16, 64, 256), "tasks": (160, 640, 2560, 10240)}
    document = {
        "study": {"name": "sweep"},
        "response": {"name": "success", "link": "neg_log", "noise": "binomial", "trials": 5000, "expect": [0.2, 0.7]},
        "axes": [{"name": name, "role": name, "values": list(grid)} for name, grid in grids.items()],
        "cost": {"terms": [{"coefficient": 1, "powers": {"tasks": 1}}]},
        "budget": {"total": 1e9},
    }
    made = Study.from_spec(document)
    rng = np.random.default_rng(3)
    for name, grid in grids.items():
        for value, repeat in itertools.product(grid, range(3)):
            point = {"environments": 256.0, "tasks": 10240.0} | {name: float(value)}
            loss = 0.1 + 1.5 * point["environments"] ** -0.41 + 2.0 * point["tasks"] ** -0.26
            successes = float(rng.binomial(5000, np.exp(-loss)))
            made.attach(point, successes / 5000, successes=successes, trials=5000, seed=10 * repeat + len(name))
    return made


@pytest.mark.slow
def test_a_diagnosis_leaves_rungs_out() -> None:
    with sweep_study() as made:
        found = made.diagnose()
    assert [axis["axis"] for axis in found["axes"]] == ["environments", "tasks"]
    worlds = found["axes"][0]
    assert worlds["exponent"]["q05"] < 0.41 < worlds["exponent"]["q95"]
    assert [each["value"] for each in worlds["left_out"]] == [4.0, 16.0, 64.0, 256.0]
    assert 0.0 <= worlds["largest_shift"] < 0.3
    assert worlds["held"].keys() == {"low", "high"}


def test_a_diagnosis_needs_runs_and_shows_raw_slopes() -> None:
    with sweep_study() as made:
        outcomes = made.state.outcomes()
        with pytest.raises(InputError, match="needs 4"):
            diagnosis.diagnose(made.spec, outcomes[:2], "default")
    slopes = diagnosis.local_slopes(made.spec, outcomes, 0)
    assert [(s["from"], s["to"]) for s in slopes] == [(4.0, 16.0), (16.0, 64.0), (64.0, 256.0)]
    # The floor and the other axis flatten raw slopes of -log p.
    exact = [0.1 + 1.5 * e**-0.41 + 2.0 * 10240**-0.26 for e in (4, 16, 64, 256)]
    for slope, (low, high) in zip(slopes, itertools.pairwise(exact), strict=True):
        assert slope["slope"] == pytest.approx(np.log(low / high) / np.log(4), abs=4.5 * slope["se"])


def test_pooled_exponents_shrink_to_what_settings_share() -> None:
    factors = [{"model": m, "domain": d} for m in "ab" for d in "xy"]
    values, errors = [0.40, 0.42, 0.38, 0.80], [0.02, 0.02, 0.02, 0.5]
    own = pool(values, errors, factors).settings.mean(axis=0)
    np.testing.assert_allclose(own[:3], values[:3], atol=0.02)
    assert own[3] < 0.45  # its own measurement says little
    hidden = pool(values, [*errors[:3], np.inf], factors)
    assert hidden.settings[:, 3].std() < hidden.new.std()  # its levels were seen elsewhere
    alone = pool([0.3], [0.05], [{}])  # nothing to share: the measurement itself
    assert alone.settings.mean() == pytest.approx(0.3, abs=0.005)
    assert alone.settings.std() == pytest.approx(0.05, rel=0.1)


def test_printed_tables_are_read_with_their_half_widths(tmp_path: Path) -> None:
    text = "Axis\tRange\tValue\n$D$\t160 to 20,480\t$\\mathbf{0.261\\pm 0.02}$\n\nTable 3: What it says.\n"
    (tmp_path / "paper.txt").write_text(text)
    tables = seed_tables.read_tables(tmp_path)
    assert [v.value for v in seed_tables.numbers(tables[3][1][1])] == [160.0, 20480.0]
    assert seed_tables.number(tables[3][1][2]) == seed_tables.Value(0.261, 0.02)
    with pytest.raises(InputError, match="holds no tables"):
        seed_tables.read_tables(tmp_path / "empty")


@pytest.mark.skipif("PLANNER_SEEDS" not in os.environ, reason="PLANNER_SEEDS names no folder with the printed tables")
def test_what_follows_from_the_printed_tables() -> None:
    tables = seed_tables.read_tables(Path(os.environ["PLANNER_SEEDS"]))
    for row in seeds.worlds_and_structures(tables):
        assert row["additive_error"] < 0.05 < row["printed_half_width"] < row["product_error"]
        assert row["study_covered"] == 1.0
    pooled = seeds.exponents(tables)
    assert pooled["ordered_on_average"] > 0.99
    assert all(setting["ordered"] > 0.95 for setting in pooled["settings"])
    proofs = seeds.PARTS["tables_19_21"](tables)
    np.testing.assert_allclose(proofs["linear"]["spend_weighted_mean"], 1.0, atol=1e-6)
    assert proofs["linear"]["smallest_slope"] > 2 * max(proofs["printed"])
    assert proofs["ratio"]["ours"][0] == pytest.approx(proofs["ratio"]["ours"][1], rel=1e-6)
