# kfx: every target sets up what it needs in .venv. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help install run test test-all faults smoke lint format docs bench bench-record package newest oldest clean

help:  ## list the targets
	@grep -hE '^[a-z_-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "kfx needs Python 3.11 or later; set PYTHON=python3.x"; exit 2; }
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

install: $(STAMP)  ## set up .venv

run: $(STAMP)  ## tune a kernel on scikit-learn's digits and draw the pictures
	$(BIN)/kfx run +experiment=first_light/digits_cnngp
	@echo "Now call $(BIN)/kfx, or kfx after: . $(BIN)/activate"

PYTEST := $(BIN)/python -m pytest -n 2 --dist worksteal

test: $(STAMP)  ## run the tests but the slow ones, in two processes
	$(PYTEST) -m "not slow"

test-all: $(STAMP)  ## run all tests, as CI does
	$(PYTEST)

faults: $(STAMP)  ## kill runs and sweeps at random moments, many times (half an hour)
	KFX_FAULTS=full $(PYTEST) tests/faults --timeout 1200

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

docs: $(STAMP)  ## build the pages, with the gallery and the API, into docs/_build, and check links and pictures
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html
	$(BIN)/python docs/check_site.py docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(STAMP)  ## measure kfx beside its peers, in one table (some minutes)
	$(BIN)/python scripts/bench.py

bench-record: $(STAMP)  ## the same, appended to docs/performance.csv
	$(BIN)/python scripts/bench.py --record

package: $(STAMP)  ## build the distribution, check it, and run the wheel alone
	rm -rf dist/package && $(BIN)/python -m build --outdir dist/package . > /dev/null
	$(BIN)/twine check --strict dist/package/*
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --target dist/package/alone dist/package/*.whl
	cd dist/package && PYTHONPATH=alone ../../$(BIN)/python -m kfx run figures=false hydra.run.dir=run
	cd dist/package && PYTHONPATH=alone ../../$(BIN)/python -c 'import kfx; assert "alone" in kfx.__file__'

# The wheel alone, without a development tool or an extra; torch is what TORCH says, for instance TORCH=torch==2.13.0
WHEEL_TESTS := hypothesis>=6.100 pytest>=8 pytest-timeout>=2.3 pytest-xdist>=3.5
newest: TORCH ?= torch
first = $(or $(shell for each in $(1); do $$each -c "" 2> /dev/null && echo $$each && break; done),$(PYTHON))
newest: PYTHON := $(call first,python3.14 python3.13 python3.12)
newest:  ## test the wheel with the newest versions of all it needs, on the newest Python at hand
	rm -rf dist/$@ && $(PYTHON) -m venv dist/$@/.venv
	dist/$@/.venv/bin/pip install --quiet --disable-pip-version-check $(TORCH) . $(patsubst %,'%',$(WHEEL_TESTS))
	$(test-wheel)

oldest: TORCH ?=
oldest: PYTHON := $(call first,python3.11)
oldest: OTHERS_WARN := -W ignore::DeprecationWarning -W ignore::FutureWarning  # these versions, of those that they meet
oldest:  ## test the wheel with the lowest versions that pyproject.toml states
	rm -rf dist/$@ && $(PYTHON) -m venv dist/$@/.venv
	dist/$@/.venv/bin/pip install --quiet --disable-pip-version-check uv
	dist/$@/.venv/bin/uv pip install --quiet --python dist/$@/.venv/bin/python --resolution lowest-direct -r pyproject.toml \
	  $(TORCH) $(patsubst %,'%',$(WHEEL_TESTS))
	dist/$@/.venv/bin/pip install --quiet --disable-pip-version-check --no-deps .
	$(test-wheel)

define test-wheel
	dist/$@/.venv/bin/pip list --disable-pip-version-check | grep -E '^(jax|hydra-core|numpy|scipy|torch|zarr) '
	tar c --exclude ./dist --exclude ./kfx --exclude ./.venv --exclude ./docs/_build --exclude ./.git . | tar x -C dist/$@
	cd dist/$@ && .venv/bin/python -m pytest -n 2 --dist worksteal -m "not slow" $(OTHERS_WARN)
endef

clean:  ## remove .venv and caches; runs/ stays
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist docs/_build docs/gallery docs/sg_execution_times.rst
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
