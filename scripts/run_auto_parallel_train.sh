#!/usr/bin/env bash
# Train on RANK_SIZE ranks; the run's folders device_<rank>/ are made where this is started.
#   bash run_auto_parallel_train.sh RANK_SIZE EPOCHS DATASET RANK_TABLE_FILE [section.key=value ...]
# RANK_TABLE_FILE may be '-'. Settings: CONFIG=FILE (default: configs/criteo.yaml of the project).
set -euo pipefail

if [ $# -lt 4 ]; then
    echo "usage: bash $0 RANK_SIZE EPOCHS DATASET RANK_TABLE_FILE [section.key=value ...]" >&2
    exit 2
fi
source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
config=${CONFIG:-$project_dir/configs/criteo.yaml}
rank_size=$1 epochs=$2 dataset=$3 rank_table=$4
shift 4

exec "$python" -P -m app train --config "$config" --dataset "$dataset" --ranks "$rank_size" \
    --rank-table "$rank_table" "train.epochs=$epochs" "$@"
