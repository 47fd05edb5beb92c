# make demo   install the demo's dependencies, then compare, sweep and report on embedded data
# make test   install the development dependencies, then run all tests
# make docs   install the site's dependencies, execute the notebooks and build site/ in strict mode
# make dist   build and check wheel and sdist in dist/, then test the wheel in an empty environment
# make core   run the tests that need no torch in a separate environment, with any supported Python
# make lint   install the development dependencies, then run ruff, mypy and import-linter

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Bytecode is compiled on first import, unless Python is not allowed to store it then.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check $(if $(PYTHONDONTWRITEBYTECODE),,--no-compile)
CORE := .venv-core
SOURCES := $(shell find src -type f ! -name '*.pyc')

.NOTPARALLEL:  # concurrent pip runs in one environment would conflict
.PHONY: demo test quick lint docs dist core setup clean

setup: $(VENV)/dev.stamp $(VENV)/airfed.stamp

# One pip run per set of extras: constraints.txt pins torch; an unpinned one would pull gigabytes of GPU libraries.
$(VENV)/demo.stamp: EXTRAS := sim,report,sweep
$(VENV)/dev.stamp: EXTRAS := dev
$(VENV)/docs.stamp: EXTRAS := docs
$(VENV)/demo.stamp $(VENV)/dev.stamp $(VENV)/docs.stamp: pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -c constraints.txt ".[$(EXTRAS)]"
	touch $@

$(VENV)/release.stamp: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) -c constraints.txt build twine
	touch $@

# The tests run on the built wheel, not on the source tree.
$(VENV)/airfed.stamp: pyproject.toml $(SOURCES) README.md
	$(INSTALL) --no-deps --force-reinstall .
	touch $@

demo: $(VENV)/demo.stamp $(VENV)/airfed.stamp
	$(BIN)/airfed compare examples/paper.toml
	$(BIN)/airfed sweep examples/demo.toml --out out/demo --plot out/demo/demo.png
	$(BIN)/airfed report out/demo --out out/demo/report.html
	$(BIN)/airfed plan examples/private.toml
	$(BIN)/airfed sweep examples/private-demo.toml --out out/private

test: setup
	$(BIN)/python -m pytest -m "slow or not slow" -n 3 --dist loadfile --no-loadscope-reorder

core:
	$(PYTHON) -m venv $(CORE)
	$(CORE)/bin/pip install --quiet --disable-pip-version-check -c constraints.txt ".[report]" \
	    dp-accounting hypothesis mpmath pytest python-flint threadpoolctl
	$(CORE)/bin/python -m pytest tests/planning tests/privacy tests/scenario tests/channel tests/keys $(wildcard \
	    $(addprefix tests/test_,aircomp.py arrays.py bounds.py equations.py files.py network.py problem.py seeds.py validate.py))

quick: setup
	$(BIN)/python -m pytest

docs: $(VENV)/docs.stamp $(VENV)/airfed.stamp
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict
	@echo "site/index.html"

dist: $(VENV)/release.stamp
	rm -rf dist build/empty
	$(BIN)/python -m build --outdir dist .
	$(BIN)/twine check --strict dist/*
	$(PYTHON) -m venv build/empty
	build/empty/bin/pip install --quiet --disable-pip-version-check -c constraints.txt dist/*.whl
	cd build/empty && bin/airfed --version --verbose && bin/airfed new my.toml && bin/airfed plan my.toml && \
	    bin/python -c "import airfed; assert airfed.load('my.toml').plan().num_scheduled"

lint: setup
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports

clean:
	rm -rf $(VENV) $(CORE) build dist site .pytest_cache .mypy_cache .ruff_cache
