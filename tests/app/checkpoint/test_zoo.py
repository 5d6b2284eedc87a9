"""A `.ckpt` is read as MindSpore reads it, and refused by name where its bytes do not fit what it says of them."""

import re

import mindspore as ms
import ml_dtypes  # noqa: F401 (NumPy knows bfloat16 then)
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from mindspore.train.checkpoint_pb2 import Checkpoint
from safetensors.numpy import save_file

from app.checkpoint.zoo import _parameters, read_zoo_checkpoint
from app.tables.interface import DEEP, WIDE

GOOD = {
    "Wide_w": np.zeros((6, 1), np.float32),
    "V_l2": np.arange(12, dtype=np.float32).reshape(6, 2),
    "Wide_b": np.ones(1, np.float32),
    "dense_layer_1.weight": np.ones((4, 3), np.float32),
    "dense_layer_1.bias": np.ones(3, np.float32),
    "dense_layer_2.weight": np.ones((3, 1), np.float32),
    "dense_layer_2.bias": np.ones(1, np.float32),
}


def message(*parameters):
    """Parameters of (name, dims, type, content)."""
    saved = Checkpoint()
    for name, dims, kind, content in parameters:
        value = saved.value.add()
        value.tag = name
        value.tensor.dims.extend(dims)
        value.tensor.tensor_type = kind
        value.tensor.tensor_content = content
    return saved.SerializeToString()


def of_arrays(arrays):
    return [(name, array.shape, "Float32", array.tobytes()) for name, array in arrays.items()]


@pytest.fixture
def ckpt(tmp_path):
    def write(content):
        (tmp_path / "zoo.ckpt").write_bytes(content)
        return tmp_path / "zoo.ckpt"

    return write


def test_what_mindspore_writes_is_read_as_mindspore_reads_it(tmp_path):
    saved = {**GOOD, "step": np.array(3, np.int32), "half": np.ones((2, 2), np.float16), "flag": np.array([True])}
    path = tmp_path / "zoo.ckpt"
    ms.save_checkpoint([{"name": n, "data": ms.Tensor(a)} for n, a in saved.items()], str(path), crc_check=True)
    expected = {name: parameter.asnumpy() for name, parameter in ms.load_checkpoint(str(path)).items()}
    found = _parameters(path)
    assert expected.keys() - found.keys() == {"flag"}  # of no use here
    for name, array in found.items():
        assert array.dtype == expected[name].dtype
        np.testing.assert_array_equal(array, expected[name], strict=True)


@pytest.mark.parametrize("ending", ["ckpt", "safetensors"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_a_model_of_any_dtype_and_format_is_read(tmp_path, ending, dtype):
    arrays = {f"network.{name}": values.astype(dtype) for name, values in GOOD.items()}
    path = tmp_path / f"zoo.{ending}"
    if ending == "safetensors":
        save_file(arrays, path)
    else:
        kind = {"bfloat16": "BFloat16", "float16": "Float16", "float32": "Float32"}[dtype]
        path.write_bytes(message(*((name, array.shape, kind, array.tobytes()) for name, array in arrays.items())))
    state = read_zoo_checkpoint(path)
    np.testing.assert_array_equal(state.tables[DEEP].arrays["rows"], GOOD["V_l2"], strict=True)
    assert {array.dtype for array in state.dense.values()} == {np.dtype(np.float32)}
    path.write_bytes(b"no checkpoint")
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))} is no .* that can be read"):
        read_zoo_checkpoint(path)


def test_safetensors_of_mindspore_are_read_and_encryption_is_named(tmp_path):
    parameters = [{"name": name, "data": ms.Tensor(array)} for name, array in GOOD.items()]
    ms.save_checkpoint(parameters, str(tmp_path / "zoo"), format="safetensors")
    assert read_zoo_checkpoint(tmp_path / "zoo.safetensors").dense["wide.bias"] == 2
    ms.save_checkpoint(parameters, str(tmp_path / "secret.ckpt"), enc_key=b"0123456789abcdef")
    with pytest.raises(ValueError, match=r"secret.ckpt is an encrypted checkpoint.*without enc_key"):
        read_zoo_checkpoint(tmp_path / "secret.ckpt")


def test_pieces_of_a_large_array_are_joined(ckpt):
    rows = GOOD["V_l2"]
    pieces = [("V_l2", rows.shape, "Float32", piece.tobytes()) for piece in np.split(rows, 3)]
    state = read_zoo_checkpoint(ckpt(message(*pieces, *of_arrays({n: a for n, a in GOOD.items() if n != "V_l2"}))))
    np.testing.assert_array_equal(state.tables[DEEP].arrays["rows"], rows)
    assert state.tables[WIDE].row_ids.size == 6
    assert state.dense["wide.bias"] == 2


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (("V_l2", (6, 3), "Float32", bytes(48)), r"'V_l2' has shape \[6, 3\] of 4 bytes a value, and 48 bytes"),
        (("V_l2", (-6, -2), "Float32", bytes(48)), r"'V_l2' has shape \[-6, -2\]"),
        (("V_l2", (2**40, 2**40), "Float32", bytes(48)), "'V_l2' has shape"),
        (("V_l2", (0, 2**62), "Float32", b""), "'V_l2' has shape"),
        (("V_l2", (1,) * 65, "Float32", bytes(4)), "'V_l2' has shape"),  # NumPy has 64 dimensions at most
        (("V_l2", (12,), "Float32", bytes(47)), "'V_l2' has shape .* and 47 bytes"),
        (("V_l2", (12,), "Float32", bytes(48)), r"'V_l2' has shape \[12\], expected \[rows, width\]"),
        (("Wide_b", (2,), "Float32", bytes(8)), r"'Wide_b' has shape \[2\], expected one value"),
    ],
)
def test_a_shape_that_does_not_fit_is_named_by_file_and_parameter(ckpt, wrong, said):
    path = ckpt(message(wrong, *of_arrays({n: a for n, a in GOOD.items() if n != wrong[0]})))
    with pytest.raises(ValueError, match=f"^{re.escape(str(path))}.*parameter {said}"):
        read_zoo_checkpoint(path)


def test_names_that_come_again_and_pieces_that_differ_are_refused(ckpt):
    parameters = of_arrays(GOOD)
    with pytest.raises(ValueError, match="parameter 'Wide_w' is there twice"):
        read_zoo_checkpoint(ckpt(message(*parameters, parameters[0])))
    with pytest.raises(ValueError, match="parameter 'V_l2' has pieces of several shapes or dtypes"):
        read_zoo_checkpoint(ckpt(message(("V_l2", (6, 2), "Float32", b""), ("V_l2", (6, 3), "Float32", b""))))


def test_a_name_that_is_no_text_is_refused(ckpt):
    path = ckpt(message(*of_arrays(GOOD)).replace(b"V_l2", b"V_l\xff"))
    with pytest.raises(ValueError, match=rf"^{re.escape(str(path))}(: the parameter name| is no Mind).*(utf|UTF)-8"):
        read_zoo_checkpoint(path)


@given(st.data())
@settings(deadline=None, max_examples=300)
def test_any_bytes_are_a_model_or_an_error(tmp_path_factory, data):
    """A good file with some bytes changed, or cut short."""
    content = bytearray(message(*of_arrays(GOOD)))
    for _ in range(data.draw(st.integers(1, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.one_of(st.just(len(content)), st.integers(0, len(content))))
    path = tmp_path_factory.getbasetemp() / "any.ckpt"
    path.write_bytes(content[:cut])
    try:
        found = _parameters(path)
    except ValueError as error:
        assert str(error).startswith(str(path))
    else:
        assert sum(array.nbytes for array in found.values()) <= cut
    try:
        read_zoo_checkpoint(path)
    except ValueError as error:
        assert str(error).startswith(str(path))
