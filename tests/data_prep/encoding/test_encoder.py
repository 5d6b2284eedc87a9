"""The module that encodes rows. `kernels/test_third_voice.py` compares its rows with a plain reader's."""

import subprocess
import sys


def test_mindspore_is_not_imported():
    program = "import sys, data_prep.encoding.encoder; sys.exit('mindspore' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", program]).returncode == 0
