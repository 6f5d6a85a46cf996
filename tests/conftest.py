"""Settings of the whole suite: set before anything imports JAX."""

import os

# Two workers on two cores: without this each would start a pool of its own for every core.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
