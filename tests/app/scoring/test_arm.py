"""The native parts and a bundle give on Arm, under emulation, what they give on this machine."""

import shutil
import sys

import numpy as np
import pytest

from tests.arm.emulated import cross_compile, install_wheels, run_on_arm, skip_without_tools, unpack_python
from tests.programs import run_program

PACKAGES = ["numpy", "pyarrow", "ml-dtypes", "pyyaml", "xxhash", "onnxruntime"]
PACKAGES += ["flatbuffers", "protobuf", "packaging", "typing-extensions"]  # required by onnxruntime
FLOAT_TOLERANCE = 1e-6  # relative, for values that a mathematical function such as a root may round differently


@pytest.fixture(scope="module")
def arm(tmp_path_factory, project):
    """The folder of an Arm Python, and its path of modules."""
    skip_without_tools()
    folder = tmp_path_factory.mktemp("arm")
    root = unpack_python(folder)
    install_wheels(project, PACKAGES, folder / "packages")
    yield root, folder / "packages"
    shutil.rmtree(folder)


def test_native_parts_compute_the_same_on_arm(arm, project, tmp_path):
    root, packages = arm
    libraries = cross_compile(project)
    here, there = tmp_path / "here.npz", tmp_path / "arm.npz"
    run_program(sys.executable, "-m", "tests.arm.vectors", here, cwd=project)
    run_on_arm(root, "-m", "tests.arm.vectors", there, path=[project, packages], environment=libraries, cwd=project)
    expected, found = np.load(here), np.load(there)
    assert (str(found["machine"]), expected.files) == ("aarch64", found.files)
    for name in {*expected.files} - {"machine"}:
        if expected[name].dtype.kind == "f" and name.startswith("tables."):
            np.testing.assert_allclose(found[name], expected[name], rtol=FLOAT_TOLERANCE, atol=1e-9, err_msg=name)
        else:
            np.testing.assert_array_equal(found[name], expected[name], err_msg=name)


def test_a_bundle_scores_its_golden_rows_on_arm(arm, tiny_bundle):
    root, packages = arm
    code = tiny_bundle / "code"
    done = run_on_arm(
        root, "-m", "wide_deep_bundle.app.cli.bundle", "verify", ".", path=[code, packages], cwd=tiny_bundle
    )
    assert "golden" in done.stdout + done.stderr
