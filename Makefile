# Two commands do everything on a fresh machine with Python 3.11: `make quickstart` and `make test`.
PY := .venv/bin/python

.PHONY: install quickstart test lint types

install:
	@tools/install.sh

quickstart: install
	.venv/bin/scalelab run experiments/quickstart.py

lint: install
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .

types: install
	.venv/bin/mypy

# Two workers, for two cores; whole files to each, for what their tests share takes long to make.
test: lint types
	@OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile
