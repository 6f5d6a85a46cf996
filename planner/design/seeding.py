"""The first runs of a study, before any posterior deserves trust: spread over the box, a little of it dear."""

import numpy as np

# Share of the budget that the first runs may take together, and any one of them.
_SHARE_OF_ALL = 0.25
_SHARE_OF_ONE = 0.10


def num_seed_runs(num_axes: int, num_domains: int) -> int:
    """How many runs to buy before planning by gain: enough for a slope and a bend on every axis."""
    return max(2 * num_axes + 2, 2 * num_domains, 5)


def seed_designs(
    coordinates: np.ndarray,
    domain: np.ndarray,
    cost: np.ndarray,
    bought: np.ndarray,
    *,
    budget: float,
    num: int,
) -> np.ndarray:
    """Indices of up to `num` candidates that spread over the box, greedily D-optimal for a quadratic in the logs.

    Args:
        coordinates: (C, A) of the candidates, scaled to unit spread.
        domain: (C,) domain index of each candidate.
        cost: (C,).
        bought: (R, 1 + A) domain and scaled coordinates of runs bought or running.
        budget: the whole budget of the study.
    """
    # Domains may run out of candidates before others do, and runs may lie where no candidate is left.
    num_domains = 1 + int(max(domain.max(), bought[:, 0].max(initial=0)))
    allowed = cost <= max(_SHARE_OF_ONE * budget, float(cost.min()))
    features = _quadratic_features(coordinates, domain, num_domains)
    precision = 0.05 * np.eye(features.shape[1])
    if len(bought):
        old = _quadratic_features(bought[:, 1:], bought[:, 0].astype(int), num_domains)
        precision = precision + old.T @ old
    picks: list[int] = []
    left = _SHARE_OF_ALL * budget
    covariance = np.linalg.inv(precision)
    for _ in range(num):
        gain = np.einsum("ci,ij,cj->c", features, covariance, features)
        # A whisper of cost: of designs that teach alike, the cheaper one.
        score = np.where(allowed & (cost <= left), np.log1p(gain) * (cost / cost.min()) ** -0.05, -1.0)
        pick = int(np.argmax(score))
        if score[pick] < 0.0:
            break
        picks.append(pick)
        allowed[pick] = False
        left -= float(cost[pick])
        step = covariance @ features[pick]
        covariance = covariance - np.outer(step, step) / (1.0 + features[pick] @ step)
    return np.array(picks, dtype=int)


def _quadratic_features(scaled: np.ndarray, domain: np.ndarray, num_domains: int) -> np.ndarray:
    num_axes = scaled.shape[1]
    rows, columns = np.triu_indices(num_axes)
    quadratic = 0.5 * scaled[:, rows] * scaled[:, columns]
    levels = np.eye(num_domains)[domain]
    return np.concatenate([levels, scaled, quadratic], axis=1)
