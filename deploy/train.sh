#!/bin/sh
# Trains on the Ray cluster of this machine, or of $RAY_ADDRESS: train.sh RUN RECIPE [overrides].
# Where the run folder RUN is there already, its run goes on from the last checkpoint: the recipe is not read again, and
# overrides may change what a resumed run may change, such as backend.samplers.replicas.
set -eu
run=${1:?the run folder} recipe=${2:?the recipe}
shift 2
if [ -f "$run/config.toml" ]; then
    exec sojourn train --resume "$run" "$@"
fi
exec sojourn train "$recipe" --out "$run" backend.name=ray backend.address=auto "$@"
