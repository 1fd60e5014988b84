# Every target installs what it needs into .venv of this checkout, so that each works as the first command.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
LOCKS := requirements/dev.txt requirements/build.txt
PYTEST := $(BIN)/python -m pytest

.DEFAULT_GOAL := help
.PHONY: help demo up test check lease-model cases chaos-effects bench bench-walk bench-effects clean lock

help:  ## This list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 16

demo: $(INSTALLED)  ## The main job on real data and real servers, with faults; checks itself
	$(BIN)/python -m examples.flights.demo

up: $(INSTALLED)  ## The local stack with the flights example, until Ctrl-C
	$(BIN)/bulklane up

test: check  ## All checks and tests; the slow ones run with the cases
	$(PYTEST) -m "not slow" -n 2 --dist worksteal --ignore tests/acceptance
	$(PYTEST) -m "not slow" tests/acceptance

lease-model: $(INSTALLED)  ## The lease as a state machine against PostgreSQL, 20,000 steps
	$(BIN)/python -m tests.database.model --steps 20000

check: $(INSTALLED)  ## Style, types, and the arrows between the rooms
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

cases: $(INSTALLED)  ## The cases of the public failure reports, a line each, and the slow tests
	$(BIN)/python -m tests.cases

chaos-effects: $(INSTALLED)  ## 5,000 effects on each kind of provider, with faults and killed workers
	$(PYTEST) -m chaos tests/acceptance/effects tests/database/deliveries

bench: bench-walk bench-effects  ## All the benchmarks

bench-walk: $(INSTALLED)  ## The walk beside one UPDATE, bare statements and plain Temporal
	$(BIN)/python -m benchmarks.walk

bench-effects: $(INSTALLED)  ## Provider calls and documents beside senders that record nothing
	$(BIN)/python -m benchmarks.effects

lock: $(INSTALLED)  ## Lock the versions again, with hashes
	$(BIN)/pip install --quiet uv
	$(BIN)/uv pip compile --quiet --generate-hashes --no-header --no-emit-index-url --universal --python-version 3.11 \
	  --extra stack --group dev pyproject.toml -o requirements/dev.txt
	$(BIN)/uv pip compile --quiet --generate-hashes --no-header --no-emit-index-url --universal --python-version 3.11 \
	  pyproject.toml -o requirements/run.txt
	$(BIN)/uv pip compile --quiet --generate-hashes --no-header --no-emit-index-url --universal --python-version 3.11 \
	  requirements/build.in -o requirements/build.txt

clean:  ## Remove what was installed, built and run here
	rm -rf $(VENV) .run dist .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache

$(INSTALLED): $(LOCKS) pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Bulklane needs Python 3.11 or newer; name one: make PYTHON=python3.11 ..."; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) \
	  || { echo "this Python has no venv module; on Debian: apt-get install python3-venv"; exit 1; }
	$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes $(LOCKS:%=-r %)
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@
