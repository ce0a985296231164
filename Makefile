# The same words for a person and for CI. Tool settings are in pyproject.toml.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: setup etcd demo test test-all quick live checks lint types layers unit integration exhaustive torch-matrix bench docs lock clean

setup: $(STAMP)

$(STAMP): pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt -e ".[dev]"
	touch $@

# A real etcd for the tests of the cache's cluster, which skip without one. RUNLEVEL=1: no service is started.
etcd:
	@command -v etcd > /dev/null && exit 0; \
	if [ "$$(id -u)" = 0 ] && command -v apt-get > /dev/null; then \
		{ apt-get update -q && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -q etcd-server; } \
			> /dev/null 2>&1 || true; \
	fi; \
	command -v etcd > /dev/null || echo "no etcd (Debian's etcd-server): the tests that need one are skipped"

# Reads and step are emulated (they sleep), so that the input is the limit on any machine, with or without accelerator.
demo: setup
	@$(BIN)/stoker demo

# What people run, at most 10 minutes on 2 cores.
test: quick
	$(MAKE) --no-print-directory integration

# Everything, at most 45 minutes on 2 cores: what CI runs. Tests of both kinds are handed out together: three processes
# read and import them once, and wait for each other at the end once.
test-all: quick
	$(MAKE) --no-print-directory live

# Cheap checks first; types take one core for a minute, and unit tests both: together they end sooner. The last line is
# pytest's.
quick: setup
	$(MAKE) --no-print-directory -j 2 --output-sync lint layers
	$(MAKE) --no-print-directory -j 2 types unit

checks: setup
	$(MAKE) --no-print-directory -j 2 --output-sync lint types layers

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: setup
	$(BIN)/pyright

layers: setup
	$(BIN)/lint-imports

unit: setup
	$(BIN)/python -m pytest -q -n 2 -m "not integration and not exhaustive"

# Those that fork data workers from their own process are run apart: a fork costs in proportion to the memory of its
# parent. All wait as well as compute, and are three at a time.
integration: setup
	$(call live,integration and forking and not exhaustive,3)
	$(call live,integration and not forking and not exhaustive,3)

# Kinds of tests of which `make test` has one each, over all that they can be about.
exhaustive: setup
	$(call live,exhaustive and forking,3)
	$(call live,exhaustive and not forking,3)

live: setup
	$(call live,(integration or exhaustive) and forking,3)
	$(call live,(integration or exhaustive) and not forking,3)

# Tests of real processes, by mark, so many at a time. Those that fail are run once more, alone, and must pass then: in
# thousands of starts of torchrun and Ray one goes wrong by itself. Both runs print their failures. A first run that
# ended otherwise (1 is "tests failed") is not repeated, and a second one without a test is an error.
live = $(BIN)/python -m pytest -q -n $(2) --dist loadfile -m "$(1)" || { test $$? = 1 && \
	  $(BIN)/python -m pytest -q --last-failed --last-failed-no-failures none -m "$(1)"; }

# What stoker takes from torch, under another torch: its private names, the unit tests, the contract suite. Of most
# versions there are builds for CUDA alone, of 6 GB with their libraries; they run where there is no accelerator too.
TORCH ?= 2.6.0
MATRIX = build/torch-$(TORCH)

torch-matrix:
	test -x $(MATRIX)/bin/python || $(PYTHON) -m venv $(MATRIX)
	grep -vE '^(torch|sympy)==' constraints.txt > $(MATRIX)/constraints.txt
	$(MATRIX)/bin/python -m pip install -q --disable-pip-version-check -c $(MATRIX)/constraints.txt torch==$(TORCH) -e ".[dev]"
	$(MATRIX)/bin/python -m pytest -q -n 2 -m "not integration"
	$(MATRIX)/bin/python -m pytest -q -n 2 --dist loadfile tests/contract tests/run/test_lacking.py

bench: setup
	$(BIN)/python -m benchmarks

# The reference pages that are lists of what the code has; a test compares them with it.
docs: setup
	$(BIN)/python docs/generate.py

# After changing dependencies: resolve afresh in the environment, then pin what was tested.
lock: setup
	$(BIN)/python -m pip freeze --exclude-editable | sed 's/+cpu$$//' | grep -v '^stoker' > constraints.txt.new
	sed -n '/^#/p' constraints.txt | cat - constraints.txt.new > constraints.txt.tmp
	mv constraints.txt.tmp constraints.txt && rm constraints.txt.new

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
