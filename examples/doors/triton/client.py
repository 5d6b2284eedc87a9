"""Score the rows of a Parquet file with NVIDIA's client, and print a score per line: client.py ADDRESS MODEL FILE."""

import sys

import numpy as np
import pyarrow.parquet as pq
import tritonclient.http as triton

MOST_ROWS = 5_000  # The service takes at most --max-rows rows in a request, by default 10,000.

address, model, path = sys.argv[1:]
with triton.InferenceServerClient(address) as client:
    names = [tensor["name"] for tensor in client.get_model_metadata(model)["inputs"]]
    for batch in pq.ParquetFile(path).iter_batches(MOST_ROWS, columns=names):
        inputs = []
        for name in names:
            # Every field may be sent as text. An empty text is a missing value.
            texts = ["" if value is None else str(value) for value in batch[name].to_pylist()]
            inputs.append(triton.InferInput(name, [batch.num_rows], "BYTES"))
            inputs[-1].set_data_from_numpy(np.array(texts, np.object_))
        print(*client.infer(model, inputs).as_numpy("score").tolist(), sep="\n")
    (statistics,) = client.get_inference_statistics(model)["model_stats"]
    print(statistics["inference_count"], "rows scored since the service began", file=sys.stderr)
