# Two commands for a fresh machine with Python 3.11+, pip and make:
#   make demo    three architectures meet: leaderboard and report in about a minute after the installation
#   make test    lint, types, import boundaries and all tests

PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test lint types imports tests data-tests gpu-tests slow-tests browser format clean

demo: .venv/.installed
	$(BIN)/nnarena run quickstart --out runs/quickstart

test: lint types imports tests

lint: .venv/.installed-dev
	$(BIN)/ruff check src tests
	$(BIN)/ruff format --check src tests

types: .venv/.installed-dev
	$(BIN)/pyright --pythonpath $(BIN)/python

imports: .venv/.installed-dev
	$(BIN)/lint-imports

tests: .venv/.installed-dev browser
	$(BIN)/pytest -n auto

# What needs real data files (NNARENA_DATA), a GPU, or more than a minute.
data-tests: .venv/.installed-dev
	$(BIN)/pytest -m data

gpu-tests: .venv/.installed-dev
	$(BIN)/pytest -m gpu

slow-tests: .venv/.installed-dev
	$(BIN)/pytest -m slow

format: .venv/.installed-dev
	$(BIN)/ruff check --fix src tests
	$(BIN)/ruff format src tests

# The report is looked at in a real browser: the system's Chromium, installed where it is missing and we may.
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || \
	  if command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ]; then \
	    apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; \
	  else echo "Please install Chromium: the tests look at the report in it."; fi

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "NNArena needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	$(PYTHON) -m venv .venv

.venv/.installed: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check -e .
	@touch $@

.venv/.installed-dev: pyproject.toml | .venv/bin/python
	$(BIN)/python -m pip install --disable-pip-version-check -e ".[dev]"
	@touch $@ .venv/.installed

clean:
	rm -rf .venv runs dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
