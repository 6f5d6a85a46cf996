"""Truths of pre-training: the response is a loss, in nats per token."""

import dataclasses
from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from backends.truths.domains import Mean, Values, domain_normals


@dataclasses.dataclass(frozen=True, kw_only=True)
class Chinchilla:
    """L = E + A N^-alpha + B D^-beta, nats per token (Hoffmann et al. 2022, arXiv:2203.15556)."""

    axes: ClassVar[Mapping[str, float]] = {"parameters": 1e9, "tokens": 2e10}
    drawn: ClassVar[tuple[str, ...]] = ()
    response: ClassVar[str] = "loss"

    floor: float = 1.69
    parameters_amplitude: float = 406.4
    parameters_exponent: float = 0.34
    tokens_amplitude: float = 410.7
    tokens_exponent: float = 0.28
    noise: float = 0.01
    spread: float = 1.0
    domain_seed: int = 0

    def mean(self, domain: str, axes: Values) -> Mean:
        given = {**self.axes, **axes}
        z = self.spread * domain_normals(self.domain_seed, domain, 5)
        loss = self.floor * np.exp(0.08 * z[0])
        terms = (
            ("parameters", self.parameters_amplitude, self.parameters_exponent, z[1], z[2]),
            ("tokens", self.tokens_amplitude, self.tokens_exponent, z[3], z[4]),
        )
        for name, amplitude, exponent, z_amplitude, z_exponent in terms:
            # A domain varies the term where pilot runs are, not the amplitude at one parameter: those two are tied.
            centre = self.axes[name]
            at_centre = amplitude * centre**-exponent * np.exp(0.15 * z_amplitude)
            loss = loss + at_centre * (np.asarray(given[name]) / centre) ** (-exponent * np.exp(0.1 * z_exponent))
        return loss


@dataclasses.dataclass(frozen=True, kw_only=True)
class RepeatedData:
    """Chinchilla with effective tokens: repetition is worth less and less (Muennighoff et al. 2023, arXiv:2305.16264).

    D' = U + U R* (1 - exp(-(D/U - 1) / R*)), and the same for parameters beyond what the unique tokens call for.
    """

    axes: ClassVar[Mapping[str, float]] = {"parameters": 1e9, "tokens": 2e10, "unique_tokens": 2e10}
    drawn: ClassVar[tuple[str, ...]] = ()
    response: ClassVar[str] = "loss"

    floor: float = 1.87
    parameters_amplitude: float = 521.0
    tokens_amplitude: float = 1488.0
    exponent: float = 0.353
    tokens_half_life: float = 15.39
    parameters_half_life: float = 5.31
    noise: float = 0.01
    spread: float = 1.0
    domain_seed: int = 0

    def mean(self, domain: str, axes: Values) -> Mean:
        given = {**self.axes, **axes}
        z = self.spread * domain_normals(self.domain_seed, domain, 3)
        tokens = np.asarray(given["tokens"], dtype=float)
        unique = np.minimum(given["unique_tokens"], tokens)
        # With equal exponents the best model for U tokens has U (A/B)^(1/alpha) parameters.
        fitting = unique * (self.parameters_amplitude / self.tokens_amplitude) ** (1.0 / self.exponent)
        parameters = np.asarray(given["parameters"], dtype=float)
        useful_parameters = _effective(parameters, np.minimum(fitting, parameters), self.parameters_half_life)
        useful_tokens = _effective(tokens, unique, self.tokens_half_life * np.exp(0.2 * z[0]))
        return (
            self.floor * np.exp(0.08 * z[1])
            + self.parameters_amplitude * useful_parameters**-self.exponent
            + self.tokens_amplitude * np.exp(0.15 * z[2]) * useful_tokens**-self.exponent
        )


def _effective(total: Any, unique: Any, half_life: Any) -> Any:
    return unique * (1.0 - half_life * np.expm1(-(total / unique - 1.0) / half_life))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Experts:
    """log10 L = a log10 N + b log10 E' + c log10 N log10 E' + d, E' a saturating number of experts.

    1/E' = 1/(E - 1 + 1/(1/E_start - 1/E_max)) + 1/E_max (Clark et al. 2022, arXiv:2202.01169).
    """

    axes: ClassVar[Mapping[str, float]] = {"parameters": 1e8, "experts": 8.0}
    drawn: ClassVar[tuple[str, ...]] = ()
    response: ClassVar[str] = "loss"

    parameters_slope: float = -0.082
    experts_slope: float = -0.108
    interaction: float = 0.009
    intercept: float = 1.104
    start: float = 1.847
    saturation: float = 314.478
    noise: float = 0.01
    spread: float = 1.0
    domain_seed: int = 0

    def mean(self, domain: str, axes: Values) -> Mean:
        given = {**self.axes, **axes}
        z = self.spread * domain_normals(self.domain_seed, domain, 2)
        shift = 1.0 / (1.0 / self.start - 1.0 / self.saturation)
        useful = 1.0 / (1.0 / (np.asarray(given["experts"]) - 1.0 + shift) + 1.0 / self.saturation)
        log_n, log_e = np.log10(given["parameters"]), np.log10(useful)
        experts_slope = self.experts_slope * np.exp(0.1 * z[1])
        exponent = self.parameters_slope * log_n + experts_slope * log_e + self.interaction * log_n * log_e
        return 10.0 ** (exponent + self.intercept + 0.02 * z[0])


@dataclasses.dataclass(frozen=True, kw_only=True)
class Valley:
    """Chinchilla plus a valley in log learning rate and log batch size whose floor moves with N and D.

    The optimum is that of Li et al. 2025 (Step Law, arXiv:2503.04715): lr = 1.8 N^-0.713 D^0.307, tokens per batch =
    0.58 D^0.571.
    """

    axes: ClassVar[Mapping[str, float]] = {
        "parameters": 1e9,
        "tokens": 2e10,
        "learning_rate": 1.02e-3,
        "batch_size": 4.4e5,
    }
    drawn: ClassVar[tuple[str, ...]] = ()
    response: ClassVar[str] = "loss"

    learning_rate_curvature: float = 0.14
    batch_size_curvature: float = 0.16
    noise: float = 0.01
    spread: float = 1.0
    domain_seed: int = 0

    def mean(self, domain: str, axes: Values) -> Mean:
        given = {**self.axes, **axes}
        z = self.spread * domain_normals(self.domain_seed, domain, 7)[5:]
        n, d = np.asarray(given["parameters"]), np.asarray(given["tokens"])
        best = Chinchilla(spread=self.spread, domain_seed=self.domain_seed).mean(domain, {"parameters": n, "tokens": d})
        off_rate = np.log(given["learning_rate"]) - np.log(1.8 * n**-0.713 * d**0.307) - 0.3 * z[0]
        off_batch = np.log(given["batch_size"]) - np.log(0.58 * d**0.571) - 0.3 * z[1]
        return best + self.learning_rate_curvature * off_rate**2 + self.batch_size_curvature * off_batch**2


@dataclasses.dataclass(frozen=True, kw_only=True)
class BrokenPower:
    """Floor plus a power of N plus a power of D with one smooth break (Caballero et al. 2022, arXiv:2210.14891)."""

    axes: ClassVar[Mapping[str, float]] = {"parameters": 1e9, "tokens": 2e10}
    drawn: ClassVar[tuple[str, ...]] = ()
    response: ClassVar[str] = "loss"

    floor: float = 1.5
    parameters_size: float = 0.35  # of the term at the stand-in value
    parameters_exponent: float = 0.34
    tokens_size: float = 0.6  # of the term without its break, at the stand-in value
    tokens_exponent: float = 0.1
    break_at: float = 5e9
    break_exponent: float = 0.35  # added to the exponent beyond the break
    break_sharpness: float = 0.2
    noise: float = 0.01
    spread: float = 1.0
    domain_seed: int = 0

    def mean(self, domain: str, axes: Values) -> Mean:
        given = {**self.axes, **axes}
        z = self.spread * domain_normals(self.domain_seed, domain, 3)
        n, d = (np.asarray(given[name]) / self.axes[name] for name in ("parameters", "tokens"))
        place = self.break_at * np.exp(0.5 * z[1]) / self.axes["tokens"]
        bend = (1.0 + (d / place) ** (1.0 / self.break_sharpness)) ** (-self.break_exponent * self.break_sharpness)
        return (
            self.floor * np.exp(0.08 * z[0])
            + self.parameters_size * np.exp(0.15 * z[2]) * n**-self.parameters_exponent
            + self.tokens_size * d**-self.tokens_exponent * bend
        )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Outside:
    """Chinchilla with what no simple law has: a double-descent bump where N meets D, and a log-periodic wiggle in D."""

    axes: ClassVar[Mapping[str, float]] = {"parameters": 1e9, "tokens": 2e10}
    drawn: ClassVar[tuple[str, ...]] = ()
    response: ClassVar[str] = "loss"

    bump: float = 0.12
    bump_ratio: float = 0.5  # tokens per parameter at the bump
    bump_width: float = 0.8  # nats
    wiggle: float = 0.03
    wiggle_period: float = 1.2  # decades
    noise: float = 0.01
    spread: float = 1.0
    domain_seed: int = 0

    def mean(self, domain: str, axes: Values) -> Mean:
        given = {**self.axes, **axes}
        n, d = np.asarray(given["parameters"]), np.asarray(given["tokens"])
        smooth = Chinchilla(spread=self.spread, domain_seed=self.domain_seed).mean(
            domain, {"parameters": n, "tokens": d}
        )
        bump = self.bump * np.exp(-0.5 * (np.log(d / (self.bump_ratio * n)) / self.bump_width) ** 2)
        phase = self.spread * domain_normals(self.domain_seed, domain, 6)[5]
        return smooth + bump + self.wiggle * np.sin(2.0 * np.pi * np.log10(d) / self.wiggle_period + phase)


@dataclasses.dataclass(frozen=True, kw_only=True)
class HiddenAxis:
    """Chinchilla with a valley in an axis, `depth`, that most studies do not record and every run has."""

    axes: ClassVar[Mapping[str, float]] = {"parameters": 1e9, "tokens": 2e10, "depth": 24.0}
    drawn: ClassVar[tuple[str, ...]] = ("depth",)
    response: ClassVar[str] = "loss"

    curvature: float = 0.15
    noise: float = 0.01
    spread: float = 1.0
    domain_seed: int = 0

    def mean(self, domain: str, axes: Values) -> Mean:
        given = {**self.axes, **axes}
        n, d = np.asarray(given["parameters"]), np.asarray(given["tokens"])
        best = Chinchilla(spread=self.spread, domain_seed=self.domain_seed).mean(domain, {"parameters": n, "tokens": d})
        return best + self.curvature * np.log(np.asarray(given["depth"]) / self.axes["depth"]) ** 2
