# Sourced by the other scripts: sets project_dir and python.
project_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
export PYTHONPATH="$project_dir${PYTHONPATH:+:$PYTHONPATH}"
python=${PYTHON:-$project_dir/.venv/bin/python}
if ! command -v "$python" > /dev/null; then
    echo "error: no Python at $python; run: make -C $project_dir setup" >&2
    exit 2
fi
