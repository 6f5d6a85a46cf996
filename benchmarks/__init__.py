"""The benchmark: real recorded experiments bought under a budget, scored on hidden targets."""
