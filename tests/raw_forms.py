"""The published forms in raw units, written for the tests alone: functions of raw parameters and axis values.

`p.a` and the like are raw parameters, `np` arrays of one number; axis values are arrays (n,).
"""

import numpy as np
from numpy import exp, log, log1p, maximum, minimum, sqrt, tanh


def softplus(z):
    return log1p(exp(z))


# --- parallel: N parameters, S streams -------------------------------------------------------------------------------

PARALLEL = [
    lambda p, N, S: p.c + p.a * N**-p.alpha + p.b * S**-p.beta + p.d * N**-p.alpha * S**-p.beta,
    lambda p, N, S: p.c + p.a * N**-p.alpha + p.b * S**-p.beta,
    lambda p, N, S: p.c + p.a * N**-p.alpha + p.b / (1 + S),
    lambda p, N, S: p.c + p.a * N**-p.alpha + p.b / sqrt(S),
    lambda p, N, S: p.c + (p.a ** (1 / p.alpha) / (N * (1 + p.k * log(S)))) ** p.alpha,
    lambda p, N, S: p.c - p.size_0 - p.streams_0 + p.a * (N**-p.alpha + S**-p.beta),
    lambda p, N, S: p.c + p.a * N**-p.alpha / (1 + p.k * log(S)),
    lambda p, N, S: (p.c + p.a * N**-p.alpha) / (1 + p.k * log(S)),
    lambda p, N, S: p.a * N**-p.alpha * S**-p.beta,
    lambda p, N, S: (p.c + p.a * N**-p.alpha) * S**-p.beta,
]

# --- sparsity: P total over active parameters, N active ones ---------------------------------------------------------

SPARSITY = [
    lambda p, P, N: p.c + p.a * P**-p.alpha * N**-p.beta * exp(p.gamma * log(P) * log(N)),
    lambda p, P, N: p.c + p.a * P**-p.alpha * N**-p.beta,
    lambda p, P, N: p.c + p.a * P**-p.alpha + p.b * N**-p.beta * exp(p.gamma * log(P) * log(N)),
    lambda p, P, N: p.c + p.a * P**-p.alpha + p.b * N**-p.beta,
]

# --- moe: E experts, N dense parameters ------------------------------------------------------------------------------

MOE = [
    lambda p, E, N: p.c + p.a * N**-p.alpha * E**-p.beta,
    lambda p, E, N: p.c + p.a * (N**p.alpha * E**p.beta) ** -p.gamma,
    lambda p, E, N: p.c + p.a * N**-p.alpha / (1 + p.b * E**p.beta) + p.d * N ** (-0.6 * p.alpha),
    lambda p, E, N: p.c + p.a * N**-p.alpha * (1 + p.b * E) ** -p.gamma + p.d * (log(N) - 0.4 * log(1 + E)),
    lambda p, E, N: p.c + p.d * log(E) + exp(log(p.a) + p.k1 * log(E) + p.k2 * log(N) + p.k3 * log(E) * log(N)),
    lambda p, E, N: p.c + p.a * N**-p.alpha * (1 + p.b * E**-p.beta) + p.d / (E * N**0.05),
    lambda p, E, N: p.c + p.a * E**p.beta * N**-p.alpha + p.b * N**-p.gamma,
    lambda p, E, N: p.c + p.a * N**-p.alpha * E**-p.beta,
    lambda p, E, N: p.c + p.a * (N * E**p.g) ** -p.alpha,
    lambda p, E, N: p.c + p.a * (N / 1e9) ** -p.alpha * ((1 + p.b * E**p.gamma) / (1 + p.b)) ** -p.beta,
]

# --- data_constrained: U unique tokens, N parameters, D tokens seen --------------------------------------------------


def _repeated(p, U, N, D):
    tau_d, tau_n = p.tau_d, p.tau_n
    tokens = U * (1 + tau_d * (1 - exp(-(D / U - 1) / tau_d)))
    used = minimum(p.rho * U, N)
    size = used * (1 + tau_n * (1 - exp(-maximum(N / used - 1, 0) / tau_n)))
    return p.c + p.a * size**-p.alpha + p.b * tokens**-p.alpha


def _harmonic(p, U, N, D):
    worth = 1 / (1 / D + 1 / (p.s * U * N**p.drift))
    return p.c + p.a * N**-p.alpha + p.b * worth**-p.beta


def _faded(p, U, N, D):
    worth = D / (1 + p.k * maximum(D / U - 1, 0) ** p.q * N**p.drift)
    return p.c + p.a * N**-p.alpha + p.b * worth**-p.beta


def _limited(p, U, N, D):
    order = p.beta * p.q
    return p.c + p.a * N**-p.alpha + p.b * (D**-order + (p.k * U) ** -order) ** (1 / p.q)


DATA_CONSTRAINED = [
    lambda p, U, N, D: p.a * N**-p.alpha + p.b * D**-p.beta + p.c * U**p.gamma * N**p.delta,
    lambda p, U, N, D: p.c + p.a * U**p.p + p.b * N**p.q + p.d * D**p.r,
    _repeated,
    _harmonic,
    lambda p, U, N, D: p.c + p.a * N**-p.alpha + p.b * (U**p.gamma * D ** (1 - p.gamma)) ** -p.beta,
    _faded,
    lambda p, U, N, D: p.c + p.a * (N * U) ** p.p + p.b * D**p.q + p.d * N**p.r,
    lambda p, U, N, D: p.c + p.a * D**-p.alpha + p.b * N**-p.beta + p.d * log(1 + U / D) ** p.gamma,
    lambda p, U, N, D: p.c + p.a * N**-p.alpha + p.b * D**-p.beta * (1 + p.k * U**-p.gamma),
    _limited,
]

# --- vocab: P parameters outside the vocabulary, V vocabulary, C characters ------------------------------------------


def _mean_of_two(p, P, V, C):
    mean = ((P ** (-p.alpha * p.order) + C ** (-p.beta * p.order)) / 2) ** (1 / p.order)
    return p.c + p.a * mean * (1 + p.k * (log(V) - p.v0) ** 2)


def _norm_of_two(p, P, V, C):
    b = p.a * exp(p.shift)
    return p.c + ((p.a * P**-p.alpha) ** p.q + (b * (C * V**p.phi) ** -p.beta) ** p.q) ** (1 / p.q)


def _tilted(p, P, V, C):
    a, gamma = p.scale * p.one, p.tilt / p.one
    return p.c + a * P**-p.alpha * C**-p.beta * (1 + gamma * log(V)) + p.d * V**p.eps


def _exp_polynomial(p, P, V, C):
    lP, lV, lC = log(P), log(V), log(C)
    return p.c + exp(log(p.a) + p.k1 * lP + p.k2 * lV + p.k3 * lV**2 + p.k4 * lC + p.k5 * lV * lC)


VOCAB = [
    lambda p, P, V, C: p.c + p.a * V**p.b * P**p.e * C**p.g,
    _mean_of_two,
    _norm_of_two,
    lambda p, P, V, C: p.c + p.a * maximum(P**p.u, p.lam * C**p.v) ** -p.d * V**-p.g,
    lambda p, P, V, C: p.c + p.a * P**p.u * V**p.v * C**p.w + p.b * P**p.z,
    lambda p, P, V, C: p.c + p.a * (P * V**p.k) ** -p.alpha + p.b * (C * V**p.m) ** -p.beta,
    lambda p, P, V, C: p.c + p.a * P**-p.alpha * C**-p.beta + p.b * V**p.gamma * C**-p.delta,
    lambda p, P, V, C: p.c + p.d * log(V) + V**p.beta * (p.a * P**-p.alpha + p.b * C**-p.gamma),
    _tilted,
    _exp_polynomial,
]

# --- domain_mixture: shares r (5, n), output i -----------------------------------------------------------------------


def _over(p, name, r, domains):
    return sum(getattr(p, f"{name}{j + 1}") * r[j] for j in domains)


def _powers(p, r):
    return [r[k] ** getattr(p, f"gamma{k + 1}") for k in range(5)]


def domain_mixture(number, i):
    """Form `number` of output i (from 0) as a function of raw parameters and the five shares."""
    rest = [j for j in range(5) if j != i]
    safe = lambda share: log(maximum(share, 1e-12))  # noqa: E731
    forms = [
        lambda p, *r: p.c + p.b * safe(r[i]) + _over(p, "c", r, rest),
        lambda p, *r: p.a * (r[i] + p.eps) ** -p.alpha * exp(_over(p, "w", r, rest)),
        lambda p, *r: p.c + p.b * r[i] ** p.gamma + _over(p, "w", r, rest),
        lambda p, *r: exp(log(p.a) + _over(p, "w", _powers(p, r), range(5))),
        lambda p, *r: p.c + _over(p, "w", _powers(p, r), range(5)),
        lambda p, *r: p.c + p.b * (r[i] + _over(p, "t", r, rest)) ** -p.alpha,
        lambda p, *r: (
            p.c + p.b * r[i] + p.c_own * safe(r[i]) + _over(p, "d", r, rest) + p.e * sum(safe(r[j]) for j in rest)
        ),
        lambda p, *r: p.c - p.b * r[i] ** p.gamma,
        lambda p, *r: p.c + p.b * safe(r[i]) + p.c_own * safe(r[i]) ** 2,
        lambda p, *r: p.c + p.b / (r[i] + p.eps),
    ]
    return forms[number]


# --- lr_bsz: learning rate, B batch size, D tokens, N parameters -----------------------------------------------------


def _polynomial(linear, square, u, v, d, n):
    """Linear and square part of a quadratic, term by term."""
    cross = lambda i, j: square[i, j] + square[j, i]  # noqa: E731
    first = linear[0] * u + linear[1] * v + linear[2] * d + linear[3] * n
    squares = square[0, 0] * u**2 + square[1, 1] * v**2 + square[2, 2] * d**2 + square[3, 3] * n**2
    with_u = cross(0, 1) * u * v + cross(0, 2) * u * d + cross(0, 3) * u * n
    return first + squares + with_u + cross(1, 2) * v * d + cross(1, 3) * v * n + cross(2, 3) * d * n


def _exp_q(p, lr, B, D, N):
    return exp(log(p.a) + _polynomial(p.linear, p.square, log(lr), log(B), log(D), log(N)))


def _correlated(p, lr, B, D, N):
    u, v, s, n = log(lr), log(B), log(D), log(N)
    base = p.c + p.a * exp(-p.alpha * n) + p.b * exp(-p.beta * s)
    base = base + p.d * exp(-p.gamma * (s - p.k * n)) + p.e * exp(-p.delta * v)
    du = u - (p.lr_0 + p.lr_n * n + p.lr_d * s + p.lr_v * v)
    dv = v - (p.b_0 + p.b_n * n + p.b_d * s)
    cL = softplus(p.bend_L_0 + p.bend_L_n * n + p.bend_L_d * s + p.bend_L_v * v)
    cB = softplus(p.bend_B_0 + p.bend_B_n * n + p.bend_B_d * s + p.bend_B_v * v)
    return base + cL * du**2 + cB * dv**2 + 2 * p.rho * sqrt(cL * cB) * du * dv


def _drifting(p, lr, B, D, N):
    u, v, s, n = log(lr), log(B), log(D), log(N)
    best_u = p.lr_0 + p.lr_n * n + p.lr_d * s + p.lr_nd * n * s + p.lr_v * v
    best_v = p.b_0 + p.b_n * n + p.b_d * s + p.b_nd * n * s
    C = exp(p.bend_C_0 + p.bend_C_n * n + p.bend_C_d * s + p.bend_C_v * v)
    G = exp(p.bend_G_0 + p.bend_G_n * n + p.bend_G_d * s)
    base = p.c + p.a * N**-p.alpha + p.b * D**-p.beta + p.f * N**-p.w * D**-p.z
    return base + C * (u - best_u) ** 2 + G * (v - best_v) ** 2


def _exp_q_further(p, lr, B, D, N):
    q = _polynomial(p.linear, p.square, log(lr), log(B), log(D), log(N))
    return exp(log(p.a) + q + p.k * log(D / N) + p.k1 / B + p.k2 / B**2 + p.k3 / D + p.k4 / N)


def _bowl(p, lr, B, D, N):
    u, v, s, n = log(lr), log(B), log(D), log(N)
    base = p.c + p.a * exp(-p.alpha * n) + p.b * exp(-p.beta * s) + p.d * exp(-p.gamma * v)
    base = base + p.e * exp(-p.delta * (s - n) ** 2) + p.f * exp(-p.zeta * (s - v))
    A = exp(p.bend_A_0 + p.bend_A_v * v + p.bend_A_n * n + p.bend_A_d * s)
    return base + A * (u - (p.lr_0 + p.lr_v * v + p.lr_n * n + p.lr_d * s)) ** 2


def _floor_and_exp(p, lr, B, D, N):
    assert p.square[2, 2] == 0 and p.square[3, 3] == 0
    return p.c + _exp_q(p, lr, B, D, N)


def _two_exponentials(p, lr, B, D, N):
    logs = log(lr), log(B), log(D), log(N)
    first = exp(log(p.a) + _polynomial(p.linear_1, p.square_1, *logs))
    return p.c + first + exp(log(p.b) + _polynomial(p.linear_2, p.square_2, *logs))


def _skewed(p, lr, B, D, N):
    u, v, s, n = log(lr), log(B), log(D), log(N)
    base = p.c + p.a * exp(-p.alpha * n) + p.b * exp(-p.beta * s) + p.d * exp(-p.gamma * (s - n))
    x = u - (p.lr_0 + p.lr_v * v + p.lr_n * n + p.lr_d * s)
    y = u - v / 2 - (p.w_0 + p.w_n * n + p.w_d * s)
    penalties = p.k * x**2 * (1 + p.kappa * tanh(x)) + p.l * y**2 * (1 + p.mu * tanh(y))
    return base + penalties + p.m * (s - n - p.balance) ** 2


def _further_linear(p, lr, B, D, N):
    q = _polynomial(p.linear, p.square, log(lr), log(B), log(D), log(N))
    return p.c + q + p.a / sqrt(D) + p.b / sqrt(N) + p.d / B


LR_BSZ = [
    _exp_q,
    _correlated,
    _drifting,
    _exp_q_further,
    _bowl,
    _floor_and_exp,
    _two_exponentials,
    _skewed,
    lambda p, *x: p.c + _polynomial(p.linear, p.square, *map(np.log10, x)),
    _further_linear,
]

# --- farseer: N parameters, D tokens ---------------------------------------------------------------------------------


def _farseer(p, N, D):
    S, Q = log(p.c), log(p.data)
    return exp(p.s * N**p.q + S) + exp(p.B * N**p.b + Q) * D ** -exp(p.A * N**p.a + p.E)


FARSEER = [_farseer]
