"""Truths of reinforcement learning and agents: the response is a success rate or a mean reward."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from backends.truths.domains import Mean, Values, domain_normals


def _sigmoid(z: Any) -> Any:
    return 0.5 * (1.0 + np.tanh(0.5 * z))


def _complete(given: Mapping[str, float], known: Mapping[str, float], field: str) -> dict[str, float]:
    """`known` with the values of `given` put in.  Raises `ValueError` for names that are not known."""
    unknown = sorted(set(given) - set(known))
    if unknown:
        raise ValueError(f"{field}: {', '.join(unknown)} unknown; known: {', '.join(known)}")
    return {**known, **given}


@dataclasses.dataclass(frozen=True, kw_only=True)
class Agentic:
    """-log p = floor + rho^-g sum_j A_j x_j^-alpha_j, p the success rate of an agent trained by reinforcement learning.

    The form and the exponents that the tables of He et al. 2026 ("How Data Scales in Agentic RL") force; amplitudes
    put the terms at sizes like theirs.  `worlds` and `structures` are the two factors of environments and replace that
    term where a study has them.

    With a `gate` k above 0, environments gate tasks: T tasks count as (T^-p + (k D^d)^-p)^(-1/p), D the environments
    or worlds in units of the stand-in value, T likewise: where D is at its stand-in, there is use for k times the
    stand-in of tasks.  How the density of rewards rho and the gate enter is ours, the paper's formulas are not known.
    """

    axes: ClassVar[Mapping[str, float]] = {
        "environments": 256.0,
        "tasks": 10240.0,
        "trajectories": 8.0,
        "parameters": 8e9,
        "worlds": 8.0,
        "structures": 8.0,
        "reward_density": 1.0,
    }
    drawn: ClassVar[tuple[str, ...]] = ()
    response: ClassVar[str] = "success"
    default_exponents: ClassVar[Mapping[str, float]] = {
        "environments": 0.41,
        "tasks": 0.26,
        "trajectories": 0.11,
        "parameters": 0.30,
        "worlds": 0.44,
        "structures": 0.28,
    }
    # The size of each term at the stand-in value.
    default_sizes: ClassVar[Mapping[str, float]] = {
        "environments": 0.12,
        "tasks": 0.14,
        "trajectories": 0.22,
        "parameters": 0.20,
        "worlds": 0.42,
        "structures": 0.68,
    }

    exponents: Mapping[str, float] = dataclasses.field(default_factory=dict)  # where they differ from the default
    sizes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    floor: float = 0.14
    density_exponent: float = 0.15
    gate: float = 0.0  # k; 0: no gate
    gate_exponent: float = 1.0  # d
    gate_order: float = 2.0  # p
    trials: int = 500
    noise: float = 0.01
    spread: float = 1.0
    domain_seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "exponents", _complete(self.exponents, self.default_exponents, "exponents"))
        object.__setattr__(self, "sizes", _complete(self.sizes, self.default_sizes, "sizes"))
        if self.gate < 0 or not (self.gate_exponent > 0 and self.gate_order > 0):
            raise ValueError("gate must not be negative, gate_exponent and gate_order must be above 0")

    def mean(self, domain: str, axes: Values) -> Mean:
        z = dict(zip(self.sizes, domain_normals(self.domain_seed, domain, 13)[1:].reshape(6, 2), strict=True))
        split = "worlds" in axes or "structures" in axes
        loss = self.floor * np.exp(0.2 * self.spread * domain_normals(self.domain_seed, domain, 1)[0])
        ratios = {name: np.asarray(axes.get(name, value)) / value for name, value in self.axes.items()}
        if self.gate > 0:
            held = self.gate * ratios["worlds" if split else "environments"] ** self.gate_exponent
            order = self.gate_order
            ratios["tasks"] = (ratios["tasks"] ** -order + held**-order) ** (-1.0 / order)
        gain = ratios["reward_density"] ** -self.density_exponent
        for name, size in self.sizes.items():
            if name in (("environments",) if split else ("worlds", "structures")):
                continue
            z_size, z_exponent = self.spread * z[name]
            exponent = self.exponents[name] * np.exp(0.1 * z_exponent)
            loss = loss + gain * size * np.exp(0.2 * z_size) * ratios[name] ** -exponent
        return np.exp(-loss)


@dataclasses.dataclass(frozen=True, kw_only=True)
class RewardSampling:
    """Reward over compute C = problems x rollouts x updates, with a best number n of rollouts per problem.

    For fixed n a sigmoid in log C, R_0 + (A_n - R_0) / (1 + (C_n / C)^steepness), whose midpoint C_n grows with n and
    whose asymptote A_n is highest at `best_rollouts`: the best n rises with compute and then saturates (the shape of
    Cheng et al. 2026, arXiv:2603.12151).
    """

    axes: ClassVar[Mapping[str, float]] = {"problems": 256.0, "rollouts": 64.0, "updates": 200.0, "compute": 3.3e6}
    drawn: ClassVar[tuple[str, ...]] = ()
    response: ClassVar[str] = "reward"

    start: float = 0.2
    asymptote: float = 0.75
    best_rollouts: float = 512.0
    midpoint: float = 2e6  # rollouts at half the gain, at the best number of rollouts
    midpoint_exponent: float = 0.6
    steepness: float = 0.8
    peak_width: float = 5.0  # standard deviation of the asymptote's fall, in nats of rollouts
    noise: float = 0.008
    spread: float = 1.0
    domain_seed: int = 0

    def mean(self, domain: str, axes: Values) -> Mean:
        z = self.spread * domain_normals(self.domain_seed, domain, 4)
        n = np.asarray(axes.get("rollouts", self.axes["rollouts"]))
        compute = axes.get("compute")
        if compute is None:
            problems, updates = (axes.get(name, self.axes[name]) for name in ("problems", "updates"))
            compute = np.asarray(problems) * n * updates
        off_peak = np.log(n / (self.best_rollouts * np.exp(0.4 * z[0])))
        top = self.asymptote + 0.04 * z[1]
        asymptote = self.start + (top - self.start) * np.exp(-0.5 * (off_peak / self.peak_width) ** 2)
        log_midpoint = np.log(self.midpoint) + 0.5 * z[2] + self.midpoint_exponent * off_peak
        share = _sigmoid(self.steepness * np.exp(0.1 * z[3]) * (np.log(compute) - log_midpoint))
        return self.start + (asymptote - self.start) * share


@dataclasses.dataclass(frozen=True, kw_only=True)
class ToolEnvironments:
    """-log p = floor + (complexity / c_0)^-gamma sum_j A_j x_j^-alpha_j over tools, databases and tasks.

    Tools and databases have the larger exponents, so that at small budgets more tasks help most and at large ones more
    tools and databases do (the finding of SynthAPI, 2026; the form is ours).
    """

    axes: ClassVar[Mapping[str, float]] = {"tools": 100.0, "databases": 20.0, "tasks": 5000.0, "complexity": 4.0}
    drawn: ClassVar[tuple[str, ...]] = ()
    response: ClassVar[str] = "success"
    default_exponents: ClassVar[Mapping[str, float]] = {"tools": 0.36, "databases": 0.31, "tasks": 0.17}
    default_sizes: ClassVar[Mapping[str, float]] = {"tools": 0.30, "databases": 0.25, "tasks": 0.35}

    exponents: Mapping[str, float] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, float] = dataclasses.field(default_factory=dict)
    floor: float = 0.15
    complexity_exponent: float = 0.1
    trials: int = 500
    noise: float = 0.01
    spread: float = 1.0
    domain_seed: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "exponents", _complete(self.exponents, self.default_exponents, "exponents"))
        object.__setattr__(self, "sizes", _complete(self.sizes, self.default_sizes, "sizes"))

    def mean(self, domain: str, axes: Values) -> Mean:
        given = {**self.axes, **axes}
        z = self.spread * domain_normals(self.domain_seed, domain, 7)
        gain = (np.asarray(given["complexity"]) / self.axes["complexity"]) ** -self.complexity_exponent
        loss = self.floor * np.exp(0.2 * z[0])
        for (name, size), (z_size, z_exponent) in zip(self.sizes.items(), z[1:].reshape(3, 2), strict=True):
            ratio = np.asarray(given[name]) / self.axes[name]
            exponent = self.exponents[name] * np.exp(0.1 * z_exponent)
            loss = loss + gain * size * np.exp(0.2 * z_size) * ratio**-exponent
        return np.exp(-loss)


@dataclasses.dataclass(frozen=True, kw_only=True)
class Sigmoid:
    """R = R_0 + (A - R_0) / (1 + (C_mid / C)^B) (Khatri et al. 2025, ScaleRL, arXiv:2510.13786)."""

    axes: ClassVar[Mapping[str, float]] = {"compute": 2000.0}
    drawn: ClassVar[tuple[str, ...]] = ()
    response: ClassVar[str] = "reward"

    start: float = 0.2
    asymptote: float = 0.61
    midpoint: float = 2000.0
    steepness: float = 1.9
    noise: float = 0.008
    spread: float = 1.0
    domain_seed: int = 0

    def mean(self, domain: str, axes: Values) -> Mean:
        given = {**self.axes, **axes}
        z = self.spread * domain_normals(self.domain_seed, domain, 3)
        steepness, top = self.steepness * np.exp(0.15 * z[0]), self.asymptote + 0.04 * z[1]
        place = np.log(given["compute"]) - np.log(self.midpoint) - 0.5 * z[2]
        return self.start + (top - self.start) * _sigmoid(steepness * place)
