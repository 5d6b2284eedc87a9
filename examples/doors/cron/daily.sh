#!/usr/bin/env bash
# The daily cycle: add a file of the log to the parts, train on it, publish the new model, and check what was published.
#
#     bash daily.sh FILE          in a folder with the run device_0; writes parts/, online/ and bundles/
#
# Exit status: 0  the new model is published and checked
#              5  this part or an earlier one is held aside, or the new model is not published
#              65 an earlier part has the name of FILE, and other content
#              66 FILE is not there yet: run the same command again later
#              75 another cycle is still running
#              others: those of `python -m app online`; run the same command again when the cause is removed
set -euo pipefail

file=${1:?"usage: daily.sh FILE"}
python=${PYTHON:-.venv/bin/python}
name=$(basename "$file")

exec 9> daily.lock
flock -n 9 || { echo "daily: another cycle is still running" >&2; exit 75; }
[[ -f $file ]] || { echo "daily: $file is not there yet" >&2; exit 66; }

# A part must be complete when it gets its name. The online trainer ignores names that begin with a dot.
mkdir -p parts
if [[ ! -e parts/$name ]]; then
    cp -p "$file" "parts/.$name"
    mv "parts/.$name" "parts/$name"
elif ! cmp -s "$file" "parts/$name"; then
    echo "daily: parts/$name is there with other content than $file; give each day's file a name of its own" >&2
    exit 65
fi

status=0
"$python" -m app online parts --from device_0 --serve bundles --once || status=$?
# The status tells which parts are held aside, and why a model is not published.
((status == 0)) || { "$python" -m app online status || true; exit $status; }
newest=$(find bundles -maxdepth 1 -name 'step-*' | sort | tail -n 1)
"$python" -m app bundle verify "$newest"
echo "daily: published $newest"
