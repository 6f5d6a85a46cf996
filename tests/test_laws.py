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
CONTEXTS = {
    "loss": Context(np.array([18.0, 22.0, -7.0]), np.array([1.5, 1.2, 1.0]), *map(np.float64, (3.0, 0.4, 0.0))),
    "signed": Context(np.array([18.0, 22.0, -7.0]), np.array([1.5, 1.2, 1.0]), *map(np.float64, (-2.0, 0.8, -np.inf))),
}


def _cases():
    for family in laws.families().values():
        for num_axes in (1, 2, 3):
            if family.suits(AXES[:num_axes]) is not None:
                yield pytest.param(family.name, num_axes, id=f"{family.name}-{num_axes}")


def _bound(name, num_axes, kind):
    context = CONTEXTS[kind]
    context = context._replace(centre=context.centre[:num_axes], spread=context.spread[:num_axes])
    return bind(laws.select(AXES[:num_axes], [name])[0], context)


@pytest.mark.parametrize("kind", sorted(CONTEXTS))
@pytest.mark.parametrize(("name", "num_axes"), list(_cases()))
def test_gradient_over_the_prior_equals_finite_differences(name, num_axes, kind):
    law = _bound(name, num_axes, kind)
    rng = np.random.default_rng(0)
    theta = law.prior_mean + law.prior_sd * rng.standard_normal((6, 1, law.num_parameters))
    x = (law.context.centre + law.context.spread * rng.standard_normal((4, num_axes)))[None]
    _, jacobian = law.value_and_jacobian(theta, x)
    step = 1e-6
    for j in range(law.num_parameters):
        moved = step * np.eye(law.num_parameters)[j]
        numeric = (law.value(theta + moved, x) - law.value(theta - moved, x)) / (2 * step)
        # Central differences: error of order step^2 plus rounding of order 1e-16 |f| / step.
        np.testing.assert_allclose(jacobian[..., j], numeric, rtol=2e-5, atol=1e-6 * float(np.abs(jacobian).max()))


@pytest.mark.parametrize("kind", sorted(CONTEXTS))
@pytest.mark.parametrize(("name", "num_axes"), list(_cases()))
def test_value_and_gradient_are_finite_over_twelve_decades(name, num_axes, kind):
    law = _bound(name, num_axes, kind)
    rng = np.random.default_rng(1)
    theta = law.prior_mean + law.prior_sd * rng.standard_normal((40, 1, law.num_parameters))
    offset = np.linspace(-6.0, 6.0, 25)[:, None] * np.log(10.0)
    x = (law.context.centre + offset * rng.choice([-1.0, 1.0], (25, num_axes)))[None]
    value, jacobian = law.value_and_jacobian(theta, x)
    assert np.isfinite(value).all()
    assert np.isfinite(jacobian).all()


@pytest.mark.parametrize(
    "name", [family.name for family in laws.families().values() if family.monotone and family.suits(AXES[:2])]
)
def test_monotone_laws_never_rise_with_an_axis(name):
    law = _bound(name, 2, "loss")
    rng = np.random.default_rng(2)
    theta = law.prior_mean + law.prior_sd * rng.standard_normal((64, 1, law.num_parameters))
    for axis in range(2):
        x = np.repeat(law.context.centre[None], 30, axis=0)
        x[:, axis] += np.linspace(-4.0, 4.0, 30)
        values = law.value(theta, x[None])[:, 0]
        assert (np.diff(values, axis=1) <= 1e-12).all()


def test_floor_stays_between_the_bound_and_the_reference():
    law = _bound("sum_of_powers", 2, "loss")
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
