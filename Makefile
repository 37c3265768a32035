# Two commands do everything on a fresh machine: `make quickstart` and `make test`. The Pythons that fit: pyproject.toml.
PY := .venv/bin/python

.PHONY: install install-gpu quickstart test test-fast test-devices nightly simulate-faults lint types docs wheel lock

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

# Two workers, for two cores: three starve one another. Tests of many processes in turn, by one of them. Whole files to each,
# for what their tests share takes long to make, in the order of tests/helpers/order.py.
# A failure is shown at once. A worker that dies ends the run: pytest-xdist 3.8 gives the work of its successor to nobody,
# and would wait.
PYTEST := OMP_NUM_THREADS=1 $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder --max-worker-restart 0 --instafail --durations 20

test: lint types
	@for one in bwrap g++ node; do command -v $$one >/dev/null || \
		{ echo "the tests need bubblewrap, g++ and Node.js: sudo apt-get install bubblewrap g++ nodejs" >&2; exit 1; }; done
	@tools/install_browser.sh
	@tools/install_verifiers.sh
	@$(PYTEST) -m "not nightly"

# For every save: without the tests that are marked slow, which take a second and more, or load vLLM, Megatron or
# transformers. Measured seconds: CONTRIBUTING.md. FAST=tests/curves names a part of them.
test-fast: install
	@$(PYTEST) -m "not slow" $(FAST)

# With a simulated CUDA device, which the other tests do without: 3 GB to download the first time; needs gcc.
test-devices: install
	@tools/rehearse/install.sh
	@OMP_NUM_THREADS=1 $(PY) -m pytest tests/rehearse/test_environment.py

# For a night: what `make test` leaves out, random tests with fresh draws, five hundred examples each, and 400 mistakes, of
# which tests are to notice nine in ten; of 40 drawn last they noticed fewer (docs/house.md), so it fails there.
nightly: install
	@$(PYTEST) -m nightly
	@HYPOTHESIS_PROFILE=explore $(PYTEST) -m "not slow"
	@PYTHONPATH=.:tools:tools/bench $(PY) tools/bench/mutation.py --count 400 --seed $$(date +%j) --least 0.9

# For a night: whole runs under simulated faults (docs/run.md), in as many processes as there are cores. Each prints the
# faults that it made, and a line that replays a seed that fails. SEEDS=1000 takes a part of them.
SEEDS ?= 100000
CORES := $(shell env -u OMP_NUM_THREADS nproc)
simulate-faults: install
	@seq 0 $$(( ($(SEEDS) + $(CORES) - 1) / $(CORES) )) $$(( $(SEEDS) - 1 )) | OMP_NUM_THREADS=1 xargs -P $(CORES) -I START \
		$(PY) -m tests.helpers.simulated_run --start START --seeds $$(( ($(SEEDS) + $(CORES) - 1) / $(CORES) ))

docs: install
	@$(PY) -m mkdocs build --strict --site-dir build/site

# What goes to a package index: nothing is published here.
wheel: install
	@rm -rf dist
	@.venv/bin/uv build --quiet --python $(PY)
	@$(PY) -m twine check --strict dist/*

# The locks of requirements/, anew; UPGRADE=--upgrade takes the newest versions that fit.
lock: install
	@$(PY) tools/lock.py $(UPGRADE)
