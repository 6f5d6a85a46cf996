"""Heights of runs above the best response, and errors that grow with them."""

import numpy as np
import pytest

from planner.inference.heights import fit_heights


def _runs(num: int, *, num_domains: int = 2) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    coordinates = rng.uniform([10.0, 20.0], [14.0, 25.0], (num, 2))
    domain = rng.integers(0, num_domains, num)
    eta = 2.0 + 0.3 * domain + np.exp(10.0 - coordinates[:, 0]) + 0.2 * (coordinates[:, 1] - 23.0) ** 2
    return domain, coordinates, eta


def test_heights_follow_the_responses_and_are_level_at_the_best():
    domain, coordinates, eta = _runs(200)
    heights = fit_heights(domain, coordinates, eta, num_domains=2, scale=float(eta.std()))
    best = np.array([eta[domain == g].min() for g in range(2)])
    wanted = np.log1p((eta - best[domain]) / eta.std())
    found = heights.at(domain, coordinates)
    assert np.abs(found - wanted).mean() < 0.1 * np.ptp(wanted)
    assert (found >= 0).all() and (found <= wanted.max()).all()


def test_heights_do_not_follow_one_outlier():
    domain, coordinates, eta = _runs(100)
    scale = float(eta.std())
    plain = fit_heights(domain, coordinates, eta, num_domains=2, scale=scale).at(domain, coordinates)
    at = int(np.argmin(eta))
    eta[at] += 20.0 * scale
    odd = fit_heights(domain, coordinates, eta, num_domains=2, scale=scale).at(domain, coordinates)
    assert odd[at] < 0.3 * np.log1p(20.0)
    assert np.abs(odd - plain).mean() < 0.2


def test_heights_stay_as_they_are_beyond_the_runs():
    domain, coordinates, eta = _runs(60)
    heights = fit_heights(domain, coordinates, eta, num_domains=2, scale=1.0)
    edge, beyond = coordinates.max(axis=0), coordinates.max(axis=0) + 20.0
    assert heights.at(np.zeros(1, int), beyond[None]) == pytest.approx(heights.at(np.zeros(1, int), edge[None]))


@pytest.mark.parametrize("num", [0, 1, 2])
def test_few_runs_have_finite_heights(num):
    domain, coordinates, eta = _runs(num)
    heights = fit_heights(domain, coordinates, eta, num_domains=2, scale=1.0)
    at = heights.at(np.array([0, 1]), np.array([[12.0, 22.0], [9.0, 30.0]]))
    assert np.isfinite(at).all() and (at >= 0).all()
    if num < 2:
        assert (at == 0).all()
