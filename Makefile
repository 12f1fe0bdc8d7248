# Two commands for a fresh machine with Python 3.11 or newer: `make demo` and `make test`.
# Each sets everything up first, once, in a virtual environment of its own (.venv).

VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.set-up
# The pin goes in first: any looser requirement may fetch another build of several gigabytes.
TORCH ?= torch==2.13.0
PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
PIP := $(BIN)/python -m pip install --disable-pip-version-check

.PHONY: help demo test test-slow check lint types imports cause-pages cli-pages docs set-up clean

help:
	@echo "make demo    a healthy and a faulty training, recorded and judged"
	@echo "make test    the test suite"
	@echo "make test-slow    the long tests: more real trainings, the ladder with six planted faults"
	@echo "make check   lint, formatting, types and the rule of who may import whom"
	@echo "make cause-pages  docs/causes, made anew of the table of causes"
	@echo "make cli-pages  docs/reference, made anew of the commands and of what they print"
	@echo "make docs    the documentation as a site, in site/; fails on a warning"
	@echo "make clean   remove the virtual environment"

demo: $(STAMP)
	$(BIN)/ddparity demo

# Two files at a time; what takes longest starts real ranks, so that more would only wait for each other.
JOBS ?= 2
test: $(STAMP)
	$(BIN)/python -m pytest -m "not slow" -n $(JOBS) --dist loadfile $(TESTS)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow -n $(JOBS) --dist loadfile $(TESTS)

check: lint types imports

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/pyrefly check

imports: $(STAMP)
	$(BIN)/lint-imports

# docs/causes is made of the table that `ddparity explain` reads; a test fails while they differ.
cause-pages: $(STAMP)
	$(BIN)/python -m ddparity.report._cause_pages docs/causes

# docs/reference is made of the commands and types themselves; a test fails while they differ.
cli-pages: $(STAMP)
	$(BIN)/python -m ddparity.cli._reference_page docs/reference/cli.md
	$(BIN)/python -m ddparity.cli._json_page docs/reference/json.md

docs: $(STAMP)
	$(BIN)/zensical build --clean --strict

set-up: $(STAMP)

$(STAMP): pyproject.toml
	@test -n "$(PYTHON)" || { echo "ddparity needs Python 3.11 or newer; name one: make PYTHON=/path/to/python3"; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(PIP) --quiet "$(TORCH)"
	$(PIP) --quiet -e '.[dev]'
	@touch $@

clean:
	rm -rf $(VENV)
