"""Commands on a model of native kernels start without MindSpore, whose import takes seconds."""

import sys

import pytest

from app.config import device
from app.config.device import DeviceOptions
from app.model.native_tower import LIBRARY
from tests.programs import run_python

COMMANDS = """
import sys
from app.__main__ import main

config, dataset = sys.argv[1:]
assert main(["plan", dataset, "--config", config]) == 0
assert main(["train", "--config", config, "--dataset", dataset]) == 0
assert main(["evaluate"]) == 0
assert main(["export", "device_0", "bundle"]) == 0
assert "mindspore" not in sys.modules
"""


def test_native_models_need_no_mindspore(project, tiny_dataset, tmp_path, command_environment):
    if not LIBRARY.is_available():
        pytest.skip("the dense layer is not built; run `make native`")
    config = project / "configs" / "tiny.yaml"
    run_python("-c", COMMANDS, config, tiny_dataset, cwd=tmp_path, env=command_environment)


@pytest.mark.parametrize(
    ("target", "has_file", "asks"),
    [("auto", False, False), ("auto", True, True), ("CPU", True, False), ("GPU", False, True)],
)
def test_mindspore_decides_where_accelerators_may_be(monkeypatch, tmp_path, target, has_file, asks):
    asked = []
    (tmp_path / "davinci0").touch()
    monkeypatch.delitem(sys.modules, "mindspore", raising=False)
    monkeypatch.setattr(device, "ACCELERATOR_FILES", (str(tmp_path / ("davinci*" if has_file else "nvidia*")),))
    monkeypatch.setattr(device, "select_device", lambda options: asked.append(options.target) or "GPU")
    assert device.runs_on_cpu(DeviceOptions(target=target)) is not asks
    assert asked == [target] * asks
