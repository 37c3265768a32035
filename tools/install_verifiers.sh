#!/usr/bin/env bash
# Makes .venv/verifiers for the tests of Prime Intellect's environments; without it they count as skips.
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=.venv/verifiers/installed-$(sha256sum < requirements/verifiers.txt | cut -c1-16)
[ -e "$stamp" ] && exit 0
rm -rf .venv/verifiers
.venv/bin/python -m venv --without-pip .venv/verifiers &&
    PIP_USER=0 .venv/bin/python -m pip --python .venv/verifiers/bin/python install --quiet --disable-pip-version-check \
        --no-deps --require-hashes -r requirements/verifiers.txt >.venv/verifiers.log 2>&1 &&
    touch "$stamp" && exit 0
rm -rf .venv/verifiers
echo "requirements/verifiers.txt could not be installed (.venv/verifiers.log): the tests of its adapter are skipped" >&2
