# Everything here works with python3 and make alone: the environment is made on first use.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := $(CURDIR)/.venv
PYTHON := $(VENV)/bin/python
UV_VERSION := 0.13.8
# uv lives beside the environment, not in it, so that a sync cannot remove it.
UV := $(CURDIR)/.tools/uv-$(UV_VERSION)/bin/uv
SYNC := UV_PROJECT_ENVIRONMENT=$(VENV) $(UV) sync --frozen --all-packages
PLUGINS := $(patsubst %/pyproject.toml,%,$(wildcard plugins/*/pyproject.toml))
# Otherwise Spark starts its workers with whatever python3 comes first.
export PYSPARK_PYTHON := $(PYTHON)
PYTEST := $(PYTHON) -m pytest
# Extra arguments for pytest: make test ARGS='-k ledger -x'.
ARGS ?=

.PHONY: help setup lock demo test test-faults test-cluster test-connect test-state test-examples soak check format bench docs clean

help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

setup: $(VENV)/.synced ## Make the environment in .venv from uv.lock.

$(UV):
	@echo "Installing uv $(UV_VERSION) into .tools ..."
	@python3 -m venv --clear $(CURDIR)/.tools/uv-$(UV_VERSION) \
		|| { echo "python3 cannot make virtual environments here: install python3-venv." >&2; exit 1; }
	@$(CURDIR)/.tools/uv-$(UV_VERSION)/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)

$(VENV)/.synced: pyproject.toml uv.lock $(PLUGINS:%=%/pyproject.toml) | $(UV)
	@echo "Installing the locked packages into .venv ..."
	@$(SYNC)
	@touch $@

lock: | $(UV) ## Write uv.lock anew after a change of dependencies.
	@$(UV) lock

demo: setup ## Run the main job over files and show what became of every record.
	@JAVA_HOME="$$(scripts/java-home '$(UV)' '$(VENV)')" $(PYTHON) examples/demo.py

test: setup ## Run every test but those of the other suites, then the tests of each plugin.
	@$(PYTEST) --ignore=tests/faults --ignore=tests/cluster --ignore=tests/connect --ignore=tests/state --ignore=tests/examples -m 'not faults' $(ARGS)
	@$(if $(ARGS),:,for plugin in $(PLUGINS); do echo "== $$plugin"; (cd $$plugin && $(PYTEST)); done)

test-faults: setup ## Run the tests in which something is killed, stopped, full or refused.
	@$(PYTEST) tests/faults $(ARGS)

test-cluster: setup ## Run the tests on a standalone cluster whose parts are killed.
	@$(PYTEST) tests/cluster $(ARGS)

test-connect: setup ## Run the tests on a Spark Connect server.
	@$(PYTEST) tests/connect $(ARGS)

test-state: setup ## Run the tests of stateful stages in real queries.
	@$(PYTEST) tests/state $(ARGS)

test-examples: setup ## Run the examples as a user would, and count what they leave behind.
	@$(PYTEST) tests/examples $(ARGS)

soak: setup ## Run a steady load with faults for ten minutes (ARGS='--minutes 2 --seed 7').
	@$(PYTHON) -m tests.soak $(ARGS)

check: setup ## Run ruff, mypy and import-linter.
	@$(PYTHON) -m ruff check .
	@$(PYTHON) -m ruff format --check .
	@$(PYTHON) -m mypy
	@for plugin in $(PLUGINS); do echo "== $$plugin"; (cd $$plugin && MYPYPATH=src $(PYTHON) -m mypy --config-file $(CURDIR)/pyproject.toml --explicit-package-bases src tests); done
	@$(VENV)/bin/lint-imports

format: setup ## Format the code and apply ruff's safe fixes.
	@$(PYTHON) -m ruff check --fix .
	@$(PYTHON) -m ruff format .

bench: setup ## Measure the costs and print them as ratios.
	@$(PYTHON) -m benchmarks $(ARGS)

docs: setup ## Generate the reference pages from the code.
	@$(PYTHON) docs/generate.py

clean: ## Remove everything that this file has made.
	@rm -rf .venv .tools build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
