"""Laws of roles: when they are chosen, what they mean at their limits, and that data bring their parameters back."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from planner import laws
from planner.inference.data import BoundLaw, bind
from planner.laws import repetition, valley
from planner.laws.base import Context, LawAxis
from planner.laws.experts import saturated
from planner.laws.mixture import bent
from planner.laws.precision import log_worth

SIZE, DATA = LawAxis(name="N", role="parameters"), LawAxis(name="D", role="tokens")
RATE, BATCH = LawAxis(name="lr", role="learning_rate"), LawAxis(name="batch", role="batch_size")
SHARES = tuple(LawAxis(name=f"r{i}", role="mixture", is_log=False) for i in range(3))
GENERAL = {"sum_of_powers", "product_of_powers", "power_of_sum", "exp_quadratic", "exp_bilinear", "coupled_powers"}
NUM_ROWS = 32


def axis(role: str, **options: object) -> LawAxis:
    return LawAxis(name=role, role=role, **options)


# For each law: axes, middle and spread of their coordinates, and parameters that its data identify.
RECOVERED = {
    "valley": (
        (SIZE, DATA, RATE),
        (18.0, 22.0, -7.0),
        (1.5, 1.2, 1.0),
        ("optimum_lr", "optimum_drift_lr_N", "log_curvature_lr"),
    ),
    "valley_product": ((SIZE, DATA, RATE), (18.0, 22.0, -7.0), (1.5, 1.2, 1.0), ("optimum_lr", "skew_lr")),
    "effective_tokens": (
        (SIZE, DATA, axis("unique_tokens")),
        (18.0, 22.0, 20.5),
        (1.0, 1.2, 1.0),
        ("log_decay_tokens",),
    ),
    "capped_tokens": ((SIZE, DATA, axis("unique_tokens")), (18.0, 22.0, 20.0), (1.0, 1.2, 1.0), ("log_cap",)),
    "experts": ((SIZE, axis("experts")), (18.0, 3.5), (1.5, 1.5), ("interaction",)),
    "sparsity": ((axis("active_parameters"), axis("sparsity"), DATA), (20.0, 1.5, 22.0), (1.0, 0.8, 1.2), ()),
    "vocabulary": ((SIZE, DATA, axis("vocabulary")), (18.0, 22.0, 10.0), (1.5, 1.2, 1.0), ()),
    "streams": ((SIZE, axis("streams")), (20.0, 1.0), (1.0, 0.7), ("log_gain",)),
    "mixture_exponential": (SHARES, (0.33,) * 3, (0.2,) * 3, ("effect_r0",)),
    "mixture_bent": (SHARES, (0.33,) * 3, (0.2,) * 3, ("power",)),
    "mixture_powers": (SHARES, (0.33,) * 3, (0.2,) * 3, ()),
    "precision": ((SIZE, axis("precision", is_log=False)), (20.0, 5.0), (1.0, 2.0), ("log_bits_precision",)),
    "latent_loss": ((SIZE, DATA), (18.0, 22.0), (1.5, 1.2), ()),
    "broken_power": ((axis("compute"),), (40.0,), (3.0,), ("break",)),
    "sigmoid": ((axis("compute"),), (40.0,), (2.0,), ("middle",)),
    "rectified": ((axis("examples"),), (8.0,), (2.0,), ("log_exponent",)),
    "u_shape": ((axis("compute"),), (40.0,), (2.0,), ("bump_at",)),
    "learning": ((SIZE, axis("updates", is_log=False)), (20.0, 40.0), (1.0, 20.0), ()),
}


def _fit(law: BoundLaw, y: np.ndarray, x: np.ndarray, noise: float) -> np.ndarray:
    """Most probable parameters (p,) by damped Gauss-Newton from 32 draws of the prior; y (n,), x (n, A)."""
    rng = np.random.default_rng(5)
    theta = law.prior_mean + law.prior_sd * rng.standard_normal((32, law.num_parameters))
    precision = np.diag(law.prior_sd**-2.0)
    damping = np.ones(len(theta))

    def evaluate(theta: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        value, jacobian = (array[:, 0] for array in law.value_and_jacobian(theta[:, None], x[None]))
        residual = y - value
        off = theta - law.prior_mean
        objective = 0.5 * (residual**2).sum(-1) / noise**2 + 0.5 * np.einsum("sp,pq,sq->s", off, precision, off)
        return residual, jacobian, objective

    residual, jacobian, best = evaluate(theta)
    for _ in range(60):
        information = np.swapaxes(jacobian, -1, -2) @ jacobian / noise**2 + precision
        score = np.einsum("snp,sn->sp", jacobian, residual) / noise**2 - (theta - law.prior_mean) @ precision
        scaled = information + damping[:, None, None] * np.einsum("spp->sp", information)[..., None] * np.eye(
            len(precision)
        )
        new = theta + np.linalg.solve(scaled, score[..., None])[..., 0]
        new_residual, new_jacobian, new_objective = evaluate(new)
        accepted = new_objective < best
        theta = np.where(accepted[:, None], new, theta)
        residual = np.where(accepted[:, None], new_residual, residual)
        jacobian = np.where(accepted[:, None, None], new_jacobian, jacobian)
        best = np.where(accepted, new_objective, best)
        damping = np.clip(np.where(accepted, damping * 0.3, damping * 5.0), 1e-8, 1e8)
    return theta[np.argmin(best)]


@pytest.mark.parametrize("name", sorted(RECOVERED))
def test_data_bring_parameters_back_from_far_starts(name):
    axes, centre, spread, identified = RECOVERED[name]
    context = Context(np.array(centre), np.array(spread), *map(np.float64, (3.0, 0.4, 0.0)))
    law = bind(laws.select(axes, [name])[0], context)
    rng = np.random.default_rng(3)
    num = law.num_parameters
    truth = law.prior_mean + law.prior_sd * rng.uniform(0.4, 0.9, num) * rng.choice([-1.0, 1.0], num)
    x = np.array(centre) + np.array(spread) * rng.uniform(-2.0, 2.0, (NUM_ROWS, len(axes)))
    y = law.value(truth[None, None], x[None])[0, 0]

    found = _fit(law, y, x, 0.003 * float(y.std()))

    inside = np.array(centre) + np.array(spread) * rng.uniform(-1.7, 1.7, (NUM_ROWS, len(axes)))
    expected, got = law.value(np.stack([truth, found])[:, None], inside[None])[:, 0]
    # Exact data held to .003 of their spread: what is left is the pull of the prior where a parameter hardly matters.
    np.testing.assert_allclose(got, expected, atol=0.003 * float(y.std()))
    position = {p.name: i for i, p in enumerate(law.law.parameters(context))}
    for parameter in identified:
        i = position[parameter]
        # The truth is .4 prior deviations from the prior's middle or more.
        assert found[i] == pytest.approx(truth[i], abs=0.1 * law.prior_sd[i]), parameter


@pytest.mark.parametrize(
    ("axes", "chosen"),
    [
        ((SIZE, DATA), {"latent_loss"}),
        ((axis("compute"),), {"broken_power", "sigmoid", "u_shape"}),
        ((axis("examples"),), {"broken_power", "rectified", "u_shape"}),
        ((LawAxis(name="x"),), {"broken_power", "sigmoid", "u_shape"}),
        ((SIZE, DATA, RATE), {"valley", "valley_product"}),
        ((SIZE, RATE, BATCH), {"valley", "valley_product"}),
        ((RATE,), set()),
        ((SIZE, RATE, LawAxis(name="lr2", role="learning_rate")), set()),
        ((SIZE, DATA, axis("unique_tokens")), {"effective_tokens", "capped_tokens"}),
        ((DATA, axis("unique_tokens")), set()),
        ((SIZE, axis("experts")), {"experts"}),
        ((axis("experts"), DATA), set()),
        ((axis("sparsity"), axis("active_parameters"), DATA), {"sparsity"}),
        ((axis("sparsity"), axis("active_parameters")), set()),
        ((SIZE, DATA, axis("vocabulary")), {"vocabulary"}),
        ((SIZE, axis("streams")), {"streams"}),
        (SHARES, {"mixture_exponential", "mixture_bent", "mixture_powers"}),
        ((*SHARES, SIZE), {"mixture_exponential", "mixture_bent", "mixture_powers"}),
        ((SIZE, axis("precision", is_log=False)), {"precision"}),
        ((SIZE, axis("updates", is_log=False)), {"learning"}),
        ((axis("environments"), axis("tasks"), axis("trajectories")), {"sigmoid", "gated_powers"}),
        ((axis("rollouts"), axis("problems"), axis("updates")), {"sigmoid", "rollout_sigmoid"}),
        ((axis("tools"), axis("complexity")), {"sigmoid", "scaled_powers"}),
        ((LawAxis(name="x"), LawAxis(name="y")), set()),
    ],
    ids=lambda value: "+".join(a.name for a in value) if isinstance(value, tuple) else "",
)
def test_laws_of_roles_are_chosen_by_their_roles_alone(axes, chosen):
    found = {law.name: law.reason for law in laws.select(axes, "auto")}
    assert set(found) - GENERAL == chosen
    assert all(found.values())


def test_laws_of_scores_are_not_offered_for_losses():
    names = [{law.name for law in laws.select((SIZE, DATA), "auto", is_score=score)} for score in (True, False)]
    assert names[0] - names[1] == {"latent_loss"}


def test_valley_is_a_square_at_the_bottom_and_leans():
    x = np.linspace(-3.0, 3.0, 13)
    near = 1e-3 * x
    np.testing.assert_allclose(valley.linex(near, 0.4), near**2, rtol=1e-3)
    np.testing.assert_allclose(valley.linex(x, 0.0), x**2, rtol=1e-12)
    skewed = np.asarray(valley.linex(x, 0.8))
    assert (skewed[x > 0] > x[x > 0] ** 2).all() and (skewed[x < 0] < x[x < 0] ** 2).all()
    # Where the series hands over to the exact form, both must agree.
    with jax.enable_x64(True):
        low, high = valley.linex(jnp.array([1.0, 1.0]), jnp.array([0.01 - 1e-9, 0.01 + 1e-9]))
    assert float(high - low) == pytest.approx(2e-9 / 3.0, rel=0.05)


def test_the_best_learning_rate_moves_with_size():
    context = Context(np.array([18.0, -7.0]), np.array([1.5, 1.0]), *map(np.float64, (3.0, 0.4, 0.0)))
    law = bind(laws.select((SIZE, RATE), ["valley"])[0], context)
    names = [p.name for p in law.law.parameters(context)]
    theta = law.prior_mean.copy()
    theta[names.index("optimum_lr")], theta[names.index("optimum_drift_lr_N")] = 0.3, -0.5
    rates = np.linspace(-9.0, -5.0, 401)
    for log_size in (17.0, 19.0):
        x = np.column_stack([np.full(401, log_size), rates])
        best = rates[np.argmin(law.value(theta[None, None], x[None])[0, 0])]
        assert best == pytest.approx(-7.0 + 0.3 - 0.5 * (log_size - 18.0), abs=0.011)  # one step of the grid


def test_effective_tokens_follow_the_published_form():
    log_unique = np.log(1e9)
    epochs = np.array([0.3, 1.0, 2.0, 4.0, 40.0, 1e4])
    got = np.exp([float(repetition.effective(log_unique + np.log(e), log_unique, np.log(15.0))) for e in epochs])
    expected = np.where(epochs <= 1.0, epochs, 1.0 + 15.0 * (1.0 - np.exp(-(epochs - 1.0) / 15.0))) * 1e9
    np.testing.assert_allclose(got, expected, rtol=1e-4)  # single precision outside the engines


def test_experts_saturate_at_both_ends():
    start, most = np.log(3.0), np.log(400.0)
    log_experts = np.log([1.0, 16.0, 64.0, 1e6])
    got = np.exp([float(saturated(e, start, most)) for e in log_experts])
    experts = np.exp(log_experts)
    np.testing.assert_allclose(got, 1.0 / (1.0 / (experts - 1.0 + 3.0) + 1.0 / 400.0), rtol=1e-4)
    assert got[-1] == pytest.approx(400.0, rel=1e-3)


def test_many_bits_are_worth_everything_and_few_a_part():
    assert float(log_worth(np.log(30.0))) == pytest.approx(0.0, abs=1e-6)
    assert float(log_worth(np.log(0.01))) == pytest.approx(np.log(0.01), abs=0.01)


def test_a_bent_share_is_linear_logarithmic_or_a_power():
    share = np.array([0.0, 0.1, 0.5, 1.0])
    offset = np.log(0.05)
    np.testing.assert_allclose(bent(share, offset, 1.0), share + 0.05 - 1.0, atol=1e-6)
    np.testing.assert_allclose(bent(share, offset, 1e-7), np.log(share + 0.05), rtol=1e-5)
    np.testing.assert_allclose(bent(share, offset, -0.5), ((share + 0.05) ** -0.5 - 1.0) / -0.5, rtol=1e-5)


def test_a_u_shape_turns_both_ways():
    context = Context(np.array([40.0]), np.array([2.0]), *map(np.float64, (0.5, 0.1, 0.0)))
    law = bind(laws.select((axis("compute"),), ["u_shape"])[0], context)
    names = [p.name for p in law.law.parameters(context)]
    x = np.linspace(34.0, 46.0, NUM_ROWS)[:, None]
    for sign in (1.0, -1.0):
        theta = law.prior_mean.copy()
        theta[names.index("bump")] = 3.0 * sign
        steps = np.diff(law.value(theta[None, None], x[None])[0, 0])
        assert (steps > 0).any() and (steps < 0).any()


def test_rectified_is_the_published_form():
    context = Context(np.array([8.0]), np.array([2.0]), *map(np.float64, (3.0, 0.4, 0.0)))
    law = bind(laws.select((axis("examples"),), ["rectified"])[0], context)
    theta = law.prior_mean
    log_examples = np.linspace(4.0, 14.0, NUM_ROWS)
    got = law.value(theta[None, None], log_examples[None, :, None])[0, 0]
    height = 3.0 / (1.0 + np.exp(theta[0]))
    exponent, log_known = np.exp(theta[2]), 8.0 + theta[3]
    known = np.exp(exponent * log_known)
    amplitude = height * (known + np.exp(exponent * 8.0))
    np.testing.assert_allclose(got, 3.0 - height + amplitude / (known + np.exp(exponent * log_examples)), rtol=1e-9)
