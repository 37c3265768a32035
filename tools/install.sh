#!/usr/bin/env bash
# Makes .venv with the pinned CPU set. Run again, it does nothing unless the pins changed; after a kill it goes on.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/venv.sh

# Installs torch: its CPU build where the configured index has it, else from PyTorch's own index, else PyPI's.
install_torch() {
    .venv/bin/python -c 'from importlib.metadata import version; version("torch")' 2>/dev/null && return
    local lock=.venv/torch.txt
    sed -n '/^torch==/,/[^\\]$/p' requirements/cpu.txt >.venv/torch-any.txt
    sed 's/^\(torch==[^ ]*\)/\1+cpu/' .venv/torch-any.txt >$lock
    try_pip --require-hashes -r $lock && return
    ! grep -q "DO NOT MATCH THE HASHES" .venv/install.log || explain_pip
    try_pip --require-hashes -r $lock --index-url https://download.pytorch.org/whl/cpu --retries 1 && return
    ! grep -q "DO NOT MATCH THE HASHES" .venv/install.log || explain_pip
    echo "torch's CPU build is on no index that can be reached: taking PyPI's, with 3 GB of CUDA libraries" >&2
    "$python" -I scalelab/machine.py cuda-torch || exit 1
    : >.venv/install.log
    pip_install --require-hashes -r .venv/torch-any.txt -r requirements/torch-cuda.txt
}

# What pip cannot install; a machine without it runs the quickstart, but for libnuma, without which vLLM has no kernels.
# Without bubblewrap the sandbox takes its next tier; grading C++ needs a compiler, grading JavaScript Node.js.
system_packages() {
    local missing=() lacks=""
    command -v bwrap >/dev/null || missing+=(bubblewrap) lacks+=", the sandbox's strongest tier"
    command -v g++ >/dev/null || missing+=(g++) lacks+=", C++"
    command -v node >/dev/null || missing+=(nodejs) lacks+=", JavaScript"
    .venv/bin/python -c 'import ctypes; ctypes.CDLL("libnuma.so.1")' 2>/dev/null ||
        missing+=(libnuma1) lacks+=", vLLM on a CPU"
    [ ${#missing[@]} -gt 0 ] || return 0
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
        tools/apt_install.sh "${missing[@]}" >/dev/null 2>&1 && return
    fi
    echo "this machine lacks what is needed for ${lacks#, }: sudo apt-get install ${missing[*]}" >&2
}

lock_set_up
stamp=$(stamp_of requirements/tools.txt requirements/cpu.txt requirements/torch-cuda.txt tools/install.sh pyproject.toml)
if ! [ -e "$stamp" ] || [ -e .venv/incomplete ]; then
    started=$SECONDS
    choose_python
    begin_venv cpu
    system_packages
    echo "installing the packages of requirements/cpu.txt into .venv with $("$python" --version)"
    pip_install --require-hashes -r requirements/tools.txt
    install_torch
    pip_install --require-hashes --no-build-isolation -r requirements/cpu.txt
    pip_install --no-build-isolation -e .
    end_venv "$stamp"
    echo "installed in $((SECONDS - started)) s, $(du -sm .venv | cut -f1) MB"
else
    system_packages
fi
