#!/usr/bin/env bash
# Train on RANK_SIZE ranks; the run folders device_<rank>/ (NAME/, NAME.rank<rank>/) are made in the current folder.
#   bash run_auto_parallel_train.sh RANK_SIZE EPOCHS DATASET RANK_TABLE_FILE [--name NAME] [section.key=value ...]
# EPOCHS may be '-' (those of CONFIG), RANK_TABLE_FILE may be '-' (none). Environment: CONFIG=FILE (default:
# configs/auto.yaml of the project: settings by the number of rows), HOSTFILE=FILE (lines like "host1 slots=2"; default:
# all ranks on this host), MPIRUN=FILE. train.batch_size is that of all ranks together.
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
