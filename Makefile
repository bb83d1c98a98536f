# make install   base, runtime and test tools into .venv (Python 3.11-3.13)
# make demo      the main job, on this machine: profile, search with live trials, deploy, ask it a question
# make test      lint, types, import contracts, tests (under 10 minutes on 2 cores)
# make test-engines  a real vLLM on the CPU, started and searched over, and the parsers of all engines (see docs/engines.md);
#                    ENGINES=FOLDER is where they are or will be installed (4 GB)
# make test-long theory and property tests at full length
#
# PYTHON=python3.12 make install        another interpreter
# TORCH_INDEX_URL=URL make install      take torch from this package index (see README: saves gigabytes without a GPU)

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
SHELL := /bin/bash

.PHONY: install demo test test-long test-engines lint clean

install: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))' || \
	  { echo "HAS needs Python 3.11, 3.12 or 3.13; this is $$($(PYTHON) --version). Mend: PYTHON=python3.11 make install" >&2; exit 3; }
	$(PYTHON) -m venv $(VENV)
	$(if $(TORCH_INDEX_URL),$(BIN)/python -m pip install -q --index-url $(TORCH_INDEX_URL) -c constraints.txt torch)
	$(BIN)/python -m pip install -q -c constraints.txt -e '.[runtime,skopt,dev]'
	@touch $@

demo: install
	@PATH="$(CURDIR)/$(BIN):$$PATH" $(BIN)/python examples/demo.py

lint: install
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache

# What computes runs on every core; what is paced by the clock (worker processes, live trials) runs alone after it.
test: lint
	$(BIN)/python -m pytest -rs -m "not long and not gpu and not live" --numprocesses auto --maxprocesses 4 --dist loadfile
	$(BIN)/python -m pytest -m "live and not long and not gpu"

test-long: install
	$(BIN)/python -m pytest -m "long"

ENGINES ?= .engines

test-engines: install
	scripts/install_engines.sh $(ENGINES)
	HAS_ENGINES=$(abspath $(ENGINES)) $(BIN)/python -m pytest -m engine --durations=0

clean:
	rm -rf $(VENV) dist build .mypy_cache .ruff_cache .import_linter_cache .hypothesis
