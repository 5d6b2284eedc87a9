"""Write a bundle's tables and tower as one ONNX model, which computes scores from ids and numbers in any onnxruntime.

The ids and numbers are those of the rows of a prepared folder. The table is in a file beside the model, which
onnxruntime maps into memory.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from app.scoring.bundle_folder import ID_MODEL, ID_TABLE
from app.scoring.bundle_tables import lookup
from app.scoring.bundle_writer import WRITTEN_ROWS
from app.scoring.onnx_tower import TOWER
from app.scoring.predictor import Predictor
from app.tables.fields import field_of_position
from data_prep.encoding.from_values import cells_to_chunk

if TYPE_CHECKING:
    import onnx


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
