# kfx: every target sets up what it needs in .venv. `make help` lists them.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.DEFAULT_GOAL := help
PLAIN := dist/plain
PLAIN_TESTS := $(patsubst %,tests/test_%.py,reference_grams nngp kernels cnngp_engines objectives precision config)
.PHONY: help install run test test-all faults plain smoke lint format docs bench bench-record clean

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

plain: constraints.txt pyproject.toml  ## install the wheel alone with the newest JAX and Hydra, and test its kernels
	rm -rf $(PLAIN) && mkdir -p $(PLAIN) && cp -r tests $(PLAIN)/tests
	grep -vE '^(jax|jaxlib|ml_dtypes|hydra-core|omegaconf|neural-tangents)==' constraints.txt > $(PLAIN)/constraints.txt
	$(PYTHON) -m venv $(PLAIN)/.venv
	$(PLAIN)/.venv/bin/pip install --quiet --disable-pip-version-check -c $(PLAIN)/constraints.txt \
	  . hypothesis pytest pytest-timeout pytest-xdist
	$(PLAIN)/.venv/bin/pip list --disable-pip-version-check | grep -E '^(jax|hydra-core|omegaconf) '
	! $(PLAIN)/.venv/bin/python -c 'import neural_tangents' 2> /dev/null
	cd $(PLAIN) && .venv/bin/python -m pytest -n 2 -c ../../pyproject.toml --rootdir . $(PLAIN_TESTS)

clean:  ## remove .venv and caches; runs/ stays
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis dist docs/_build docs/gallery docs/sg_execution_times.rst
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
