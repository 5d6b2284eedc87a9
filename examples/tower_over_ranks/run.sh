#!/usr/bin/env bash
# Trains with the tower on several ranks of this machine: bash run.sh RANKS MODE PREPARED [options] [section.key=value ...]
# README.md has a command for each mode. PYTHON= and MPIRUN= name others than those of the project.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)

if [ $# -lt 3 ]; then
    echo "usage: bash $0 RANKS MODE PREPARED [options] [section.key=value ...]" >&2
    exit 2
fi
ranks=$1
shift
venv=$here/../../.venv/bin
PYTHON=${PYTHON:-$([[ -x $venv/python ]] && echo "$venv/python" || command -v python3)}
MPIRUN=${MPIRUN:-$([[ -x $venv/mpirun ]] && echo "$venv/mpirun" || command -v mpirun || true)}
if [[ -z $MPIRUN ]] || ! "$PYTHON" -c 'import mpi4py, mindspore' 2> /dev/null; then
    echo "error: train.py needs mindspore, mpi4py and an mpirun: run 'make setup' in the project's folder, or name" \
         "others by PYTHON= and MPIRUN=" >&2
    exit 2
fi
options=(--oversubscribe --bind-to none)
[[ $(id -u) -ne 0 ]] || options+=(--allow-run-as-root)
exec "$MPIRUN" "${options[@]}" -n "$ranks" "$PYTHON" "$here/train.py" "$@"
