"""Score with the bundle beside this file in Triton's Python backend. This was never run in a Triton server."""

import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import triton_python_backend_utils as pb_utils

BUNDLE = Path(__file__).with_name("bundle")
sys.path.append(str(BUNDLE / "code"))
from wide_deep_bundle.app.scoring.predictor import Predictor  # noqa: E402


class TritonPythonModel:
    """Answers requests with one text input of n cells per field (empty: missing) and the output score [n]."""

    @staticmethod
    def auto_complete_config(config: Any) -> Any:
        for name, _ in Predictor.open(BUNDLE).log_format.fields:
            config.add_input({"name": name, "data_type": "TYPE_STRING", "dims": [-1]})
        config.add_output({"name": "score", "data_type": "TYPE_FP32", "dims": [-1]})
        return config

    def initialize(self, args: dict[str, str]) -> None:
        self.predictor = Predictor.open(BUNDLE)

    def execute(self, requests: list[Any]) -> list[Any]:
        return [self.answer(request) for request in requests]

    def answer(self, request: Any) -> Any:
        cells = {}
        try:
            for name, _ in self.predictor.log_format.fields:
                texts = pb_utils.get_input_tensor_by_name(request, name).as_numpy().ravel()
                cells[name] = pa.array([text.decode() or None for text in texts], pa.string())
            scores = self.predictor.score(pa.table(cells))
        except (ValueError, TypeError) as error:  # A wrong row fails its own request, not the others of the batch.
            return pb_utils.InferenceResponse(output_tensors=[], error=pb_utils.TritonError(str(error)))
        return pb_utils.InferenceResponse(output_tensors=[pb_utils.Tensor("score", scores)])
