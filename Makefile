# annopipe: the targets that people and CI share. `make help` lists them.
# Each sets up .venv from nothing if it is not there, and again after pyproject.toml or constraints.txt changed.

PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
STAMP := .venv/.stamp
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test test-torch nightly corpus lint types docs site bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

# torch comes first and by its exact version, so that pip takes the build which this machine offers (a CPU build, say).
$(STAMP): pyproject.toml constraints.txt
	@echo "Setting up .venv: a few minutes the first time."
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(PIP_INSTALL) "$$(grep '^torch==' constraints.txt)"
	@$(PIP_INSTALL) -e '.[dev,docs,plots,optimal]'
	@touch $@

demo: $(STAMP)  ## about a minute: overlap measured on this machine, a table and an HTML timeline
	@$(BIN)/annopipe bench overlap --demo

test: $(STAMP)  ## run the test suite, on two cores (WORKERS=4: on four)
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile

# Another release of PyTorch in an environment of its own; everything else as pinned, save what a release of PyTorch
# asks for in a version of its own (2.11: setuptools before 82).
TORCH ?= 2.15.0
OTHER := .venv-torch-$(TORCH)
test-torch:  ## the suite on another release of PyTorch: make test-torch TORCH=2.15.0 [TESTS=tests/graphs]
	@test -x $(OTHER)/bin/python || $(PYTHON) -m venv $(OTHER)
	@grep -vE '^(torch|triton|setuptools)==' constraints.txt >$(OTHER)/constraints.txt
	@$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OTHER)/constraints.txt "torch==$(TORCH)"
	@$(OTHER)/bin/python -m pip install --quiet --disable-pip-version-check -c $(OTHER)/constraints.txt -e '.[dev,plots,optimal]'
	@OMP_NUM_THREADS=1 $(OTHER)/bin/python -m pytest -n $(WORKERS) --dist loadfile $(TESTS)

nightly: $(STAMP)  ## the tests that take minutes: every schedule on every model, the cases on four ranks
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m nightly

corpus: $(STAMP)  ## tag published models, fetched with pip (minutes; skipped offline)
	@$(BIN)/python -m pytest -m corpus

lint: $(STAMP)  ## ruff (rules and format), sizes and imports
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/python tools/check_sizes.py

types: $(STAMP)  ## mypy
	@$(BIN)/mypy

docs: $(STAMP)  ## the gallery of schedules, and the pictures in docs/
	@$(BIN)/python -m tools.make_docs

site: $(STAMP)  ## the documentation as a web site, in out/site; warnings are errors
	@$(BIN)/python -m sphinx --builder html --fail-on-warning --keep-going --quiet docs out/site
	@echo "out/site/index.html"

bench: $(STAMP)  ## the overlap benchmark in full
	@$(BIN)/annopipe bench overlap

clean:  ## remove .venv, caches and results
	rm -rf .venv .venv-torch-* build dist out docs/reference *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
