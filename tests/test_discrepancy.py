"""Features of the discrepancy against the kernel they stand for."""

import numpy as np
import pytest

from planner.inference import discrepancy


@pytest.fixture
def points():
    return np.random.default_rng(0).uniform(-2.0, 2.0, (60, 2)) * np.array([1.0, 5.0])


def test_features_reproduce_the_kernel_they_were_chosen_for(points):
    scale = np.array([2.0, 10.0])
    basis = discrepancy.choose_basis(points, scale, num_features=60, tolerance=1e-9)
    phi, missed = discrepancy.features(basis, points)
    np.testing.assert_allclose(phi @ phi.T, discrepancy.kernel(points / scale, points / scale), atol=1e-6)
    assert missed.max() < 1e-6


def test_runs_of_one_size_deviate_together():
    """A new run of a size already run is known better than one of a new size, however near."""
    sizes, near = np.array([[0.0, -0.5], [0.0, 0.5]]), np.array([[0.05, 0.0], [0.0, 0.0]])
    gram = discrepancy.kernel(sizes, sizes)
    np.testing.assert_allclose(np.diag(gram), 1.0)
    cross = discrepancy.kernel(near, sizes)
    new_size, same_size = 1.0 - np.einsum("ij,ij->i", cross @ np.linalg.inv(gram), cross)
    assert same_size < new_size


def test_unit_variance_is_kept_whatever_the_features_miss(points):
    basis = discrepancy.choose_basis(points, np.ones(2), num_features=5)
    phi, missed = discrepancy.features(basis, points * 1.7)
    np.testing.assert_allclose((phi**2).sum(-1) + missed, 1.0, atol=1e-6)
    assert missed.max() > 0.5


def test_more_features_miss_less(points):
    missed = [
        discrepancy.features(discrepancy.choose_basis(points, np.ones(2) * 3, num_features=k), points)[1].mean()
        for k in (2, 8, 32)
    ]
    assert missed[0] > missed[1] > missed[2]


def test_matern_is_one_at_no_distance_and_falls():
    gap = np.array([[0.0], [0.5], [1.0], [4.0]])
    value = discrepancy.matern32(gap, np.zeros((1, 1)))[:, 0]
    assert value[0] == pytest.approx(1.0)
    assert (np.diff(value) < 0).all()
    # Closed form of Rasmussen and Williams 2006, eq. 4.17, at one length-scale.
    assert value[2] == pytest.approx((1 + np.sqrt(3)) * np.exp(-np.sqrt(3)))
