"""Every law: gradient, range, monotony, recovery."""

import jax
import numpy as np
import pytest

from planner import laws
from planner.errors import InputError
from planner.inference.data import bind
from planner.laws.base import Context, LawAxis

AXES = (
    LawAxis(name="N", role="parameters"),
    LawAxis(name="D", role="tokens"),
    LawAxis(name="lr", role="learning_rate"),
)
_SIZE, _DATA = (AXES[0], 18.0, 1.5), (AXES[1], 22.0, 1.2)
# For each study its axes, with the middle and the spread of their coordinates.
GENERAL = {f"{n} axes": (_SIZE, _DATA, (AXES[2], -7.0, 1.0))[:n] for n in (1, 2, 3)}
OF_ROLES = {
    "repeated": (_SIZE, _DATA, (LawAxis(name="U", role="unique_tokens"), 21.0, 1.0)),
    "routed": (
        _SIZE,
        (LawAxis(name="E", role="experts"), 3.0, 1.5),
        (LawAxis(name="k", role="routing_frequency"), -1.0, 0.5),
    ),
    "sparse": (
        _DATA,
        (LawAxis(name="N", role="active_parameters"), 18.0, 1.5),
        (LawAxis(name="P", role="sparsity"), 1.5, 0.7),
    ),
    "vocabulary": (_SIZE, _DATA, (LawAxis(name="V", role="vocabulary"), 10.0, 1.0)),
    "streams": (_SIZE, _DATA, (LawAxis(name="S", role="streams"), 1.0, 0.8)),
    "mixture": (_SIZE, *((LawAxis(name=f"r{i}", role="mixture", is_log=False), 0.33, 0.2) for i in range(3))),
    "precision": (_SIZE, _DATA, (LawAxis(name="bits", role="precision", is_log=False), 6.0, 2.0)),
    "learning": (_SIZE, (LawAxis(name="step", role="updates", is_log=False), 40.0, 20.0)),
    "rewards": (
        (LawAxis(name="envs", role="environments"), 4.0, 1.0),
        (LawAxis(name="tasks", role="tasks"), 8.0, 1.2),
    ),
    "sampling": (
        (LawAxis(name="n", role="rollouts"), 4.5, 1.5),
        (LawAxis(name="B", role="problems"), 5.0, 1.0),
        (LawAxis(name="M", role="updates"), 6.0, 1.2),
    ),
    "tools": (
        (LawAxis(name="tools", role="tools"), 6.0, 1.2),
        (LawAxis(name="complexity", role="complexity"), 0.7, 0.5),
    ),
    "tuning": ((LawAxis(name="examples", role="examples"), 8.0, 2.0),),
}
STUDIES = GENERAL | OF_ROLES
LEVELS = {"loss": (3.0, 0.4, 0.0), "signed": (-2.0, 0.8, -np.inf)}
NUM_ROWS = 32  # in every test, so that each law is compiled once


def _axes(study):
    return tuple(axis for axis, _, _ in STUDIES[study])


def _cases():
    """Every law in every general study that it suits; a law that suits none of them, in those of its roles."""
    for family in laws.families().values():
        suited = [study for study in GENERAL if family.suits(_axes(study)) is not None]
        for study in suited or [study for study in OF_ROLES if family.suits(_axes(study)) is not None]:
            yield family, study


def _named(cases):
    return [pytest.param(family.name, study, id=f"{family.name}-{study}") for family, study in cases]


def _bound(name, study, kind):
    _, centre, spread = zip(*STUDIES[study], strict=True)
    context = Context(np.array(centre), np.array(spread), *map(np.float64, LEVELS[kind]))
    return bind(laws.select(_axes(study), [name])[0], context)


def test_every_law_has_a_case():
    assert {family.name for family, _ in _cases()} == set(laws.families())


@pytest.mark.parametrize("kind", sorted(LEVELS))
@pytest.mark.parametrize(("name", "study"), _named(_cases()))
def test_gradient_over_the_prior_equals_finite_differences(name, study, kind):
    law = _bound(name, study, kind)
    rng = np.random.default_rng(0)
    theta = law.prior_mean + law.prior_sd * rng.standard_normal((6, 1, law.num_parameters))
    shape = (NUM_ROWS, len(law.context.centre))
    x = (law.context.centre + law.context.spread * rng.standard_normal(shape))[None]
    _, jacobian = law.value_and_jacobian(theta, x)
    step = 1e-6
    for j in range(law.num_parameters):
        moved = step * np.eye(law.num_parameters)[j]
        numeric = (law.value(theta + moved, x) - law.value(theta - moved, x)) / (2 * step)
        # Central differences: error of order step^2 plus rounding of order 1e-16 |f| / step.
        np.testing.assert_allclose(jacobian[..., j], numeric, rtol=2e-5, atol=1e-6 * float(np.abs(jacobian).max()))


@pytest.mark.parametrize("kind", sorted(LEVELS))
@pytest.mark.parametrize(("name", "study"), _named(_cases()))
def test_value_and_gradient_are_finite_over_twelve_decades(name, study, kind):
    law = _bound(name, study, kind)
    rng = np.random.default_rng(1)
    theta = law.prior_mean + law.prior_sd * rng.standard_normal((40, 1, law.num_parameters))
    offset = np.linspace(-6.0, 6.0, NUM_ROWS)[:, None] * np.log(10.0)
    x = (law.context.centre + offset * rng.choice([-1.0, 1.0], (NUM_ROWS, len(law.context.centre))))[None]
    value, jacobian = law.value_and_jacobian(theta, x)
    assert np.isfinite(value).all()
    assert np.isfinite(jacobian).all()


@pytest.mark.parametrize(("name", "study"), _named(case for case in _cases() if case[0].monotone))
def test_monotone_laws_never_rise_with_an_axis(name, study):
    law = _bound(name, study, "loss")
    rng = np.random.default_rng(2)
    theta = law.prior_mean + law.prior_sd * rng.standard_normal((64, 1, law.num_parameters))
    for axis, spread in enumerate(law.context.spread):
        x = np.repeat(law.context.centre[None], NUM_ROWS, axis=0)
        x[:, axis] += 2.5 * spread * np.linspace(-1.0, 1.0, NUM_ROWS)
        values = law.value(theta, x[None])[:, 0]
        assert (np.diff(values, axis=1) <= 1e-12).all()


def test_floor_stays_between_the_bound_and_the_reference():
    law = _bound("sum_of_powers", "2 axes", "loss")
    theta = np.repeat(law.prior_mean[None], 3, axis=0)
    theta[:, 0] = [-30.0, 0.0, 30.0]
    far = (law.context.centre + 80.0)[None]
    floor = law.value(theta[:, None], far[None])[:, 0, 0]
    assert floor[0] == pytest.approx(0.0, abs=1e-6)
    assert floor[2] == pytest.approx(3.0, abs=1e-6)


def test_auto_selects_what_suits_and_named_laws_are_found():
    one = [law.name for law in laws.select(AXES[:1], "auto")]
    two = [law.name for law in laws.select(AXES[:2], "auto")]
    assert "sum_of_powers" in one
    assert "power_of_sum" not in one  # with one axis it is the sum again
    assert {"sum_of_powers", "product_of_powers", "power_of_sum", "exp_quadratic"} <= set(two)
    assert laws.select(AXES[:2], ["sum_of_powers"])[0] is laws.select(AXES[:2], ["sum_of_powers"])[0]


def test_unknown_and_unfit_laws_are_named():
    with pytest.raises(InputError, match=r"sum_of_power'.*known laws: .*sum_of_powers"):
        laws.select(AXES, ["sum_of_power"])
    share = LawAxis(name="share", role="mixture", is_log=False)
    with pytest.raises(InputError, match=r"sum_of_powers.*share"):
        laws.select([share], ["sum_of_powers"])


def test_a_user_law_is_one_registration(monkeypatch):
    monkeypatch.setattr(laws, "_REGISTRY", dict(laws._REGISTRY))
    mine = laws.LawFamily(
        name="constant",
        formula="c",
        source="test",
        suits=lambda axes: "always",
        build=lambda axes: (
            lambda theta, x, context: theta[0] + 0.0 * jax.numpy.sum(x),
            lambda context: [laws.Parameter(name="c", mean=0.0, sd=1.0, domain_sd=0.1)],
        ),
    )
    laws.register(mine)
    assert laws.select(AXES, ["constant"])[0].name == "constant"
    with pytest.raises(InputError, match="registered already"):
        laws.register(laws.LawFamily(**{**vars(mine), "formula": "d"}))
