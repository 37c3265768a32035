#!/usr/bin/env bash
# Makes .venv with the pinned GPU set (requirements/gpu.txt) on a Linux machine with an NVIDIA driver. Run again, it does
# nothing unless the pins changed. The checkout should lie where all nodes see it, so that once is enough.
set -euo pipefail
cd "$(dirname "$0")/../.."
. tools/venv.sh
choose_python
# torch 2.13.0 of the package index is built for CUDA 13.0, which wants this driver (CUDA 13.0 release notes, table 3).
needed=580
if driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -n 1) && [ -n "$driver" ]; then
    [ "${driver%%.*}" -ge "$needed" ] || refuse "the NVIDIA driver is $driver, and CUDA 13.0 wants $needed or newer: update the driver"
else
    echo "no NVIDIA driver here: going on, for an image or a shared file system" >&2
fi
lock_set_up
stamp=$(stamp_of requirements/tools.txt requirements/gpu.txt tools/cluster/install.sh pyproject.toml)
[ -e "$stamp" ] && ! [ -e .venv/incomplete ] && exit 0
begin_venv gpu
pip_install --require-hashes -r requirements/tools.txt
# Transformer Engine's torch part is NVIDIA's wheel for the torch that is installed, from GitHub; where there is none, its
# own set-up compiles it, which takes nvcc.
sed '/^transformer-engine-torch==/,/[^\\]$/d' requirements/gpu.txt >.venv/gpu-wheels.txt
sed -n '/^transformer-engine-torch==/,/[^\\]$/p' requirements/gpu.txt >.venv/gpu-engine.txt
pip_install --require-hashes --no-build-isolation -r .venv/gpu-wheels.txt
pip_install --no-build-isolation -e .
if command -v nvcc >/dev/null; then
    # The headers of NCCL and cuDNN come with their packages; not every machine that has nvcc has them elsewhere.
    headers=$(.venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia
    CPATH="$headers/nccl/include:$headers/cudnn/include${CPATH:+:$CPATH}" \
        try_pip --require-hashes --no-build-isolation -r .venv/gpu-engine.txt || {
        tail -n 20 .venv/install.log >&2
        refuse "Transformer Engine's torch part was not compiled: mend what is said above and run this again, or run it without nvcc on the PATH, for Megatron's own layers"
    }
else
    # Without its torch part Transformer Engine cannot be imported, and Megatron would try.
    .venv/bin/python -m pip uninstall --quiet --yes transformer-engine transformer-engine-cu13
    echo "no nvcc: installed without Transformer Engine; the trainer takes Megatron's own layers (docs/trainer.md)" >&2
fi
end_venv "$stamp"
