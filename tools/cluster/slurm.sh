#!/usr/bin/env bash
# A Ray cluster inside a Slurm job, and one scalelab command on it:
#     sbatch --nodes=10 --gpus-per-node=8 tools/cluster/slurm.sh run h100/scalerl_8b --supervise --out /shared/runs/8b
# With --supervise a run whose process dies is started again within the job. Submitted again after a time limit, add
# --resume. The checkout, its .venv and --out must be on a file system that all
# nodes see, the first two made by `make install-gpu`. Set CLUSTER_SETUP to a file that is sourced first on every node
# (modules, NCCL variables), and CONTAINER to an image for Pyxis that tools/cluster/Dockerfile has made: then all commands,
# this one too, run in it with its own packages, and see of the file systems the checkout and your home directory (give
# others, such as that of --out, in CONTAINER_MOUNTS=/shared:/shared).
#SBATCH --job-name=scalelab
#SBATCH --ntasks-per-node=1
#SBATCH --exclusive
# Time to write a last checkpoint: 1.5 TB of the 17Bx16 at 2 GB/s take 13 minutes.
#SBATCH --signal=B:INT@1200
#SBATCH --output=%x-%j.log
set -euo pipefail
cd "${SLURM_SUBMIT_DIR:?run this with sbatch}"
[ -z "${CLUSTER_SETUP:-}" ] || source "$CLUSTER_SETUP"
source tools/cluster/environment.sh
# The image has an environment of its own. The container has a name, so that a node unpacks the image once for all steps.
inside=() bin=.venv/bin
if [ -n "${CONTAINER:-}" ]; then
    inside=(--container-image="$CONTAINER" --container-name="scalelab-$SLURM_JOB_ID" --container-mount-home
        --container-mounts="$PWD:$PWD${CONTAINER_MOUNTS:+,$CONTAINER_MOUNTS}" --container-workdir="$PWD")
    bin=/scalelab/.venv/bin
fi
[ $# -gt 0 ] || { echo "give a scalelab command: sbatch … tools/cluster/slurm.sh run EXPERIMENT" >&2; exit 2; }

port=${RAY_PORT:-6379}
mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}
address=$(srun --nodes=1 --ntasks=1 --nodelist="$head" hostname --ip-address | awk '{print $1}')
export RAY_worker_niceness=0
# This script runs on the first node, outside of any container; a lone INT must reach the command and not srun's screen.
here=(${CONTAINER:+srun --nodes=1 --ntasks=1 --overlap --disable-status --nodelist="$head" "${inside[@]}"})
# Nobody else's job may run code here: Ray's token lies in the home directory, which the nodes share.
export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}
[ "$RAY_AUTH_MODE" != token ] || "${here[@]}" "$bin/ray" get-auth-token --generate >/dev/null

# One `ray start --block` a node; they end with the job.
srun --nodes=1 --ntasks=1 --overlap --nodelist="$head" "${inside[@]}" \
    "$bin/ray" start --head --node-ip-address="$address" --port="$port" --disable-usage-stats --block &
for attempt in $(seq 60); do
    "${here[@]}" "$bin/ray" health-check --address "$address:$port" >/dev/null 2>&1 && break
    [ "$attempt" -lt 60 ] || { echo "Ray's head on $head did not come up within 2 minutes" >&2; exit 1; }
    sleep 2
done
if [ "${#nodes[@]}" -gt 1 ]; then
    srun --nodes=$((${#nodes[@]} - 1)) --ntasks=$((${#nodes[@]} - 1)) --overlap --exclude="$head" "${inside[@]}" \
        "$bin/ray" start --address="$address:$port" --disable-usage-stats --block &
fi

# Every job has another head; the run's configuration says `auto` each time, for with another one it is not resumed.
export RAY_ADDRESS=$address:$port
# In the background, so that Slurm's INT before the time limit reaches it: it writes a checkpoint and ends.
"${here[@]}" "$bin/scalelab" "$@" --set "Cluster.address='auto'" &
lab=$!
trap 'kill -INT "$lab"' INT TERM
status=0
while kill -0 "$lab" 2>/dev/null; do
    wait "$lab" && status=0 || status=$?
done
exit "$status"
