# Two commands do everything, from a fresh clone and without root:
#   make reproduce    the paper's experiments: a table and figures under reproduction/
#   make test         the test suite
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: reproduce test lint docs bench clean

reproduce: $(READY)
	$(BIN)/asgld reproduce $(if $(FULL),--full)

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	$(BIN)/mkdocs build --strict --quiet

bench: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/step_time.py

# The stamp holds back a second installation until what it depends on changes.
$(READY): pyproject.toml constraints.txt $(wildcard CMakeLists.txt native/*)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	touch $@

clean:
	rm -rf .venv build dist site reproduction
