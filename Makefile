# Every target makes its own virtual environment if there is none; all it needs is
# python3 >= 3.11 and make.  `make demo` and `make test` are the two to know.
PYTHON ?= python3
VENV ?= .venv
# Compilers for machines that are not here, 1.2 GB: not for every environment.
COMPILERS ?= .venv-compiled
JOBS ?= 2
ARGS ?=

BIN := $(VENV)/bin
RUN := $(BIN)/python
# Python compiles what is imported when it is imported first.
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check --no-compile
# Torch is a peer to test and to measure against, never a dependency.
TORCH := torch==2.13.0

.PHONY: help demo docs test test-quick test-slow test-compiled lint bench bench-full
.PHONY: latency compiled parallel notebooks clean

help:
	@echo "make demo        train a character language model (about three minutes)"
	@echo "make test        lint and the quick tests"
	@echo "make test-quick  the quick tests alone"
	@echo "make test-slow   the tests marked slow"
	@echo "make bench       four shapes against lax.scan; ARGS chooses others"
	@echo "make bench-full  all benchmarks against lax.scan and other libraries"
	@echo "make latency     what an answer costs where inputs come one by one"
	@echo "make compiled    what a step costs on an H100 and a TPU v5e, by their compilers"
	@echo "make parallel    affine loops in parallel over time: compiled for both, and timed here"
	@echo "make notebooks   execute the notebooks whose code changed, and keep their outputs"
	@echo "make docs        the site, into build/docs/html"
	@echo "make lint        ruff and pyright"

demo: $(VENV)/.demo
	@$(RUN) -m scanrnn train $(ARGS)

test: lint test-quick

test-quick: $(VENV)/.test
	$(RUN) -m pytest -n $(JOBS) --dist worksteal -p no:benchmark -m "not slow" -q $(ARGS)

test-slow: $(VENV)/.test test-compiled
	$(RUN) -m pytest -n $(JOBS) --dist worksteal -p no:benchmark -m slow -q $(ARGS)

# The tests that compile for an H100 and a TPU v5e: everywhere else they are skipped.
test-compiled: $(COMPILERS)/.compiled
	$(COMPILERS)/bin/python -m pytest -n $(JOBS) --dist worksteal -p no:benchmark -m slow -q \
	  tests/test_compiled.py

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(RUN)

bench: $(VENV)/.bench
	$(RUN) -m benchmarks $(or $(ARGS),-m quick)

bench-full: $(VENV)/.bench
	$(RUN) -m benchmarks

latency: $(VENV)/.bench
	$(RUN) -m benchmarks.latency $(ARGS)

compiled: $(COMPILERS)/.compiled
	$(COMPILERS)/bin/python -m benchmarks.compiled $(ARGS)
	$(COMPILERS)/bin/python -m benchmarks.compiled.kernels
	$(COMPILERS)/bin/python -m benchmarks.compiled.gpu_kernels
	$(COMPILERS)/bin/python -m benchmarks.gemms.costs
	$(COMPILERS)/bin/python -m benchmarks.gemms.gnmt

parallel: $(COMPILERS)/.compiled $(VENV)/.bench
	$(COMPILERS)/bin/python -m benchmarks.parallel compiled --machine h100 $(ARGS)
	$(COMPILERS)/bin/python -m benchmarks.parallel compiled --machine v5e $(ARGS)
	$(RUN) -m benchmarks.parallel timed $(ARGS)

docs: $(VENV)/.docs
	$(RUN) -m sphinx -W --keep-going -q -c docs -d build/docs/trees . build/docs/html
	@echo "the site is build/docs/html/index.html"

notebooks: $(VENV)/.test
	$(RUN) notebooks/execute.py $(ARGS)

clean:
	rm -rf $(VENV) $(COMPILERS) build dist docs/cells/images .pytest_cache .ruff_cache .hypothesis .benchmarks

# Each stamp is redone when pyproject.toml changes.  A new pip is needed for
# dependency groups.
$(VENV)/.base: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and \
	"scanrnn needs Python 3.11 or newer, and $(PYTHON) is " + sys.version.split()[0] \
	+ "; try make PYTHON=python3.12")'
	@test -x $(RUN) || { echo "making $(VENV)"; $(PYTHON) -m venv $(VENV); }
	@$(PIP) --upgrade "pip>=25.1"
	@touch $@

$(VENV)/.demo: $(VENV)/.base
	@echo "installing scanrnn into $(VENV)"
	@$(PIP) --editable ".[demo]"
	@touch $@

$(VENV)/.test: $(VENV)/.base
	@echo "installing scanrnn and its tests into $(VENV)"
	@$(PIP) --editable ".[demo,docs,notebooks]" --group dev
	@$(torch)
	@touch $@

$(VENV)/.docs: $(VENV)/.base
	@echo "installing scanrnn and what builds its site into $(VENV)"
	@$(PIP) --editable ".[docs]"
	@touch $@

$(VENV)/.bench: $(VENV)/.base
	@echo "installing scanrnn and its peers into $(VENV)"
	@$(PIP) --editable ".[bench]"
	@$(torch)
	@touch $@

# The same rules in the other environment.
$(COMPILERS)/.compiled: pyproject.toml
	@$(MAKE) --no-print-directory VENV=$(COMPILERS) $(COMPILERS)/.compilers
	@touch $@

$(VENV)/.compilers: $(VENV)/.base
	@echo "installing scanrnn and compilers for an H100 and a TPU v5e into $(VENV)"
	@$(PIP) --editable ".[compiled]" --group test
	@touch $@

# Without torch the tests and benchmarks that compare with it are skipped.
define torch
if $(RUN) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then \
	$(PIP) $(TORCH) || echo "no $(TORCH) here; comparisons with it are skipped"; fi
endef
