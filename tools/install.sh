#!/usr/bin/env bash
# Makes .venv with the pinned CPU set. Run again, it does nothing unless the pins changed.
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || python=python3
"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' ||
    { echo "scalelab needs Python 3.11; found $("$python" --version). Set PYTHON=/path/to/python3.11" >&2; exit 1; }
stamp=.venv/installed-$(cat requirements/cpu.txt tools/install.sh pyproject.toml | sha256sum | cut -c1-16)
[ -e "$stamp" ] && exit 0
started=$SECONDS
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --upgrade pip uv==0.13.8
# The CPU build of torch: from the configured indices where they have it, else from PyTorch's own.
.venv/bin/python -c 'import torch; assert torch.__version__ == "2.13.0+cpu"' 2>/dev/null ||
    .venv/bin/python -m pip install --quiet --no-deps torch==2.13.0+cpu ||
    .venv/bin/python -m pip install --quiet --no-deps torch==2.13.0+cpu --index-url https://download.pytorch.org/whl/cpu
.venv/bin/uv pip install --quiet --compile-bytecode --python .venv/bin/python --no-deps -r requirements/cpu.txt
.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps -e .
rm -f .venv/installed-*
# The strongest tier of the sandbox needs bubblewrap; without it programs run in the next one, and `make test` fails since
# its tests are skipped (tests/helpers/skips.py).
# Grading C++ needs a compiler, grading JavaScript needs Node.js. Without libnuma vLLM has no CPU kernels.
# While one is missing there is no stamp, so that the next run tries, and says so, again.
missing=() complete=yes
command -v bwrap >/dev/null || missing+=(bubblewrap)
command -v g++ >/dev/null || missing+=(g++)
command -v node >/dev/null || missing+=(nodejs)
.venv/bin/python -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null || missing+=(libnuma1)
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        tools/apt_install.sh "${missing[@]}" >/dev/null 2>&1 || {
            complete=no
            echo "could not be installed: ${missing[*]}; for vLLM, the sandbox's strongest tier, C++ and JavaScript: apt-get install ${missing[*]}" >&2
        }
    else
        complete=no
        echo "For vLLM, the sandbox's strongest tier, C++ and JavaScript install: sudo apt-get install ${missing[*]}" >&2
    fi
fi
[ "$complete" = no ] || touch "$stamp"
echo "installed in $((SECONDS - started)) s"
