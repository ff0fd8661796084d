# annopipe: the targets that people and CI share. `make help` lists them.
# Each sets up .venv from nothing if it is not there, and again after pyproject.toml or constraints.txt changed.

PYTHON ?= python3
WORKERS ?= 2
BIN := .venv/bin
STAMP := .venv/.stamp
PIP_INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt

.DEFAULT_GOAL := help
.PHONY: help demo test nightly corpus lint types docs site bench clean

help:  ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / { printf "  make %-6s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

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
	rm -rf .venv build dist out docs/reference *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
