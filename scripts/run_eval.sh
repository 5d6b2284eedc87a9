#!/usr/bin/env bash
# Evaluate the best checkpoint of the run in ./device_0 on the test rows.
#   bash run_eval.sh [--run DIR] [--checkpoint DIR] [--dataset DIR] [--split test] [--ranks N [--hostfile FILE]]
set -euo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
exec "$python" -P -m app evaluate "$@"
