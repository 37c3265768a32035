#!/usr/bin/env bash
# Makes .venv with the pinned GPU set (requirements/gpu.txt) on a Linux machine with an NVIDIA driver. Run again, it does
# nothing unless the pins changed. The checkout should lie where all nodes see it, so that once is enough.
set -euo pipefail
cd "$(dirname "$0")/../.."
python=${PYTHON:-python3.11}
command -v "$python" >/dev/null || { echo "scalelab needs Python 3.11: set PYTHON=/path/to/python3.11" >&2; exit 1; }
command -v gcc >/dev/null || { echo "gcc is missing, which pycosat is compiled with: install it (build-essential)" >&2; exit 1; }
# torch 2.13.0 of the package index is built for CUDA 13.0, which wants this driver (CUDA 13.0 release notes, table 3).
needed=580
if driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) && [ -n "$driver" ]; then
    [ "${driver%%.*}" -ge "$needed" ] ||
        { echo "the NVIDIA driver is $driver, and CUDA 13.0 wants $needed or newer: update the driver" >&2; exit 1; }
else
    echo "no NVIDIA driver here: going on, for an image or a shared file system" >&2
fi
stamp=.venv/installed-gpu-$(cat requirements/gpu.txt tools/cluster/install.sh pyproject.toml | sha256sum | cut -c1-16)
[ -e "$stamp" ] && exit 0
[ -x .venv/bin/python ] || "$python" -m venv .venv
.venv/bin/python -m pip install --quiet --upgrade pip uv==0.13.8
# Transformer Engine's torch part is NVIDIA's wheel for the torch that is installed, from GitHub; where there is none, its
# own set-up compiles it, which takes nvcc.
grep -v '^transformer-engine-torch==' requirements/gpu.txt > .venv/gpu-wheels.txt
.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps -r .venv/gpu-wheels.txt
.venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps -e .
if command -v nvcc >/dev/null; then
    .venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps wheel==0.48.0 pybind11==3.1.0
    # The headers of NCCL and cuDNN come with their packages; not every machine that has nvcc has them elsewhere.
    headers=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia
    CPATH="$headers/nccl/include:$headers/cudnn/include${CPATH:+:$CPATH}" \
        .venv/bin/uv pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation \
        "$(grep '^transformer-engine-torch==' requirements/gpu.txt)" || {
        echo "Transformer Engine's torch part was not compiled: mend what is said above and run this again, or run it" \
            "without nvcc on the PATH, for Megatron's own layers" >&2
        exit 1
    }
else
    # Without its torch part Transformer Engine cannot be imported, and Megatron would try.
    .venv/bin/uv pip uninstall --quiet --python .venv/bin/python transformer-engine transformer-engine-cu13
    echo "no nvcc: installed without Transformer Engine; the trainer takes Megatron's own layers (docs/trainer.md)" >&2
fi
rm -f .venv/installed-*
touch "$stamp"
