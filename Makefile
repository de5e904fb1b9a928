# make demo   seven ways to train one small fleet, compared, in a minute; the data ship with the dependencies
# make test   all tests
# make fuzz   random settings, damaged files and kills, for MINUTES=30
# make docs   the documentation as a site, in site/
# make coverage   all tests, and the lines and branches that none of them reaches
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile
MINUTES ?= 30

.PHONY: demo test fuzz coverage docs lint setup clean

demo: $(VENV)/ready
	rm -rf runs/demo
	$(BIN)/python benchmarks/front.py benchmarks/front/demo.toml --engine lanes --runs runs/demo --out runs/demo

test: $(VENV)/ready
	$(BIN)/python -m pytest -n 3 --dist loadfile --no-loadscope-reorder  # tests/conftest.py has the order

fuzz: $(VENV)/ready
	$(BIN)/python -m tests.fuzz $(MINUTES)

coverage: $(VENV)/ready
	$(BIN)/coverage erase
	$(BIN)/coverage run -m pytest -n 3 --dist loadfile --no-loadscope-reorder; status=$$?; \
	$(BIN)/coverage combine --quiet && $(BIN)/coverage report && exit $$status

docs: $(VENV)/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

lint: $(VENV)/ready
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

setup: $(VENV)/ready

# A new pip, since an old one takes minutes to read the index. Then the pinned torch: every later package must be content
# with it. Last, all is compiled on all cores: else every program may compile again what it imports.
$(VENV)/ready: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.exit("cpfl needs Python 3.11 or newer, this is " + sys.version.split()[0] if sys.version_info < (3, 11) else 0)'
	$(PYTHON) -m venv $(VENV)
	$(PIP) --upgrade 'pip>=26'
	$(PIP) torch==2.13.0
	$(PIP) --constraint constraints.txt --editable '.[dev]'
	$(BIN)/python -m compileall -qq -j 0 $(VENV)/lib src || true  # torch has files for newer Pythons
	touch $@

$(VENV)/docs: $(VENV)/ready
	$(PIP) --constraint constraints.txt --editable '.[docs]'
	touch $@

clean:
	rm -rf $(VENV) build dist site src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .coverage*
