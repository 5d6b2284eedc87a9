#!/usr/bin/env bash
# Train on WORKERS ranks whose rows are owned by SERVERS other processes; the folders device_<worker>/ and
# server_<server>/ (NAME/, NAME.rank<worker>/, NAME.server<server>/) are made in the current folder.
#   bash run_parameter_server_train.sh SERVERS WORKERS EPOCHS DATASET [--name NAME] [section.key=value ...]
# EPOCHS may be '-' (those of CONFIG). Environment: CONFIG=FILE (default: configs/criteo.yaml of the project; those of
# configs/auto.yaml fall with a schedule, which servers do not have), HOSTFILE=FILE (lines like "host1 slots=2", the
# servers first; default: all on this host), MPIRUN=FILE. train.batch_size is that of all workers together.
set -euo pipefail

if [ $# -lt 4 ]; then
    echo "usage: bash $0 SERVERS WORKERS EPOCHS DATASET [--name NAME] [section.key=value ...]" >&2
    exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
config=${CONFIG:-$project_dir/configs/criteo.yaml}
servers=$1 workers=$2 epochs=$3 dataset=$4
shift 4
[[ $epochs == - ]] || set -- "$@" "train.epochs=$epochs"

exec "$python" -P -m app train --config "$config" --dataset "$dataset" --servers "$servers" --ranks "$workers" \
    --hostfile "${HOSTFILE:-}" "$@"
