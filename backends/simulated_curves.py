"""Curves of simulated runs: a power of the share of the run, and a fall over its last fifth as of a learning rate."""

import numpy as np

from planner.records import CurvePoint

_FIRST = 0.02  # share of a run at its first point
_STEPS = 10_000
_POWER, _HEIGHT, _FALL, _NOISE = 0.4, 0.15, 0.03, 0.002  # the last three relative to the end value
_DIVERGES_AT = 0.5


def shares(num: int) -> np.ndarray:
    """Shares of a whole run at which a point is reported, (num,)."""
    return np.geomspace(_FIRST, 1.0, num)


def curve(
    rng: np.random.Generator,
    final: float | None,
    cost: float | None,
    share: float,
    num: int,
    *,
    falls: bool,
    diverges: bool,
) -> tuple[CurvePoint, ...]:
    """The points up to a share of the run that will end at `final`, or diverge half-way.

    A loss falls to its end value, a reward rises to it.
    """
    grid, noise = shares(num), rng.standard_normal(num)
    end = 1.0 if final is None else final
    gap = _HEIGHT * (grid**-_POWER - 1.0) + _FALL * np.clip((1.0 - grid) / 0.2, 0.0, 1.0)
    value = end + abs(end) * (gap + _NOISE * noise) if falls else end * np.exp(-gap + _NOISE * noise)
    value[-1] = end
    return tuple(
        CurvePoint(
            float(round(_STEPS * s)),
            None if diverges and s >= _DIVERGES_AT else float(v),
            None if cost is None else cost * float(s),
            bool(s == 1.0),
        )
        for s, v in zip(grid, value, strict=True)
        if s <= share * (1.0 + 1e-9)
    )
