#!/usr/bin/env bash
# Try versions of MindSpore other than the pinned one: `make matrix`, or bash scripts/matrix.sh [VERSION ...]
# Each version is installed into a copy of .venv under WORK. Each step of the main path then runs with it on a small
# synthetic log. The result is a table in Markdown: "yes", or the last line that a failed step wrote. The logs stay in WORK.
set -uo pipefail

source "$(dirname "${BASH_SOURCE[0]}")/common.sh"
[ $# -gt 0 ] || set -- 2.8.0 2.9.0 2.10.0
work=$(realpath -m "${WORK:-$project_dir/build/matrix}")
names=(preprocess train graph stock ranks servers evaluate export predict online)
launch="bash $project_dir/scripts/run_auto_parallel_train.sh"
declare -A steps=(
    [preprocess]='"$python" -P -m data_prep prepare log.txt prepared --config "$config" --overwrite'
    [train]="$launch 1 1 prepared -"
    [graph]="$launch 1 1 prepared - --name graph model.batch_norm=true"
    [stock]="$launch 1 1 prepared - --name stock tables.backend=stock"
    [ranks]="$launch 2 1 prepared - --name ranks"
    [servers]="bash $project_dir/scripts/run_parameter_server_train.sh 1 1 1 prepared --name servers"
    [evaluate]='"$python" -P -m app evaluate --run graph'
    [export]='"$python" -P -m app export device_0 bundle --overwrite'
    [predict]='"$python" -P -m app predict bundle log.txt scores.csv'
    [online]='"$python" -P -m app online parts --from device_0 --dataset prepared --serve served --once'
)
export CONFIG=$project_dir/configs/tiny.yaml
config=$CONFIG

declare -A found
for version in "$@"; do
    folder=$work/$version
    rm -rf "$folder" && mkdir -p "$folder/parts"
    cp -al "$project_dir/.venv" "$folder/venv"
    export PYTHON=$folder/venv/bin/python python=$folder/venv/bin/python
    if ! "$python" -m pip install --quiet --disable-pip-version-check --no-deps "mindspore==$version" > "$folder/pip.log" 2>&1; then
        echo "error: MindSpore $version cannot be installed: $(tail -n 1 "$folder/pip.log")" >&2
        exit 1
    fi
    cd "$folder"
    "$python" -P -m data_prep synthesize log.txt --rows 20000 --seed 1 > /dev/null 2>&1
    "$python" -P -m data_prep synthesize part.txt --rows 2000 --seed 2 > /dev/null 2>&1 && mv part.txt parts/
    for name in "${names[@]}"; do
        if timeout 600 bash -c "python='$python' config='$config'; ${steps[$name]}" > "$name.log" 2>&1; then
            found[$version,$name]=yes
        else
            found[$version,$name]="no: $(grep -v '^ *$' "$name.log" | tail -n 1 | cut -c 1-200)"
        fi
        echo "MindSpore $version, $name: ${found[$version,$name]}" >&2
    done
    for run in device_0 graph stock ranks; do
        found[$version,"last loss of $run"]=$(tail -n 1 "$run/loss.log" 2> /dev/null | grep -o 'deep_loss is .*')
    done
    rm -rf "$folder/venv"
done

echo "| |$(printf ' %s |' "$@")"
echo "|---|$(printf -- '---|%.0s' "$@")"
for name in "${names[@]}" "last loss of "{device_0,graph,stock,ranks}; do
    row="| $name |"
    for version in "$@"; do row+=" ${found[$version,$name]//|/ } |"; done
    echo "$row"
done
