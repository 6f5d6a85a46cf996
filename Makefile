# `make demo` and `make test` set everything up on a machine with Python >= 3.11 and make.

# A name on the path may be a stub that cannot run, or lack what a virtual environment needs: try each.
PYTHON ?= $(shell for candidate in python3.13 python3.12 python3.11 python3 python; do \
	if $$candidate -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; \
	then echo $$candidate; break; fi; done)
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
WORKERS ?= 2

.PHONY: help venv demo test test-all lint clean

help:
	@echo "make demo      a whole study on a simulated truth, ending with a recipe (under two minutes)"
	@echo "make test      lint, types and the quick tests"
	@echo "make test-all  the same with the slow tests"
	@echo "make lint      ruff and mypy"
	@echo "make venv      only set up $(VENV)"
	@echo "make clean     remove $(VENV) and all caches"

# An environment that was moved, or whose Python was removed, is made anew.
venv:
	@if [ -e $(STAMP) ] && ! $(BIN)/python -c 'import numpy, pydantic, planner' >/dev/null 2>&1; then \
		echo "$(VENV) does not work any more and is made anew"; rm -rf $(VENV); fi
	@$(MAKE) --no-print-directory $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@if [ -z "$(PYTHON)" ]; then \
		echo "no Python >= 3.11 with venv was found; name one: make $(firstword $(MAKECMDGOALS)) PYTHON=/path/to/python3" >&2; \
		exit 1; fi
	rm -rf $(VENV)
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev,report,postgres,ray]'
	@touch $(STAMP)

demo: venv
	$(BIN)/planner demo

lint: venv
	$(BIN)/ruff check .
	$(BIN)/mypy

test: lint
	$(BIN)/python -m pytest -n $(WORKERS) -m "not slow"

test-all: lint
	$(BIN)/python -m pytest -n $(WORKERS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis .jax_cache *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
