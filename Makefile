# make demo   set up, then the main job on embedded data
# make test   set up, then every test
# make lint   set up, then ruff, mypy and import-linter

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SOURCES := $(shell find src -type f ! -name '*.pyc')

.PHONY: demo test quick lint setup clean

setup: $(VENV)/airfed.stamp

# torch first and pinned: an unpinned one would pull gigabytes of GPU libraries.
$(VENV)/packages.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt torch==2.13.0
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt ".[dev]"
	touch $@

# The tests run on the built wheel, not on the source tree.
$(VENV)/airfed.stamp: $(VENV)/packages.stamp $(SOURCES) README.md
	$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --force-reinstall .
	touch $@

demo: setup
	$(BIN)/airfed compare examples/paper.toml
	$(BIN)/airfed sweep examples/demo.toml --out out/demo --plot out/demo/demo.png
	$(BIN)/airfed report out/demo --out out/demo/report.html

test: setup
	$(BIN)/python -m pytest -m "slow or not slow" -n 3 --dist loadfile

quick: setup
	$(BIN)/python -m pytest

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache
