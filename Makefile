.DEFAULT_GOAL := help
.PHONY: help setup train test test-slow test-torchtext notebooks bench clean

PYTHON ?= python3
VENV   := .venv
RUN    := $(VENV)/bin/python
# `make train ARGS="model=base seed=2"`
ARGS   ?= model=residual_pe

help: ## this list
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed 's/:[^#]*## /\t/' | expand -t 18

# A stamp file marks a complete environment, which is updated if a prerequisite of the stamp is newer.
$(VENV)/train.stamp: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit("imdbattn needs Python 3.11 or newer: make PYTHON=python3.11") if sys.version_info < (3, 11) else 0'
	test -x $(RUN) || $(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[offline]'
	@touch $@

$(VENV)/test.stamp: $(VENV)/train.stamp
	$(RUN) -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@

setup: $(VENV)/train.stamp ## create .venv with everything that training needs

train: setup ## train residual_pe on real reviews (ARGS="model=base seed=2" trains another model)
	$(RUN) -m imdbattn.train $(ARGS)

test: $(VENV)/test.stamp ## run the tests and the linters
	$(RUN) -m ruff check imdbattn tests benchmarks
	$(RUN) -m ruff format --check imdbattn tests benchmarks
	$(RUN) -m mypy
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -m 'not slow and not torchtext' -n auto --dist worksteal

test-slow: $(VENV)/test.stamp ## run the slow tests
	OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE= $(RUN) -m pytest -m slow -n auto --dist worksteal

test-torchtext: ## check in a separate environment (torch 2.3) that results equal those of torchtext
	test -x $(VENV)-torchtext/bin/python || $(PYTHON) -m venv $(VENV)-torchtext
	$(VENV)-torchtext/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[offline,torchtext]' 'pytest>=8' 'hypothesis>=6.100'
	$(VENV)-torchtext/bin/python -m pytest -m 'torchtext or not slow' tests/data/test_torchtext.py tests/data/test_tokenization.py

notebooks: $(VENV)/test.stamp ## execute docs/notebooks and store their outputs (ten minutes)
	OMP_NUM_THREADS=1 $(RUN) -m tests.notebooks

bench: $(VENV)/test.stamp ## compare speed and memory with the textbook (ten minutes); writes benchmarks/results.*
	$(RUN) -m benchmarks.bench

clean: ## remove environments and caches; runs/ is kept
	rm -rf $(VENV) $(VENV)-torchtext build dist *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
