# Every target makes its own virtual environment if there is none; all it needs is
# python3 >= 3.11 and make.  `make demo` and `make test` are the two to know.
PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
ARGS ?=

BIN := $(VENV)/bin
RUN := $(BIN)/python
PIP := $(RUN) -m pip install --quiet --disable-pip-version-check
# Torch is a peer to test and to measure against, never a dependency.
TORCH := torch==2.13.0

.PHONY: help demo test test-slow lint bench notebooks clean

help:
	@echo "make demo       train a character language model (about three minutes)"
	@echo "make test       lint and the quick tests"
	@echo "make test-slow  the tests marked slow"
	@echo "make bench      benchmarks against lax.scan and other libraries"
	@echo "make notebooks  execute the notebooks"
	@echo "make lint       ruff and pyright"

demo: $(VENV)/.demo
	@$(RUN) -m scanrnn train $(ARGS)

test: lint
	$(RUN) -m pytest -n $(JOBS) -p no:benchmark -m "not slow" -q $(ARGS)

test-slow: $(VENV)/.test
	$(RUN) -m pytest -n $(JOBS) -p no:benchmark -m slow -q $(ARGS)

lint: $(VENV)/.test
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/pyright --pythonpath $(RUN)

bench: $(VENV)/.bench
	$(RUN) -m benchmarks $(ARGS)

notebooks: $(VENV)/.test
	$(RUN) -m pytest -q tests/test_notebooks.py $(ARGS)

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .benchmarks

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
	@$(PIP) --editable ".[demo,notebooks]" --group dev
	@$(torch)
	@touch $@

$(VENV)/.bench: $(VENV)/.base
	@echo "installing scanrnn and its peers into $(VENV)"
	@$(PIP) --editable ".[bench]"
	@$(torch)
	@touch $@

# Without torch the tests and benchmarks that compare with it are skipped.
define torch
if $(RUN) -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'; then \
	$(PIP) $(TORCH) || echo "no $(TORCH) here; comparisons with it are skipped"; fi
endef
