#!/usr/bin/env bash
# Train on WORKERS ranks, whose table rows are owned by SERVERS other processes. The folders device_<worker>/ and
# server_<server>/ (or NAME/, NAME.rank<worker>/ and NAME.server<server>/) are made in the current folder.
#   bash run_parameter_server_train.sh SERVERS WORKERS EPOCHS DATASET [--name NAME] [section.key=value ...]
# EPOCHS may be '-', which leaves the number of epochs to CONFIG. train.batch_size is the number of rows of all workers
# together. Environment variables:
#   CONFIG=FILE     settings (default: the project's configs/criteo.yaml; configs/auto.yaml has learning-rate schedules,
#                   which servers do not support)
#   HOSTFILE=FILE   hosts, in lines such as "host1 slots=2", those of the servers first (default: all on this host)
#   MPIRUN=FILE     the mpirun to use
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
