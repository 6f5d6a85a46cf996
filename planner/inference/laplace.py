"""The fast engine: a mixture of Gaussians over modes and hyperparameters, corrected by importance weights.

For each law: modes by Gauss-Newton from many starts; around each mode the law is linearised, so that the marginal
likelihood of the scales (noise, discrepancy, distance between domains) is closed form, and nodes for them are drawn by
adaptive importance sampling (as INLA does on a grid: Rue, Martino and Chopin 2009); each kept node is re-linearised at
its own mode.  Draws come from these Gaussians and are reweighted by the exact density.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy.special import digamma, gammaln

from planner.errors import UnreliableFit
from planner.inference import arrow, noise
from planner.inference.basins import find_basins, quasi_normal, thin
from planner.inference.data import (
    LOG_DOMAIN_PRIOR,
    BoundLaw,
    FitData,
    Scales,
    error_scales,
    run_sizes,
    unpack_scales,
)

_STARTS, _WARM_STARTS = 32, 8  # of the search for modes, from nothing and from an earlier fit
_NODES_A_ROUND, _WARM_NODES = 32, 24
_ROUNDS = 4
_WARM_ROUNDS = 2  # the least where an earlier fit says where to look
_MAX_ROUNDS = 12
_MAX_BLOCKS = 80  # domains over all rounds: with many domains each says more of the scales, and each costs as much
_ENOUGH_NODES = 20.0  # effective nodes at which the sampling of the scales may stop
_REFINEMENTS = 3
_STUDENT_ROUNDS = 2
_MAX_SCALE_ROWS = 256  # runs a domain from which the scales are learned


class Linear(NamedTuple):
    """The law linearised at theta0: y - f(theta0) + J theta0 = J theta + residual.  Leading axes: nodes."""

    pseudo: np.ndarray  # (..., G, n)
    jacobian: np.ndarray  # (..., G, n, p)
    theta0: np.ndarray  # (..., G, p)


class Conditional(NamedTuple):
    """Posterior given the scales, for each node.  N nodes."""

    posterior: arrow.ArrowPosterior
    marginal: noise.Marginal
    log_evidence: np.ndarray  # (N,)


class Proposal(NamedTuple):
    """A Gaussian that nodes of the scales are drawn from.  H scales."""

    mean: np.ndarray  # (H,)
    root: np.ndarray  # (H, H) lower


class LawFit(NamedTuple):
    """Posterior of one law as weighted Gaussian components (one a node).  N components."""

    law: BoundLaw
    scales: Scales
    weight: np.ndarray  # (N,) sums to one
    linear: Linear
    conditional: Conditional
    student: np.ndarray  # (N, G, n) noise precision multipliers
    log_evidence: float
    basins: np.ndarray  # (B, G, p) to warm the next fit
    proposal: Proposal  # of its scales, likewise


def linearise(law: BoundLaw, data: FitData, theta: np.ndarray) -> Linear:
    """The law linearised at theta (N, G, p)."""
    value, jacobian = law.value_and_jacobian(theta, data.coordinates)
    jacobian = np.where(data.is_real[..., None], jacobian, 0.0)
    pseudo = np.where(data.is_real, data.y - value, 0.0) + (jacobian @ theta[..., None])[..., 0]
    return Linear(pseudo, jacobian, theta)


def condition(law: BoundLaw, data: FitData, linear: Linear, scales: Scales, student: np.ndarray) -> Conditional:
    """Exact posterior and evidence of the linear model at every node of the scales."""
    amplitude_sq = data.context.scale**2 * np.exp(2.0 * scales.log_discrepancy)
    curve_sq = data.context.scale**2 * np.exp(2.0 * scales.log_curve)
    sizes = run_sizes(scales, data.height, data.context.scale)
    diagonal = sizes.noise_var / student + sizes.missed_var * data.missed + data.known_var
    diagonal = np.where(data.is_real, diagonal, 1.0)
    marginal = noise.marginal(data.phi, data.curve, sizes.bend, diagonal, amplitude_sq, curve_sq)
    hierarchy = law.hierarchy(data.design, scales.log_domain)
    jacobian = np.broadcast_to(linear.jacobian, (len(scales.log_noise), *linear.jacobian.shape[-3:]))
    pseudo = np.broadcast_to(linear.pseudo, (len(scales.log_noise), *linear.pseudo.shape[-2:]))[..., None]
    solved = marginal.solve(np.concatenate([jacobian, pseudo], axis=-1))
    transposed = np.swapaxes(jacobian, -1, -2)
    precision = transposed @ solved[..., :-1]
    score = (transposed @ solved[..., -1:])[..., 0]
    posterior = arrow.solve(0.5 * (precision + np.swapaxes(precision, -1, -2)), score, hierarchy)
    misfit = (pseudo[..., 0] * solved[..., -1]).sum((-1, -2))
    fitted = (posterior.theta * score).sum((-1, -2))
    curved = (posterior.theta * (precision @ posterior.theta[..., None])[..., 0]).sum((-1, -2))
    quadratic = misfit - 2.0 * fitted + curved + arrow.prior_quadratic(posterior.theta, posterior.shared, hierarchy)
    num_runs = data.is_real.sum()
    log_evidence = -0.5 * (num_runs * np.log(2.0 * np.pi) + marginal.log_det + quadratic + posterior.log_det)
    return Conditional(posterior, marginal, log_evidence)


def _scale_priors(law: BoundLaw, data: FitData) -> np.ndarray:
    """Means and standard deviations of the scales in the order in which `unpack_scales` reads them, (H, 2)."""
    of_domains = [LOG_DOMAIN_PRIOR] * (law.num_parameters if len(data.y) > 1 else 0)
    return np.array([*error_scales(data).values(), *of_domains])


def _log_prior(nodes: np.ndarray, priors: np.ndarray) -> np.ndarray:
    return (-0.5 * ((nodes - priors[:, 0]) / priors[:, 1]) ** 2 - np.log(priors[:, 1])).sum(axis=1)


def _noise_ratio(
    data: FitData, linear: Linear, conditional: Conditional, scales: Scales, student: np.ndarray
) -> np.ndarray:
    """Expected square of the heavy-tailed part of every run's noise over its squared scale, (N, G, n)."""
    posterior, marginal = conditional.posterior, conditional.marginal
    residual = linear.pseudo - (linear.jacobian @ posterior.theta[..., None])[..., 0]
    diagonal = marginal.diagonal
    root = np.concatenate([posterior.root, posterior.lever], axis=-1)
    solved = marginal.solve(np.concatenate([residual[..., None], linear.jacobian @ root], axis=-1))
    # The noise has posterior mean D K^-1 r and variance D - D K^-1 D, the uncertainty of the law carried through both.
    mean = diagonal * solved[..., 0]
    variance = diagonal - diagonal**2 * marginal.inverse_diagonal()
    variance = np.maximum(variance + ((diagonal[..., None] * solved[..., 1:]) ** 2).sum(-1), 0.0)
    unit = run_sizes(scales, data.height, data.context.scale).noise_var
    # The rest of D is known variance and what the features miss, neither of which has heavy tails.
    tailed = unit / student
    share = np.where(data.is_real, tailed / diagonal, 1.0)
    return (share**2 * (mean**2 + variance) + share * (diagonal - tailed) * data.is_real) / unit


def _student_correction(student: np.ndarray, ratio: np.ndarray, is_real: np.ndarray) -> np.ndarray:
    """What the variational bound adds to the Gaussian evidence for the multipliers of Student-t noise, (N,).

    q(lambda) = Gamma((v + 1)/2, (v + ratio)/2) with ratio = expected squared noise over variance; p = Gamma(v/2, v/2).
    """
    degrees = noise.DEGREES_OF_FREEDOM
    shape_q, rate_q = 0.5 * (degrees + 1.0), 0.5 * (degrees + ratio)
    shape_p = rate_p = 0.5 * degrees
    expected_log = digamma(shape_q) - np.log(rate_q)
    divergence = (
        shape_q * np.log(rate_q)
        - shape_p * np.log(rate_p)
        - gammaln(shape_q)
        + gammaln(shape_p)
        + (shape_q - shape_p) * expected_log
        - (rate_q - rate_p) * shape_q / rate_q
    )
    return np.where(is_real, 0.5 * (expected_log - np.log(student)) - divergence, 0.0).sum((-1, -2))


def bound_evidence(law: BoundLaw, data: FitData, linear: Linear, scales: Scales) -> tuple[np.ndarray, np.ndarray]:
    """Variational bound of the log evidence at every node (N,) and the noise multipliers there (N, G, n).

    Every node has multipliers of its own: under those of another, an outlier would lock the noise at the size it asks
    for, and no node with small noise could win.
    """
    value = linear.pseudo - (linear.jacobian @ linear.theta0[..., None])[..., 0]
    sizes = run_sizes(scales, data.height, data.context.scale)
    # From robust to Gaussian: a run that the mode misses starts as an outlier.
    student = noise.student_weights(value**2, sizes.noise_var + sizes.missed_var + data.known_var)
    student = np.where(data.is_real, student, 1.0)
    ratio = student
    for _ in range(_STUDENT_ROUNDS):
        conditional = condition(law, data, linear, scales, student)
        ratio = _noise_ratio(data, linear, conditional, scales, student)
        student = np.where(data.is_real, noise.student_weights(ratio, np.ones(())), 1.0)
    conditional = condition(law, data, linear, scales, student)
    bound = conditional.log_evidence + _student_correction(student, ratio, data.is_real)
    return np.where(np.isfinite(bound), bound, -np.inf), student


class _Nodes(NamedTuple):
    scales: np.ndarray  # (N, H) resampled nodes
    weight: np.ndarray  # (N,)
    log_evidence: float  # of the basin, scales integrated out
    student: np.ndarray  # (N, G, n)
    proposal: Proposal


def _proposal(nodes: np.ndarray, weight: np.ndarray, prior_sd: np.ndarray, num_free: int) -> Proposal:
    """The Gaussian of the next nodes.

    Inflated, and never narrower than a part of the prior: a few lucky nodes must not close the search.  Only the first
    `num_free` scales correlate: the distances between domains are many, each known by itself, and the correlations of
    a few dozen nodes would be noise.
    """
    mean = weight @ nodes
    covariance = 1.5 * (nodes - mean).T @ ((nodes - mean) * weight[:, None])
    covariance[num_free:] = covariance[:, num_free:] = 0.0
    variance = 1.5 * weight @ (nodes - mean) ** 2
    np.fill_diagonal(covariance, variance + (0.15 * prior_sd) ** 2)
    return Proposal(mean, np.linalg.cholesky(covariance))


def _sample_scales(
    law: BoundLaw, data: FitData, linear: Linear, *, num_keep: int, seed: int, warm: Proposal | None = None
) -> _Nodes:
    """Nodes for the scales of one basin by adaptive importance sampling on the closed-form evidence.

    The first round draws from the prior; the next from what the rounds before found, or from an earlier fit.
    """
    priors = _scale_priors(law, data)
    prior_mean, prior_sd = priors.T
    num_free = len(priors) - (law.num_parameters if len(data.y) > 1 else 0)
    if warm is not None and len(warm.mean) != len(priors):
        warm = None
    least, num_new = (_ROUNDS, _NODES_A_ROUND) if warm is None else (_WARM_ROUNDS, _WARM_NODES)
    normal = quasi_normal(num_new, len(priors), seed=seed)
    proposal = Proposal(prior_mean, np.diag(prior_sd))
    enough = 2.0 * (num_free + 1)  # effective nodes that tell the spread of the scales that correlate
    nodes, log_target, proposals, students = [], [], [], []
    for round_index in range(int(np.clip(_MAX_BLOCKS // len(data.y), _ROUNDS, _MAX_ROUNDS))):
        new = proposal.mean + normal @ proposal.root.T
        new = np.clip(new, prior_mean - 5 * prior_sd, prior_mean + 5 * prior_sd)
        bound, student = bound_evidence(law, data, linear, unpack_scales(new, data))
        value = bound + _log_prior(new, priors)
        students.append(student)
        nodes.append(new)
        log_target.append(value)
        proposals.append(proposal)
        every = np.concatenate(nodes)
        if not np.isfinite(np.concatenate(log_target)).any():
            if round_index + 1 < _ROUNDS:
                continue
            return _Nodes(every[:1], np.ones(1), -np.inf, np.concatenate(students)[:1], proposal)
        log_weight = np.concatenate(log_target) - _log_mixture(every, proposals)
        weight = np.exp(log_weight - log_weight.max())
        weight /= weight.sum()
        if round_index + 1 >= least and 1.0 / (weight**2).sum() > _ENOUGH_NODES:
            break
        if round_index == 0 and warm is not None:
            proposal = warm
        else:
            proposal = _proposal(every, _flattened(log_weight, enough), prior_sd, num_free)
    log_evidence = float(np.log(np.mean(np.exp(log_weight - log_weight.max()))) + log_weight.max())
    positions = (np.arange(num_keep) + 0.5) / num_keep
    order = np.argsort(every[:, 0])
    picked = order[np.searchsorted(np.cumsum(weight[order]), positions).clip(max=len(order) - 1)]
    unique, counts = np.unique(picked, return_counts=True)
    best = _proposal(every, _flattened(log_weight, enough), prior_sd, num_free)
    return _Nodes(every[unique], counts / num_keep, log_evidence, np.concatenate(students)[unique], best)


def _student_of_all(law: BoundLaw, data: FitData, theta: np.ndarray, part: _Nodes, thinned: FitData) -> np.ndarray:
    """Noise multipliers of all runs (N, G, n) where the scales were learned from a part of them."""
    if thinned is data:
        return part.student
    linear = Linear(*(array[0] for array in linearise(law, data, theta[None])))
    return bound_evidence(law, data, linear, unpack_scales(part.scales, data))[1]


def _flattened(log_weight: np.ndarray, least: float) -> np.ndarray:
    """Weights (N,) to the highest power up to 1 at which at least so many nodes are effective.

    One lucky node among those of a broad proposal says where to look next, but not how wide.
    """

    def raised(power: float) -> np.ndarray:
        weight = np.exp(power * (log_weight - log_weight.max()))
        return weight / weight.sum()

    low, high = 0.0, 1.0
    weight = raised(high)
    for _ in range(0 if 1.0 / (weight**2).sum() >= least else 12):
        middle = 0.5 * (low + high)
        weight = raised(middle)
        low, high = (middle, high) if 1.0 / (weight**2).sum() >= least else (low, middle)
    return weight


def _log_mixture(points: np.ndarray, proposals: Sequence[Proposal]) -> np.ndarray:
    """Log density of the equal mixture of Gaussian proposals, (N,)."""
    parts = []
    for mean, root in proposals:
        z = np.linalg.solve(root, (points - mean).T)
        parts.append(-0.5 * (z**2).sum(0) - np.log(np.diag(root)).sum())
    return np.logaddexp.reduce(parts, axis=0) - np.log(len(parts))


def _is_usable(linear: Linear, conditional: Conditional) -> np.ndarray:
    """Which nodes have a finite posterior, (N,)."""
    posterior = conditional.posterior
    arrays = (linear.pseudo, linear.jacobian, posterior.theta, posterior.root, posterior.lever)
    finite = [np.isfinite(array).reshape(len(array), -1).all(axis=1) for array in arrays]
    return np.all(finite, axis=0) & np.isfinite(conditional.log_evidence)


def fit_law(law: BoundLaw, data: FitData, *, seed: int, num_nodes: int = 8, warm: LawFit | None = None) -> LawFit:
    """Fits one law; see the module.  A `warm` fit of nearly the same runs says where to look first, not what is there.

    Raises:
        UnreliableFit: no finite likelihood or posterior.
    """
    known, proposal = (None, None) if warm is None else (warm.basins, warm.proposal)
    num_starts = _STARTS if warm is None else _WARM_STARTS
    basins = find_basins(law, data, num_starts=num_starts, seed=seed, warm=known)
    thinned = thin(data, _MAX_SCALE_ROWS)
    at_modes = linearise(law, thinned, basins.theta)
    linears = [Linear(*(array[b] for array in at_modes)) for b in range(len(basins.theta))]
    parts = [_sample_scales(law, thinned, each, num_keep=num_nodes, seed=seed + 1, warm=proposal) for each in linears]
    evidence = np.array([part.log_evidence for part in parts])
    if not np.isfinite(evidence).any():
        raise UnreliableFit(f"law {law.law.name!r} has no finite likelihood for these runs")
    basin_weight = np.exp(evidence - evidence.max())
    basin_weight /= basin_weight.sum()
    kept = [b for b in range(len(parts)) if basin_weight[b] > 0.02]
    nodes = np.concatenate([parts[b].scales for b in kept])
    weight = np.concatenate([basin_weight[b] * parts[b].weight for b in kept])
    sizes = [len(parts[b].scales) for b in kept]
    student = np.concatenate([_student_of_all(law, data, basins.theta[b], parts[b], thinned) for b in kept])
    theta = np.repeat(basins.theta[kept], sizes, axis=0)
    scales = unpack_scales(nodes, data)
    for _ in range(_REFINEMENTS):
        linear = linearise(law, data, theta)
        conditional = condition(law, data, linear, scales, student)
        ratio = _noise_ratio(data, linear, conditional, scales, student)
        student = np.where(data.is_real, noise.student_weights(ratio, np.ones(())), 1.0)
        # At a broad node the full Gauss-Newton step may leave the region where it holds.
        limit = 2.0 * law.prior_sd
        step = np.clip(conditional.posterior.theta - theta, -limit, limit)
        theta = np.where(np.isfinite(step), theta + step, theta)
        student = np.where(np.isfinite(student), student, 1.0)
    linear = linearise(law, data, theta)
    conditional = condition(law, data, linear, scales, student)
    weight = np.where(_is_usable(linear, conditional), weight, 0.0)
    if not weight.any():
        raise UnreliableFit(f"law {law.law.name!r} has no finite posterior for these runs")
    log_evidence = float(np.logaddexp.reduce(evidence))
    best = parts[int(np.argmax(evidence))].proposal
    return LawFit(law, scales, weight / weight.sum(), linear, conditional, student, log_evidence, basins.theta, best)
