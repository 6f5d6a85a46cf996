"""A study of parameters and tokens for benchmarks that time the planner; sections may be added at its end."""

STUDY = """
[study]
name = "timed"

[response]
name = "loss"
lower = 0.0
expect = [1.5, 6.0]

[[axes]]
name = "N"
role = "parameters"
low = 1e7
high = 1e9

[[axes]]
name = "D"
role = "tokens"
low = 2e8
high = 2e10

[cost]
terms = [{ coefficient = 6, powers = { N = 1, D = 1 } }]

[budget]
total = 1e30

[[targets]]
kind = "recipe"
budgets = [1e22]
"""
