#!/usr/bin/env bash
# Makes .rehearse: torch's CUDA build in an environment of its own, and a simulated CUDA runtime, with which
# `scalelab rehearse` also finds tensors on the wrong device; and the Python of Transformer Engine, whose layers it then
# rehearses, without the compiled packages. About 3 GB to download, 5 GB on disk; needs gcc, no GPU.
# Everything else comes from the environment of PYTHON (default: .venv). Run again, it does nothing unless its parts changed.
set -euo pipefail
cd "$(dirname "$0")/../.."
base=${PYTHON:-.venv/bin/python}
[ -x "$base" ] || { echo "no $base: run make install first, or set PYTHON to the Python that has the lab's packages" >&2; exit 1; }
command -v gcc >/dev/null || { echo "gcc is missing: install it (Debian: apt-get install gcc), then run this again" >&2; exit 1; }
version=$("$base" -c 'import importlib.metadata as m; print(m.version("torch").split("+")[0])')
engine=$(sed -n '/^transformer-engine==/,/[^\\]$/p' requirements/gpu.txt)
stamp=.rehearse/made-$({ cat tools/rehearse/*; echo "$engine"; } | sha256sum | cut -c1-16)-torch-$version
[ -e "$stamp" ] && exit 0
started=$SECONDS
mkdir -p .rehearse/build/crt
[ -x .rehearse/env/bin/python ] || "$base" -m venv --without-pip .rehearse/env
"$(dirname "$base")/uv" pip install --quiet --python .rehearse/env/bin/python "torch==$version"
"$(dirname "$base")/uv" pip install --quiet --python .rehearse/env/bin/python --no-deps --require-hashes -r - <<<"$engine"
site=$(.rehearse/env/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
"$base" -c 'import sysconfig; print(sysconfig.get_path("purelib"))' > "$site/everything_else.pth"

# NVIDIA's header wants another one that its package leaves out: words for compilers that build device code.
for word in __device_builtin__ __cudart_builtin__ __device_builtin_texture_type__ __device_builtin_surface_type__ \
    CUDARTAPI CUDART_CB __host__ __device__ '__align__(n) __attribute__((aligned(n)))' \
    '__builtin_align__(n) __attribute__((aligned(n)))'; do
    echo "#define $word"
done > .rehearse/build/crt/host_defines.h
gcc -shared -fPIC -O1 -w -I.rehearse/build -I"$(dirname "$(find "$site/nvidia" -name driver_types.h | head -1)")" \
    -o .rehearse/cudart.so tools/rehearse/cudart.c
gcc -shared -fPIC -O1 -w -Wl,-soname,libcuda.so.1 -o .rehearse/libcuda.so.1 tools/rehearse/driver.c
gcc -shared -fPIC -O1 -w -Wl,-soname,libnvidia-ml.so.1 -o .rehearse/libnvidia-ml.so.1 tools/rehearse/nvml.c
rm -rf .rehearse/build .rehearse/made-*
touch "$stamp"
echo "made .rehearse in $((SECONDS - started)) s"
