#!/usr/bin/env bash
# Makes .venv/verifiers for the tests of Prime Intellect's environments; without it they count as skips.
set -euo pipefail
cd "$(dirname "$0")/.."
stamp=.venv/verifiers/installed-$(sha256sum < requirements/verifiers.txt | cut -c1-16)
[ -e "$stamp" ] && exit 0
rm -rf .venv/verifiers
.venv/bin/uv venv --quiet --python .venv/bin/python .venv/verifiers &&
    .venv/bin/uv pip install --quiet --python .venv/verifiers/bin/python --no-deps -r requirements/verifiers.txt &&
    touch "$stamp" && exit 0
rm -rf .venv/verifiers
echo "requirements/verifiers.txt could not be installed: the tests of its adapter are skipped" >&2
