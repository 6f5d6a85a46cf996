"""Which experiment next: targets, gains, plans for the whole remaining budget, policies."""
