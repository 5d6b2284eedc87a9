#!/usr/bin/env bash
# pyarrow 26.0.1 names no dependency on NumPy, so pip installs it beside NumPy 1.26.4 and `pip check` finds no conflict. But
# `import pyarrow` raises ImportError if the installed NumPy is older than 2. pyarrow 25.0.1 works with both.
set -euo pipefail
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
cd "$work"
cat > program.py <<'PROGRAM'
import sys
from importlib.metadata import requires

import numpy as np

try:
    import pyarrow as pa

    found = pa.array(np.arange(3)).to_numpy().tolist()
except ImportError as error:
    found = str(error)
print(" ".join(sys.argv[1:]), found)
if sys.argv[1:] == ["pyarrow==26.0.1", "numpy==1.26.4"]:
    assert found == "pyarrow requires NumPy 2.0 or newer, found 1.26.4" and not requires("pyarrow")
else:
    assert found == [0, 1, 2]
PROGRAM
for packages in "pyarrow==26.0.1 numpy==2.4.6" "pyarrow==26.0.1 numpy==1.26.4" \
    "pyarrow==25.0.1 numpy==2.4.6" "pyarrow==25.0.1 numpy==1.26.4"; do
    venv/bin/pip install --quiet --disable-pip-version-check $packages
    venv/bin/pip check
    venv/bin/python program.py $packages
done
