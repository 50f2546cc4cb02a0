#!/usr/bin/env bash
# Trains on the nodes of a Slurm job. In the checkout: sbatch deploy/slurm.sh RUN RECIPE [overrides].
#SBATCH --job-name=sojourn
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --cpus-per-task=16
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --output=%x-%j.log
#SBATCH --open-mode=append
#SBATCH --requeue
# For GPUs, add: #SBATCH --gpus-per-node=8

set -euo pipefail
cd "$SLURM_SUBMIT_DIR"
# shellcheck disable=SC1091
source "${VENV:-.venv}/bin/activate"

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
ip=$(hostname -I | cut -d' ' -f1) # This script runs on the first node.
workers=$((${#nodes[@]} - 1))

# Whoever reaches a cluster without a token may run programs there as this user.
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_TOKEN RAY_AUTH_MODE=token RAY_ADDRESS=$ip:${RAY_PORT:-6379} RAY_TMPDIR=/tmp/ray-$SLURM_JOB_ID

step=(srun --ntasks-per-node=1 "--cpus-per-task=$SLURM_CPUS_PER_TASK")
start=(ray start --block --disable-usage-stats "--num-cpus=$SLURM_CPUS_PER_TASK")
trap 'kill $(jobs -p) 2> /dev/null || true; wait' EXIT

"${step[@]}" --nodes=1 --ntasks=1 --nodelist="${nodes[0]}" \
    "${start[@]}" --head --node-ip-address="$ip" --port="${RAY_ADDRESS##*:}" --include-dashboard=false &
until ray health-check --address "$RAY_ADDRESS" > /dev/null 2>&1; do
    [ -n "$(jobs -rp)" ] || { echo "Ray did not start on ${nodes[0]}" >&2; exit 1; }
    sleep 1
done
if [ "$workers" -gt 0 ]; then
    "${step[@]}" --nodes="$workers" --ntasks="$workers" --exclude="${nodes[0]}" "${start[@]}" --address="$RAY_ADDRESS" &
fi

python - "${#nodes[@]}" << 'END'
import sys, time
import ray

ray.init(address="auto", log_to_driver=False)
wanted, deadline = int(sys.argv[1]), time.monotonic() + 300
while (found := sum(node["Alive"] for node in ray.nodes())) < wanted:
    if time.monotonic() > deadline:
        sys.exit(f"after 300 s the Ray cluster has {found} of {wanted} nodes: this log says what the others did")
    time.sleep(1)
END
sh deploy/train.sh "$@"
