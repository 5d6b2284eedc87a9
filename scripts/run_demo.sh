#!/usr/bin/env bash
# Synthesize a log, prepare it, train, evaluate and compare with a baseline. Everything is written to DEMO_DIR.
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
demo_dir=${DEMO_DIR:-$project_dir/demo}
rows=${DEMO_ROWS:-400000}
epochs=${DEMO_EPOCHS:--}
config=$(realpath "${CONFIG:-$project_dir/configs/auto.yaml}")

mkdir -p "$demo_dir"
cd "$demo_dir"
echo "== a synthetic log of $rows rows"
"$python" -P -m data_prep synthesize log.txt --rows "$rows" --seed 1
echo "== preparing it"
"$python" -P -m data_prep prepare log.txt prepared --config "$config" --overwrite
echo "== training"
CONFIG=$config bash "$project_dir/scripts/run_auto_parallel_train.sh" 1 "$epochs" prepared - train.resume=never
echo "== evaluating"
"$python" -P -m app evaluate
echo "== logistic regression on the same rows"
"$python" -P -m app baseline prepared --run device_0
echo "== done: $demo_dir/device_0/report.html shows the training, $demo_dir/prepared/report.html the log"
echo "next: make export (a bundle to score with), make serve; for a log of your own: .venv/bin/python -m data_prep describe LOG"
