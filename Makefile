# kfx: every target sets up what it needs in .venv. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install run test faults smoke lint format docs bench clean

help:  ## list the targets
	@grep -hE '^[a-z_]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kfx needs Python 3.11 or later; set PYTHON=python3.x"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP)  ## set up .venv

run: $(STAMP)  ## tune a kernel on scikit-learn's digits and draw the pictures
	$(BIN)/kfx run +experiment=first_light/digits_cnngp
	@echo "Now call $(BIN)/kfx, or kfx after: . $(BIN)/activate"

test: $(STAMP)  ## run the tests, in two processes
	$(BIN)/python -m pytest -n 2 --dist worksteal

faults: $(STAMP)  ## kill runs and sweeps at random moments, many times (half an hour)
	KFX_FAULTS=full $(BIN)/python -m pytest tests/faults -n 2 --dist worksteal --timeout 1200

smoke: $(STAMP)  ## run every experiment under its list of overrides, and every legal pair of options
	$(BIN)/python scripts/smoke.py

lint: $(STAMP)  ## check style, formatting, types and that imports run downhill
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(STAMP)  ## mend style and formatting
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(STAMP)  ## build the pages, with the gallery and the API, into docs/_build
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(STAMP)  ## measure the time of one iteration
	$(BIN)/python scripts/bench_rho.py
	$(BIN)/python scripts/bench_parametric.py
	$(BIN)/python scripts/bench_cnngp.py
	$(BIN)/python scripts/bench_flows.py
	$(BIN)/python scripts/bench_neighbour.py

clean:  ## remove .venv and caches; runs/ stays
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist docs/_build docs/gallery docs/sg_execution_times.rst
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
