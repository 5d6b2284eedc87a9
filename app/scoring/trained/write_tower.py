"""Build the ONNX models of a bundle: the tower together with the wide part's sum, from a checkpoint's parameters, and
on request a model of tables and tower, which computes scores from ids and numbers in any onnxruntime.

    logit = Σ_f wide row_f + numeric · w + b + tower([deep row_f …, numeric, vectors])

For a calibrated bundle, the result is slope · logit + intercept.

The numeric fields' rows are merged into the first layer's matrix, and batch normalization into matrices and biases, so
that the ONNX model needs no operators for them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from app.evaluation.calibration import Calibration
from app.scoring.bundle_folder import ID_MODEL, ID_TABLE
from app.scoring.bundle_model import TOWER
from app.scoring.bundle_tables import lookup
from app.scoring.bundle_writer import WRITTEN_ROWS
from app.scoring.predictor import Predictor
from app.tables.fields import field_of_position
from data_prep.encoding.from_values import cells_to_chunk

if TYPE_CHECKING:
    import onnx

# Versions of ONNX's operators (opset) and file format (IR). Opset 20 is the first with the operator Gelu, and
# onnxruntime 1.16 and later can read IR version 9.
OPSET, IR_VERSION = 20, 9
# If the weights take more than this many bytes, they are written to a second file, because protobuf cannot read files
# above 2 GiB.
MOST_BYTES = 2_000_000_000
NORM_EPSILON = 1e-5  # Epsilon of batch normalization. It must equal the constant in app/model/dense_layer.py.
# ONNX operator of each activation and the operator's attributes. Silu is missing, because `build_tower` composes it of
# two operators. MindSpore's nn.GELU is the tanh approximation.
ACTIVATIONS: dict[str, tuple[str, dict[str, Any]]] = {
    "relu": ("Relu", {}),
    "gelu": ("Gelu", {"approximate": "tanh"}),
    "leaky_relu": ("LeakyRelu", {"alpha": 0.01}),
    "tanh": ("Tanh", {}),
    "sigmoid": ("Sigmoid", {}),
}
# Assumed rounding error of a float32 sum, relative to the square root of the sum of its squared terms. See
# `rounding_bound`.
ROUNDING = 2.0**-20
# Name, in checkpoints, of the part of the first layer's matrix by which the K vector inputs are multiplied, [K, H].
VECTOR_MATRIX = "tower.vector_matrix"


def write_tower(
    folder: Path, dense: Mapping[str, np.ndarray], activation: str, calibration: Calibration | None = None
) -> None:
    """Write tower.onnx into `folder` from the dense arrays of a checkpoint. If the weights take more than MOST_BYTES,
    write them to tower.onnx.data beside it.
    """
    import onnx

    model = build_tower(dense, activation, calibration)
    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    path = folder / TOWER
    if size <= MOST_BYTES:
        onnx.checker.check_model(model)
        onnx.save_model(model, path)
    else:
        data = f"{TOWER}.data"
        onnx.save_model(model, path, save_as_external_data=True, location=data, size_threshold=1024)
        onnx.checker.check_model(str(path))


def build_tower(
    dense: Mapping[str, np.ndarray], activation: str, calibration: Calibration | None = None
) -> onnx.ModelProto:
    """Return the ONNX model of the tower together with the wide part's sum.

    Its inputs are deep_rows [n, C * D], wide_rows [n] (summed over fields), numeric [n, N] and, only if the model has
    vectors, vectors [n, K]. Its output is logits [n]. All are float32.
    """
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[onnx.NodeProto] = []

    def add(operator: str, inputs: list[str], output: str, **attributes: Any) -> str:
        nodes.append(helper.make_node(operator, inputs, [output], **attributes))
        return output

    layers, last = folded_layers(dense)
    sizes = {"numeric": len(dense.get("wide.numeric_weight", ())), "vectors": len(dense.get(VECTOR_MATRIX, ()))}
    weights = {f"matrix_{i}": matrix for i, (matrix, _) in enumerate(layers)}
    weights |= {f"bias_{i}": bias for i, (_, bias) in enumerate(layers)}
    weights |= {"last_matrix": last, "bias": dense["wide.bias"].reshape(1), "flat": np.array([-1], np.int64)}
    hidden = "deep_rows"
    if numbers := [name for name, size in sizes.items() if size]:
        hidden = add("Concat", ["deep_rows", *numbers], "inputs", axis=1)
    for i in range(len(layers)):
        sums = add("Gemm", [hidden, f"matrix_{i}", f"bias_{i}"], f"sums_{i}")
        hidden = f"hidden_{i}"
        if activation == "silu":
            add("Mul", [sums, add("Sigmoid", [sums], f"{hidden}_gate")], hidden)
        else:
            operator, attributes = ACTIVATIONS[activation]
            add(operator, [sums], hidden, **attributes)
    column = add("MatMul", [hidden, "last_matrix"], "tower_column")
    if sizes["numeric"]:
        weights["numeric_weight"] = dense["wide.numeric_weight"]
        column = add("Add", [column, add("MatMul", ["numeric", "numeric_weight"], "numeric_column")], "column")
    logits = add("Add", [add("Reshape", [column, "flat"], "tower_logits"), "wide_rows"], "without_bias")
    logits = add("Add", [logits, "bias"], "logits" if calibration is None else "uncalibrated")
    if calibration is not None:
        weights |= {name: np.array([getattr(calibration, name)], np.float32) for name in ("slope", "intercept")}
        add("Add", [add("Mul", [logits, "slope"], "scaled"), "intercept"], "logits")
    shapes = {"deep_rows": [len(layers[0][0]) - sum(sizes.values())], "wide_rows": [], "numeric": [sizes["numeric"]]}
    shapes |= {"vectors": [sizes["vectors"]]} if sizes["vectors"] else {}
    graph = helper.make_graph(
        nodes,
        "wide_deep",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", *shape]) for name, shape in shapes.items()],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["n"])],
        [numpy_helper.from_array(np.ascontiguousarray(array), name) for name, array in weights.items()],
    )
    opset = helper.make_opsetid("", OPSET)
    return helper.make_model(graph, opset_imports=[opset], ir_version=IR_VERSION, producer_name="wide-deep")


def folded_layers(dense: Mapping[str, np.ndarray]) -> tuple[list[tuple[np.ndarray, np.ndarray]], np.ndarray]:
    """Return (matrix, bias) of each hidden layer and the last layer's matrix [H, 1], in float32. The numeric fields'
    rows and batch normalization are merged into the matrices and biases, in float64.

    The rows of the first matrix belong to the inputs in this order: deep rows, numeric fields, vectors.
    """
    num_hidden = sum(name.startswith("tower.bias_") for name in dense)
    layers = []
    for i in range(num_hidden):
        matrix, bias = (dense[f"tower.{name}_{i}"].astype(np.float64) for name in ("matrix", "bias"))
        if i == 0 and "tower.numeric_rows" in dense:
            # With x_f the number in numeric field f, E_f the field's embedding row and W_f its matrix, the field adds
            # x_f · (E_f · W_f) to the layer's sums. So E_f · W_f becomes one more row of the matrix, and x_f one more
            # input.
            rows, matrices = dense["tower.numeric_rows"], dense["tower.numeric_matrix"]
            folded = np.einsum("nd,ndh->nh", rows.astype(np.float64), matrices.astype(np.float64))
            matrix = np.concatenate([matrix, folded])
        if i == 0 and VECTOR_MATRIX in dense:
            matrix = np.concatenate([matrix, dense[VECTOR_MATRIX]])
        if f"tower.norm_scale_{i}" in dense:
            names = ("norm_scale", "norm_shift", "running_mean", "running_variance")
            scale, shift, mean, variance = (dense[f"tower.{name}_{i}"].astype(np.float64).reshape(-1) for name in names)
            factor = scale / np.sqrt(variance + NORM_EPSILON)
            matrix, bias = matrix * factor, (bias - mean) * factor + shift
        layers.append((matrix.astype(np.float32), bias.astype(np.float32)))
    return layers, dense[f"tower.matrix_{num_hidden}"]


def rounding_bound(
    dense: Mapping[str, np.ndarray],
    deep_rows: np.ndarray,
    wide_rows: np.ndarray,
    numeric: np.ndarray,
    vectors: np.ndarray,
) -> np.ndarray:
    """Return for each of n rows a bound on the difference between two correct float32 computations of its logit, [n].

    `deep_rows` are the deep rows side by side, [n, C * D], and `wide_rows` [n, C] the single wide rows, not their sum.
    `numeric` [n, N] and `vectors` [n, K] are those of the encoded rows.

    A float32 sum of n terms has an error of about √n · 2⁻²⁴ relative to the root of its terms' sum of squares, because
    rounding errors behave like random steps (Higham & Mary, "A New Approach to Probabilistic Rounding Error Analysis",
    2019). `ROUNDING` corresponds to n = 256, because longer sums are computed in blocks. Terms and errors are
    propagated through the layers as sums of squares, as if their signs were random. No activation is much steeper than
    1. If the terms have the same sign, as after a ReLU, their sum exceeds the root of their squares. The error is then
    relative to the sum itself, which is computed as if each activation were ReLU.
    """
    layers, last = folded_layers(dense)
    values = np.concatenate([deep_rows, numeric, vectors], axis=1).astype(np.float64)
    squares, errors = np.square(values), np.zeros_like(values)
    for matrix, bias in (*layers, (last, dense["wide.bias"])):
        weights = np.square(matrix, dtype=np.float64)
        sums = values @ matrix + bias
        squares = squares @ weights + np.square(bias, dtype=np.float64)
        errors = errors @ weights + ROUNDING**2 * np.maximum(squares, np.square(sums))
        values = np.maximum(sums, 0)
    terms = wide_rows.astype(np.float64)
    if "wide.numeric_weight" in dense:
        terms = np.concatenate([terms, numeric * dense["wide.numeric_weight"][:, 0]], axis=1)
    logits = sums[:, 0] + terms.sum(axis=1)
    bound: np.ndarray = np.sqrt(
        errors[:, 0] + ROUNDING**2 * np.maximum(np.square(terms).sum(axis=1), np.square(logits))
    )
    return bound


def write_id_model(predictor: Predictor) -> None:
    """Write ids.onnx and ids.onnx.data into the folder of the bundle that `predictor` has opened.

    The inputs are `ids` int64 [n, P], `numbers` [n, N] and, if the model has vectors, `vectors` [n, K]. A negative id
    is a missing value, or fills a list after its last value. An id that the vocabulary does not have stands for an
    out-of-vocabulary value. A field with the same value in all rows to score (`serve_as`) always gets this value. The
    outputs are `logits` [n] and `scores` [n], their sigmoid.
    """
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    nodes: list[onnx.NodeProto] = []
    constants: list[onnx.TensorProto] = []

    def add(operator: str, *inputs: str | np.ndarray | np.generic, output: str = "", **attributes: Any) -> str:
        """Add a node, and its inputs that are arrays as constants. Return the name of its output."""
        names = [each if isinstance(each, str) else f"constant_{len(nodes)}_{i}" for i, each in enumerate(inputs)]
        constants.extend(
            numpy_helper.from_array(np.asarray(each), name)
            for each, name in zip(inputs, names, strict=True)
            if not isinstance(each, str)
        )
        nodes.append(helper.make_node(operator, names, [output or f"value_{len(nodes)}"], **attributes))
        return str(nodes[-1].output[0])

    schema, fields, served = predictor.schema, predictor.fields, predictor.log_format.serve_as
    field_of, width, zero = field_of_position(fields), predictor.tables[0].spec.width, np.int64(0)
    # A row in which all cells are missing, except those of fields that get the same value in all rows.
    _, blank = predictor.encoder.encode(cells_to_chunk({}, predictor.log_format))
    are_served = np.array([column.source in served for column in predictor.encoder.options.categorical_columns])
    unknown = np.array([field.oov_ids[0] for field in schema.categorical], np.int64)
    is_blank = add("Or", add("Less", "ids", zero), are_served[field_of])
    ids = add("Where", is_blank, blank.ids[0].astype(np.int64), "ids")
    ids = add("Where", add("Less", ids, np.int64(schema.vocabulary_size)), ids, unknown[field_of])
    # Each position has the factor 1, or 1 / (number of values) in a list that is averaged. The filling of a list has
    # the factor 0, and looks up row 0.
    present = add("Cast", add("GreaterOrEqual", ids, zero), to=TensorProto.FLOAT)
    same_mean = (field_of[:, None] == field_of) & np.array([field.mean for field in fields])[field_of]
    factors = add("Div", present, add("Max", add("MatMul", present, same_mean.astype(np.float32)), np.float32(1)))
    rows = add("Mul", add("Gather", "table", add("Max", ids, zero)), add("Unsqueeze", factors, np.array([-1])))
    # If the model has no deep fields, the input of its tower is one embedding row of zeros.
    pools = [field_of == place for place, field in enumerate(fields) if field.deep] or [field_of < 0]
    deep = add("MatMul", np.array(pools, np.float32), add("Slice", rows, *np.array([[0], [width], [2]])))
    add("Reshape", deep, np.array([-1, len(pools) * width]), output="deep_rows")
    wide = add("Gather", rows, np.int64(width), axis=2)
    add("MatMul", wide, np.array([field.wide for field in fields], np.float32)[field_of], output="wide_rows")
    are_constant = np.array([field.source in served for field in schema.numeric], np.bool_)
    add("Where", are_constant, blank.numeric[0], "numbers", output="numeric")

    model = onnx.load(predictor.folder / TOWER)
    graph = model.graph
    nodes += [*graph.node, helper.make_node("Sigmoid", ["logits"], ["scores"])]
    shapes = {"ids": (TensorProto.INT64, len(field_of)), "numbers": (TensorProto.FLOAT, schema.num_numeric)}
    inputs = [helper.make_tensor_value_info(name, kind, ["n", size]) for name, (kind, size) in shapes.items()]
    inputs += [value for value in graph.input if value.name == "vectors"]
    outputs = [*graph.output, helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["n"])]
    initializers = [*graph.initializer, *constants, _write_table(predictor)]
    graph.CopyFrom(helper.make_graph(nodes, graph.name, inputs, outputs, initializers))
    (predictor.folder / ID_MODEL).write_bytes(model.SerializeToString())
    onnx.checker.check_model(str(predictor.folder / ID_MODEL))


def _write_table(predictor: Predictor) -> onnx.TensorProto:
    """Write the deep and the wide row of each id to ids.onnx.data, float32 [V, D + 1]. Return a reference to it."""
    from onnx import TensorProto

    num_ids, width = predictor.schema.vocabulary_size, predictor.tables[0].spec.width
    with (predictor.folder / ID_TABLE).open("wb") as file:
        for first in range(0, num_ids, WRITTEN_ROWS):
            ids = np.arange(first, min(first + WRITTEN_ROWS, num_ids))
            file.write(np.concatenate(lookup(predictor.tables, ids[:, None]), axis=1).tobytes())
    of_type, place = TensorProto.FLOAT, TensorProto.EXTERNAL
    table = TensorProto(name="table", data_type=of_type, dims=[num_ids, width + 1], data_location=place)
    table.external_data.add(key="location", value=ID_TABLE)
    return table
