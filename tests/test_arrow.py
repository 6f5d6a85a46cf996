"""The hierarchy's linear algebra against dense matrices."""

import numpy as np
import pytest

from planner.inference import arrow, noise


def _random_problem(rng, *, num_domains, num_parameters, num_shared):
    design = np.ones((num_domains, num_shared))
    design[:, 1:] = rng.integers(0, 2, (num_domains, num_shared - 1)) if num_shared > 1 else design[:, 1:]
    factor = rng.standard_normal((num_domains, num_parameters, num_parameters))
    precision = factor @ np.swapaxes(factor, -1, -2)
    precision[0] = 0.0  # a domain without runs
    score = np.einsum("gij,gj->gi", precision, rng.standard_normal((num_domains, num_parameters)))
    hierarchy = arrow.Hierarchy(
        design,
        rng.standard_normal((num_shared, num_parameters)),
        rng.uniform(0.5, 2.0, (num_shared, num_parameters)),
        np.zeros(num_parameters),
        rng.uniform(0.1, 1.0, num_parameters),
    )
    return precision, score, hierarchy


def _dense(precision, score, hierarchy):
    """Posterior mean and covariance of theta, and log det of posterior over prior precision, by dense algebra."""
    num_domains, num_parameters = score.shape
    num_shared = hierarchy.shared_mean.shape[0]
    lift = np.kron(hierarchy.design, np.eye(num_parameters))
    shared_var = hierarchy.shared_var.ravel()
    mean = lift @ hierarchy.shared_mean.ravel()
    covariance = lift @ np.diag(shared_var) @ lift.T + np.kron(np.eye(num_domains), np.diag(hierarchy.local_var))
    data = np.zeros((num_domains * num_parameters,) * 2)
    for g in range(num_domains):
        at = slice(g * num_parameters, (g + 1) * num_parameters)
        data[at, at] = precision[g]
    posterior = np.linalg.inv(np.linalg.inv(covariance) + data)
    assert num_shared > 0
    log_det = np.linalg.slogdet(np.eye(len(data)) + covariance @ data)[1]
    return posterior @ (np.linalg.solve(covariance, mean) + score.ravel()), posterior, log_det


@pytest.mark.parametrize("num_shared", [1, 3])
def test_solve_equals_dense_algebra(num_shared):
    rng = np.random.default_rng(num_shared)
    precision, score, hierarchy = _random_problem(rng, num_domains=4, num_parameters=3, num_shared=num_shared)
    found = arrow.solve(precision, score, hierarchy)
    mean, covariance, log_det = _dense(precision, score, hierarchy)
    np.testing.assert_allclose(found.theta.ravel(), mean, rtol=1e-9, atol=1e-10)
    assert found.log_det == pytest.approx(log_det, abs=1e-9)
    local = np.zeros_like(covariance)
    for g in range(4):
        at = slice(3 * g, 3 * g + 3)
        local[at, at] = found.root[g] @ found.root[g].T
    lever = found.lever.reshape(12, -1)
    np.testing.assert_allclose(local + lever @ lever.T, covariance, rtol=1e-8, atol=1e-10)


def test_one_domain_is_ridge_regression():
    rng = np.random.default_rng(0)
    jacobian, y = rng.standard_normal((6, 2)), rng.standard_normal(6)
    prior_mean, prior_var = np.array([0.3, -1.0]), np.array([0.5, 2.0])
    hierarchy = arrow.Hierarchy(np.zeros((1, 0)), np.zeros((0, 2)), np.zeros((0, 2)), prior_mean, prior_var)
    found = arrow.solve((jacobian.T @ jacobian)[None], (jacobian.T @ y)[None], hierarchy)
    expected = np.linalg.solve(jacobian.T @ jacobian + np.diag(1 / prior_var), jacobian.T @ y + prior_mean / prior_var)
    np.testing.assert_allclose(found.theta[0], expected, rtol=1e-12)
    assert found.shared.shape == (0, 2)


def test_damping_shortens_the_step_towards_the_anchor():
    rng = np.random.default_rng(1)
    precision, score, hierarchy = _random_problem(rng, num_domains=3, num_parameters=2, num_shared=1)
    anchor = rng.standard_normal((1, 3, 2))
    batched = [array[None] for array in (precision, score)]
    gaps = []
    for damping in (1e-3, 1.0, 1e6):
        theta, _ = arrow.damped_step(*batched, hierarchy, damping=np.array([damping]), anchor=anchor)
        gaps.append(np.abs(theta - anchor).max())
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-4


@pytest.mark.parametrize("num_curves", [0, 3])
@pytest.mark.parametrize(("num_rows", "num_features"), [(5, 9), (12, 4)])
def test_marginal_equals_the_dense_covariance(num_rows, num_features, num_curves):
    rng = np.random.default_rng(num_rows)
    phi = rng.standard_normal((2, num_rows, num_features))
    curve = np.eye(num_curves)[rng.integers(0, max(num_curves, 1), (2, num_rows))] if num_curves else phi[..., :0]
    phi[1, -1] = 0.0  # a padded row
    curve = curve.copy()
    curve[1, -1] = 0.0
    diagonal = rng.uniform(0.1, 1.0, (3, 2, num_rows))
    diagonal[:, 1, -1] = 1.0
    amplitude_sq, curve_sq = np.array([0.01, 1.0, 30.0]), np.array([2.0, 0.0, 0.5])
    columns = rng.standard_normal((3, 2, num_rows, 2))
    bend = rng.uniform(0.5, 2.0, diagonal.shape)
    found = noise.marginal(phi, curve, bend, diagonal, amplitude_sq, curve_sq)
    shared = amplitude_sq[:, None, None, None] * (phi @ np.swapaxes(phi, -1, -2))
    shared = shared + curve_sq[:, None, None, None] * (curve @ np.swapaxes(curve, -1, -2))
    dense = bend[..., None] * shared * bend[..., None, :] + diagonal[..., None] * np.eye(num_rows)
    inverse = np.linalg.inv(dense)
    np.testing.assert_allclose(found.solve(columns), inverse @ columns, rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.at(2).solve(columns[2]), inverse[2] @ columns[2], rtol=1e-7, atol=1e-9)
    np.testing.assert_allclose(found.inverse_diagonal(), np.einsum("ngii->ngi", inverse), rtol=1e-7)
    np.testing.assert_allclose(found.log_det, np.linalg.slogdet(dense)[1].sum(-1), rtol=1e-9)
    weights = rng.standard_normal((3, 2, num_features, 1))
    spread, gathered = found.spread(weights), found.gather(columns[..., :1])
    np.testing.assert_allclose((spread * columns[..., :1]).sum(), (weights * gathered).sum(), rtol=1e-9)
    np.testing.assert_allclose(spread[..., 0], bend * (phi @ weights)[..., 0], rtol=1e-12)


def test_one_bad_matrix_does_not_stop_the_others():
    rng = np.random.default_rng(3)
    root = rng.standard_normal((4, 5, 5))
    good = root @ np.swapaxes(root, -1, -2)
    bad = good.copy()
    bad[1] -= 2.0 * np.linalg.eigvalsh(bad[1])[0] * np.eye(5)  # indefinite
    bad[2, 0, 0] = np.nan
    factor = arrow.cholesky(bad)
    np.testing.assert_allclose(factor[[0, 3]], np.linalg.cholesky(good[[0, 3]]), rtol=1e-9, atol=1e-9)
    np.testing.assert_allclose(np.triu(factor[1], 1), 0.0, atol=1e-12)
    assert np.isfinite(factor[1]).all() and (np.diag(factor[1]) > 0).all()
    assert np.isnan(factor[2]).all()
