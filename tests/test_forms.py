"""The published forms as laws: their numbers, the formula in raw units, finite values and slopes, and a run of each."""

import functools
from pathlib import Path
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import benchmarks.__main__ as command_line
from benchmarks import forms, problems
from benchmarks.forms.base import Form
from planner import inference, laws
from planner.laws.base import Context, LawAxis
from tests import raw_forms

# Parameters of every form, published counts; a form of several outputs shows the sum over them.
COUNTS = {
    "parallel": [6, 5, 4, 4, 4, 4, 4, 4, 3, 4],
    "sparsity": [5, 4, 6, 5],
    "moe": [4, 5, 6, 6, 6, 6, 6, 4, 4, 6],
    "data_constrained": [7, 7, 7, 7, 6, 8, 7, 7, 7, 7],
    "vocab": [5, 7, 7, 7, 7, 7, 7, 7, 7, 7],
    # The published forms 4 and 5 have 35, their exponents being shared by the outputs.
    "domain_mixture": [30, 35, 35, 55, 55, 35, 40, 15, 15, 15],
    "lr_bsz": [15, 26, 24, 20, 19, 14, 31, 20, 15, 18],
    "farseer": [9],
}
FORMULAS = {
    "parallel": raw_forms.PARALLEL,
    "sparsity": raw_forms.SPARSITY,
    "moe": raw_forms.MOE,
    "data_constrained": raw_forms.DATA_CONSTRAINED,
    "vocab": raw_forms.VOCAB,
    "lr_bsz": raw_forms.LR_BSZ,
    "farseer": raw_forms.FARSEER,
}
# Lowest and highest value of each axis in the recorded pools, rounded.
RANGES = {
    "parallel": [(5e8, 4.4e9), (1.0, 8.0)],
    "sparsity": [(1.8, 12.0), (0.015, 0.32)],
    "moe": [(1.0, 512.0), (1.6e7, 1.3e9)],
    "data_constrained": [(1e8, 1.7e11), (7e6, 4e9), (1e8, 3e11)],
    "vocab": [(3.3e7, 1.1e9), (4096.0, 64512.0), (1.8e8, 2.3e11)],
    "lr_bsz": [(2.4e-4, 0.022), (16.0, 2048.0), (2e9, 1e11), (6e7, 1.1e9)],
    "farseer": [(1e8, 6.4e9), (1e9, 5.1e11)],
}
# What is compiled here is used once.
_QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
NUM_POINTS, NUM_DRAWS = 16, 12
CORPUS = Path(__file__).resolve().parents[2] / "shared" / "corpus"  # recorded runs, not part of the repository

CASES = [(scenario, k) for scenario, counts in COUNTS.items() for k in range(len(counts))]
IDS = [f"{scenario}_{k + 1}" for scenario, k in CASES]


def _points(scenario: str) -> np.ndarray:
    """Made-up runs in raw units, (NUM_POINTS, A)."""
    rng = np.random.default_rng(7)
    if scenario == "domain_mixture":
        shares = rng.dirichlet(np.ones(5), NUM_POINTS)
        shares[:3, [0, 3]] = 0.0  # as recorded: some domains have no share
        return shares / shares.sum(axis=1, keepdims=True)
    low, high = np.log(RANGES[scenario]).T
    x = np.exp(low + (high - low) * rng.random((NUM_POINTS, len(low))))
    if scenario == "data_constrained":
        x[:, 2] = np.maximum(x[:, 2], x[:, 0])
        x[0, 2] = x[0, 0]  # nothing is repeated
    return x


def _form(scenario: str, k: int) -> tuple[Form, laws.LawFamily, tuple[LawAxis, ...], int]:
    """The form, its family, its axes and the output that it is for."""
    module = next(m for m in forms._MODULES if scenario == m.SCENARIO)
    output = 3 if scenario == "domain_mixture" else 0
    written = module.FORMS[k]
    form = written[output] if isinstance(written, tuple) else written
    axes = tuple(LawAxis(name=name, is_log=is_log) for name, is_log in module.AXES)
    return form, forms.forms_for(scenario)[k].families[output], axes, output


def _context(scenario: str, coordinates: np.ndarray) -> Context:
    level, lower = (-4.5, -np.inf) if scenario == "vocab" else (2.5, 0.0)
    spread = coordinates.std(axis=0)
    return Context(coordinates.mean(axis=0), spread, *map(np.float64, (level, 0.4, lower)))


@functools.cache
def _evaluated(scenario: str, k: int):
    """Made-up points, draws of the prior, raw parameters, and value and slope of the law: compiled once a form."""
    form, family, axes, _ = _form(scenario, k)
    x = _points(scenario)
    coordinates = np.where([a.is_log for a in axes], np.log(np.where(x > 0, x, 1.0)), x)
    context = _context(scenario, coordinates)
    mean, parameters = family.build(axes)
    priors = parameters(context)
    rng = np.random.default_rng(3)
    theta = np.array([p.mean for p in priors]) + np.array([p.sd for p in priors]) * rng.standard_normal(
        (NUM_DRAWS, len(priors))
    )

    over_points = jax.vmap(jax.vmap(jax.value_and_grad(mean), (None, 0, None)), (0, None, None))
    with jax.enable_x64(True):
        value, slope = jax.jit(over_points, compiler_options=_QUICK)(theta, coordinates, context)
        raw = jax.vmap(lambda one: vars(form.raw(one, context)))(theta)
    return x, np.asarray(value), np.asarray(slope), {name: np.asarray(v) for name, v in raw.items()}


def _parameters(raw: dict[str, np.ndarray], draw: int) -> SimpleNamespace:
    """Raw parameters of one draw; where the log of one is kept, the parameter too."""
    one = {name: values[draw] for name, values in raw.items()}
    return SimpleNamespace(**{n.removeprefix("log_"): np.exp(v) for n, v in one.items() if n.startswith("log_")} | one)


def test_there_are_65_forms_with_the_published_numbers_of_parameters():
    for scenario, counts in COUNTS.items():
        found = forms.forms_for(scenario)
        context = _context(scenario, np.zeros((2, len(_points(scenario)[0]))))
        num = [sum(len(f.build(())[1](context)) for f in form.families) for form in found]
        assert num == counts, scenario
        assert [form.name for form in found] == [f"{scenario}_{k + 1}" for k in range(len(counts))]
        assert {len(form.families) for form in found} == {5 if scenario == "domain_mixture" else 1}
    assert sum(len(counts) for counts in COUNTS.values()) == 65
    assert forms.forms_for("chinchilla") == ()


@pytest.mark.parametrize(("scenario", "k"), CASES, ids=IDS)
def test_a_form_is_the_published_formula_in_raw_units(scenario, k):
    x, value, _, raw = _evaluated(scenario, k)
    formula = raw_forms.domain_mixture(k, 3) if scenario == "domain_mixture" else FORMULAS[scenario][k]
    for draw in range(NUM_DRAWS):
        p = _parameters(raw, draw)
        # Raw parts may be far larger than their sum: the constant of form 6 of `parallel` up to 1e12, polynomials in
        # logs of 20 up to 1e3.
        atol = 1e-9 + 1e-14 * float(getattr(p, "streams_0", 0.0))
        np.testing.assert_allclose(value[draw], formula(p, *x.T), rtol=1e-9, atol=atol)


@pytest.mark.parametrize(("scenario", "k"), CASES, ids=IDS)
def test_values_and_slopes_are_finite_and_every_parameter_matters(scenario, k):
    _, value, slope, _ = _evaluated(scenario, k)
    assert np.isfinite(value).all()
    assert np.isfinite(slope).all()
    assert (np.abs(slope).max(axis=(0, 1)) > 0).all()


def test_forms_are_used_only_where_they_are_named(monkeypatch):
    monkeypatch.setattr(laws, "_REGISTRY", dict(laws._REGISTRY))
    _, family, axes, _ = _form("parallel", 0)
    laws.register(family)
    assert laws.select(axes, ["parallel_1"])[0].name == "parallel_1"
    assert "parallel_1" not in {law.name for law in laws.select(axes, "auto")}
    other = tuple(LawAxis(name=a.name + "_", is_log=True) for a in axes)
    with pytest.raises(laws.InputError, match="parallel_1"):
        laws.select(other, ["parallel_1"])


@pytest.mark.skipif(not CORPUS.is_dir(), reason="the recorded runs are not here")
@pytest.mark.parametrize("scenario", COUNTS)
def test_forms_can_be_written_for_the_recorded_scenarios(monkeypatch, scenario):
    monkeypatch.setattr(laws, "_REGISTRY", dict(laws._REGISTRY))
    problem = problems.load_problem(CORPUS, scenario)
    for form in forms.forms_for(scenario):
        used = forms.with_form(problem, form.name)
        assert used.num_responses == problem.num_responses
        for spec, family in zip(used.specs, form.families, strict=True):
            (bound,) = inference.prepare(spec, [], used.pool, used.targets).bound
            assert bound.law.name == family.name


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--law", "parallel_5"], "goes with --laws given"),
        (["--laws", "given", "--law", "parallel_99"], "unknown form parallel_99"),
    ],
)
def test_mistakes_in_the_choice_of_forms_are_named(monkeypatch, capsys, arguments, words):
    monkeypatch.setattr(command_line, "_keep_compiled_code", lambda: None)
    assert command_line.main(["run", "--embedded", *arguments]) == 2
    assert words in capsys.readouterr().err


def test_scenarios_without_forms_are_left_out_and_named(monkeypatch, capsys):
    monkeypatch.setattr(command_line, "_keep_compiled_code", lambda: None)
    assert command_line.main(["run", "--embedded", "--laws", "given"]) == 0
    assert "left out, no forms are published for it" in capsys.readouterr().err
