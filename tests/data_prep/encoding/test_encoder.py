"""The module that encodes rows. `kernels/test_third_voice.py` compares its rows with a plain reader's."""

from tests.programs import run_python


def test_mindspore_is_not_imported():
    run_python("-c", "import sys, data_prep.encoding.encoder; sys.exit('mindspore' in sys.modules)")
