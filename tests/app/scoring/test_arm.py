"""The log kernels and the host tables give on Arm, under emulation, what they give on this machine."""

import shutil

import numpy as np
import pytest

from tests.arm.emulated import ArmPython
from tests.arm.vectors import computed


@pytest.fixture(scope="module")
def arm(tmp_path_factory, project):
    folder = tmp_path_factory.mktemp("arm")
    yield ArmPython(folder, project)
    shutil.rmtree(folder)


def test_log_kernels_and_tables_give_the_same_bits(arm, project, tmp_path):
    arm.install("numpy", "pyarrow", "ml-dtypes", "xxhash")
    libraries = arm.native("data_prep/kernels") | arm.native("app/tables/native")
    arm.run("-m", "tests.arm.vectors", tmp_path / "arm.npz", path=project, environment=libraries, cwd=project)
    found, expected = np.load(tmp_path / "arm.npz"), computed()
    assert found.files == [*expected]
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)
