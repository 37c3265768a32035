# What every node of a GPU cluster should have in its environment; sourced by slurm.sh and ray.yaml, and copied into
# kuberay.yaml. Values that are set already stay.

# Megatron overlaps communication and products by their order in one hardware queue.
export CUDA_DEVICE_MAX_CONNECTIONS=${CUDA_DEVICE_MAX_CONNECTIONS:-1}
# Rows differ in length from step to step, which fragments the allocator's fixed segments.
export PYTORCH_CUDA_ALLOC_CONF=${PYTORCH_CUDA_ALLOC_CONF:-expandable_segments:True}
# A collective that fails ends the rank, which the run then replaces, instead of hanging.
export TORCH_NCCL_ASYNC_ERROR_HANDLING=${TORCH_NCCL_ASYNC_ERROR_HANDLING:-1}
# Print NCCL's warnings, such as why a connection failed, and not its other messages.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
# Where a node has several networks, name the one that all nodes share; NCCL finds InfiniBand by itself:
#   export NCCL_SOCKET_IFNAME=… GLOO_SOCKET_IFNAME=… NCCL_IB_HCA=…
[ -z "${NCCL_SOCKET_IFNAME:-}" ] || export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$NCCL_SOCKET_IFNAME}
# RDMA pins memory, which a low limit forbids: NCCL would fall back to TCP.
ulimit -l unlimited 2>/dev/null || echo "locked memory is limited to $(ulimit -l) KiB: NCCL may fall back to TCP" >&2
ulimit -n 65536 2>/dev/null || true
