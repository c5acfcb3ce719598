# Two commands do everything, from a fresh clone and without root:
#   make reproduce    every experiment and claim of the paper: reproduction/report.html
#   make test         the test suite
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.PHONY: reproduce table1 test lint docs dist bench clean

# Three minutes on two idle cores; FULL=1 within an hour. Interrupted, it goes on where it was.
reproduce: $(READY)
	$(BIN)/asgld reproduce $(if $(FULL),--full)

# Half an hour on two idle cores. Interrupted, it goes on where it was.
table1: $(READY)
	$(BIN)/asgld table1 --size full

test: $(READY)
	$(BIN)/python -m pytest -n 2 --dist worksteal $(PYTEST_ARGS)

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

# The source archive and the wheel that is made of it; the study's in a folder of their own. On Linux
# auditwheel gives the wheel the tag of the oldest systems that it runs on: an index takes no other.
dist: $(READY)
	rm -rf dist
	PIP_CONSTRAINT=$(CURDIR)/constraints.txt $(BIN)/python -m build --outdir dist
	for wheel in dist/*-linux_*.whl; do test ! -e $$wheel || { PATH="$(CURDIR)/$(BIN):$$PATH" \
	  auditwheel repair --wheel-dir dist $$wheel && rm $$wheel; } || exit 1; done
	$(BIN)/python -m build --no-isolation --outdir dist/study study
	$(BIN)/twine check --strict dist/*.whl dist/*.tar.gz dist/study/*

bench: $(READY)
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[bench]'
	$(BIN)/python benchmarks/step_time.py

# The stamp holds back a second installation until what it depends on changes.
$(READY): pyproject.toml study/pyproject.toml constraints.txt $(wildcard CMakeLists.txt native/*)
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]' -e study
	touch $@

clean:
	rm -rf .venv build dist site reproduction
