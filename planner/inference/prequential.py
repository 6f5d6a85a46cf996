"""How well each law predicted dearer runs before they were used.

The runs of a study are taken cheapest first; after each cut the law is fitted to what came before and predicts what
comes next, up the cost axis as the planner itself must.  A law that only fits in range is found out here.
"""

from collections.abc import Iterator

import numpy as np

from planner.inference import weights as law_weights
from planner.inference.basins import thin
from planner.inference.data import BoundLaw, FitData, swell
from planner.inference.draws import LawDraws, draw
from planner.inference.laplace import LawFit, fit_law

_CUTS = (0.5, 0.7, 0.85)  # shares of the runs after which the next ones are predicted
_MIN_RUNS = 6
_NUM_DRAWS = 200
_MAX_ROWS = 128  # runs a domain
_DEGREES = 4.0  # tails of the density that stands for the draws
_QUARTILES = 1.4814  # between the quartiles of that density, in its scales


def blocks(num_runs: int) -> Iterator[tuple[int, int]]:
    """Where each stretch of coming runs begins and ends, in order of cost; none where too few runs come before."""
    for cut, end in zip(_CUTS, (*_CUTS[1:], 1.0), strict=True):
        first, last = int(cut * num_runs), int(np.ceil(end * num_runs))
        if first >= _MIN_RUNS and last > first:
            yield first, last


def log_score(law: BoundLaw, data: FitData, log_cost: np.ndarray, *, seed: int, warm: LawFit | None) -> float:
    """Log predictive density of dearer runs, summed over cuts; a rung of cost counts once, however many runs it has.

    Args:
        log_cost: of all runs in order of cost, (R,); `data.order` indexes it.
        warm: the fit to all runs, which says where to look first.

    Raises:
        UnreliableFit: the law cannot be fitted to the runs before a cut.
    """
    data = thin(data, _MAX_ROWS)
    ranks = np.sort(data.order[data.is_real]).astype(int)
    total = 0.0
    for first, last in blocks(len(ranks)):
        known = data.is_real & (data.order < ranks[first])
        coming = data.is_real & ~known & (data.order <= ranks[last - 1])
        before = _hide(data, known)
        fit = fit_law(law, before, seed=seed, warm=warm)
        draws = draw(fit, before, _NUM_DRAWS, np.random.default_rng(seed))
        density = log_density(data.y[coming], _responses(draws, data, seed)[:, coming])
        total += density.mean() * law_weights.num_rungs(log_cost[data.order[coming].astype(int)])
    return float(total)


def _hide(data: FitData, known: np.ndarray) -> FitData:
    """The same data with all runs but the known ones made padding."""
    return data._replace(
        y=np.where(known, data.y, 0.0),
        is_real=known,
        phi=np.where(known[..., None], data.phi, 0.0),
        curve=np.where(known[..., None], data.curve, 0.0),
    )


def _responses(draws: LawDraws, data: FitData, seed: int) -> np.ndarray:
    """Responses of new runs at all rows, (S, G, n)."""
    swollen, bend = swell(draws.growth, data.height.sum(-1))
    rng = np.random.default_rng(seed)
    mean = draws.law.value(draws.theta, data.coordinates)
    mean = mean + bend * np.einsum("gnm,sgm->sgn", data.phi, draws.weights)
    unseen_var = draws.discrepancy_sd[:, None, None] ** 2 * data.missed + draws.curve_sd[:, None, None] ** 2
    unseen_var = bend**2 * unseen_var
    noise = draws.noise_sd[:, None, None] * swollen * rng.standard_t(4.0, mean.shape)
    return mean + noise + np.sqrt(unseen_var + data.known_var) * rng.standard_normal(mean.shape)


def log_density(truth: np.ndarray, draws: np.ndarray) -> np.ndarray:
    """Log density (P,) of `truth` under Student-t densities with the quartiles of the draws (S, P)."""
    low, middle, high = np.quantile(draws, [0.25, 0.5, 0.75], axis=0)
    scale = np.maximum((high - low) / _QUARTILES, 1e-12)
    tail = np.log1p(((truth - middle) / scale) ** 2 / _DEGREES)
    return -np.log(scale) - 0.5 * (_DEGREES + 1.0) * tail
