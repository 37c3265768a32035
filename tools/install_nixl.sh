#!/usr/bin/env bash
# Gets NIXL (70 MB) for the tests of sharded transfers, on host memory; without it they count as skips.
set -euo pipefail
cd "$(dirname "$0")/.."
.venv/bin/python -c 'import nixl' 2>/dev/null && exit 0
.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps nixl==1.5.1 nixl-cu12==1.5.1 ||
    echo "The tests of sharded transfers of weights are skipped without NIXL" >&2
