"""Recovery of known exponents: what the hierarchy gains over separate fits, and whether its intervals are honest."""

import numpy as np
import pytest

from planner import inference
from planner.records import Design, DesignTable, Outcome, RunState
from planner.spec import parse_study_spec

NUM_DOMAINS, NUM_SEEDS = 6, 40


def _spec(domains):
    return parse_study_spec(
        {
            "study": {"name": "recovery"},
            "response": {"name": "loss"},
            "axes": [
                {"name": "N", "low": 1e6, "high": 1e9, "role": "parameters"},
                {"name": "D", "low": 1e8, "high": 3e10, "role": "tokens"},
            ],
            "domains": [{"name": name} for name in domains],
            "cost": {"terms": [{"coefficient": 6.0, "powers": {"N": 1.0, "D": 1.0}}]},
            "budget": {"total": 1e22},
            "laws": {"use": ["sum_of_powers"]},
        }
    )


def _simulate(seed):
    """Six domains with Chinchilla laws of their own and four runs each: (exponents (G, 2), x (G, 4, 2), y (G, 4)).

    Published exponents spread by about a half between studies and by about a tenth between domains of one study.
    """
    rng = np.random.default_rng(seed)
    population = np.log(0.35) + 0.4 * rng.standard_normal(2)
    exponent = np.exp(population + 0.12 * rng.standard_normal((NUM_DOMAINS, 2)))
    floor = 1.7 + 0.1 * rng.standard_normal(NUM_DOMAINS)
    share = np.exp(np.log([0.5, 0.7]) + 0.2 * rng.standard_normal((NUM_DOMAINS, 2)))
    log_low, log_high = np.log([1e6, 1e8]), np.log([1e9, 3e10])
    u = rng.uniform(size=(NUM_DOMAINS, 4, 2))
    log_x = log_low + u * (log_high - log_low)
    centred = log_x - 0.5 * (log_low + log_high)
    mean = floor[:, None] + (share[:, None] * np.exp(-exponent[:, None] * centred)).sum(-1)
    return exponent, np.exp(log_x), mean + 0.01 * rng.standard_normal(mean.shape)


def _exponents(names, x, y):
    """Posterior draws of log exponents (S, G, 2) of the named domains."""
    spec = _spec(names)
    table = DesignTable(
        domain=np.repeat(np.arange(len(names)), 4),
        x=x.reshape(-1, 2),
        cost=6.0 * x.reshape(-1, 2).prod(-1),
        row=np.arange(4 * len(names)),
    )
    outcomes = [
        Outcome(
            run_id=f"r{i}",
            design=Design(domain=names[table.domain[i]], axes={"N": table.x[i, 0], "D": table.x[i, 1]}),
            state=RunState.COMPLETED,
            response=float(y.ravel()[i]),
            cost=float(table.cost[i]),
        )
        for i in range(len(table))
    ]
    posterior = inference.fit_study(spec, outcomes, table, table, num_draws=600, seed=0)
    return posterior.parts[0].theta[:, :, 3:5]


@pytest.mark.slow
def test_hierarchy_covers_known_exponents_and_beats_separate_fits():
    names = [f"d{g}" for g in range(NUM_DOMAINS)]
    covered, together, apart = [], [], []
    for seed in range(NUM_SEEDS):
        exponent, x, y = _simulate(seed)
        truth = np.log(exponent)
        draws = _exponents(names, x, y)
        low, high = np.quantile(draws, [0.05, 0.95], axis=0)
        covered.append((low <= truth) & (truth <= high))
        together.append(np.abs(np.median(draws, axis=0) - truth))
        single = np.stack([np.median(_exponents(["d"], x[g : g + 1], y[g : g + 1]), axis=0)[0] for g in range(6)])
        apart.append(np.abs(single - truth))
    coverage, ratio = float(np.mean(covered)), float(np.mean(together) / np.mean(apart))
    print(f"coverage of 90 % intervals {coverage:.3f}, error with sharing over error without {ratio:.3f}")
    assert 0.80 <= coverage <= 0.98
    assert ratio <= 0.75
