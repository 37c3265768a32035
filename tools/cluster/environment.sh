# What every node of a GPU cluster should have in its environment; sourced by slurm.sh and ray.yaml, and copied into
# kuberay.yaml. Values that are set already stay. What only trainer or engines need is in scalelab/cluster/environment.py.

# Print NCCL's warnings, such as why a connection failed, and not its other messages.
export NCCL_DEBUG=${NCCL_DEBUG:-WARN}
# Where a node has several networks, name the one that all nodes share; NCCL finds InfiniBand by itself:
#   export NCCL_SOCKET_IFNAME=… GLOO_SOCKET_IFNAME=… NCCL_IB_HCA=…
[ -z "${NCCL_SOCKET_IFNAME:-}" ] || export GLOO_SOCKET_IFNAME=${GLOO_SOCKET_IFNAME:-$NCCL_SOCKET_IFNAME}
# RDMA pins memory, which a low limit forbids: NCCL would fall back to TCP.
ulimit -l unlimited 2>/dev/null || echo "locked memory is limited to $(ulimit -l) KiB: NCCL may fall back to TCP" >&2
ulimit -n 65536 2>/dev/null || true
