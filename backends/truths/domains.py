"""Constants that differ from domain to domain: drawn from the domain's name, so that any number of names works."""

import hashlib
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Values = Mapping[str, Any]  # role -> float or array
Mean = float | NDArray[np.float64]


def domain_normals(seed: int, domain: str, count: int) -> NDArray[np.float64]:
    """Standard normal draws that belong to a domain, (count,): the first ones do not depend on `count`."""
    digest = hashlib.sha256(f"{seed}\n{domain}".encode()).digest()
    return np.random.default_rng(int.from_bytes(digest[:8], "big")).standard_normal(count)
