# Two commands do everything on a fresh machine with Python 3.11: `make quickstart` and `make test`.
PY := .venv/bin/python

.PHONY: install install-gpu quickstart test test-fast lint types docs

install:
	@tools/install.sh

install-gpu:
	@tools/cluster/install.sh

quickstart: install
	.venv/bin/scalelab run experiments/quickstart.py

lint: install
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: install
	.venv/bin/mypy

# Two workers, for two cores; whole files to each, for what their tests share takes long to make.
test: lint types
	@tools/install_browser.sh
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile

# Without the tests that are marked slow; FAST=tests/curves names a part of them.
test-fast: install
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile -m "not slow" $(FAST)

docs: install
	@$(PY) -m mkdocs build --strict --site-dir build/site
