#!/usr/bin/env bash
# Train on RANK_SIZE ranks. The run folders device_<rank>/ (or NAME/ and NAME.rank<rank>/) are made in the current
# folder.
#   bash run_auto_parallel_train.sh RANK_SIZE EPOCHS DATASET RANK_TABLE_FILE [--name NAME] [section.key=value ...]
# EPOCHS may be '-', which leaves the number of epochs to CONFIG. RANK_TABLE_FILE may be '-' for none.
# train.batch_size is the number of rows of all ranks together. Environment variables:
#   CONFIG=FILE     settings (default: the project's configs/auto.yaml, which follows the number of rows)
#   HOSTFILE=FILE   hosts, in lines such as "host1 slots=2" (default: all ranks on this host)
#   MPIRUN=FILE     the mpirun to use
set -euo pipefail

if [ $# -lt 4 ]; then
    echo "usage: bash $0 RANK_SIZE EPOCHS DATASET RANK_TABLE_FILE [--name NAME] [section.key=value ...]" >&2
    exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
config=${CONFIG:-$project_dir/configs/auto.yaml}
rank_size=$1 epochs=$2 dataset=$3 rank_table=$4
shift 4
[[ $epochs == - ]] || set -- "$@" "train.epochs=$epochs"

exec "$python" -P -m app train --config "$config" --dataset "$dataset" --ranks "$rank_size" --hostfile "${HOSTFILE:-}" \
    --rank-table "$rank_table" "$@"
