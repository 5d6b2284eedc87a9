"""The peer of benchmarks.scoring: a log scored by PyTorch and pandas as users write it, with no code of this project.

    python -m benchmarks.scoring.pytorch_pandas LOG VOCABULARY.parquet [--one-core]  # the best of three times

pandas reads chunks of the log, a dictionary maps each column's values to ids, PyTorch looks rows up and runs the tower.
"""

from __future__ import annotations

import json
import sys
import time

import numpy as np
import pandas as pd
import pyarrow.parquet as pq
import torch

from benchmarks.peers.torch_wide_deep import CATEGORIES, INTEGERS, WideDeep

CHUNK_ROWS = 10_000


def main() -> None:
    log, vocabulary_path, *words = sys.argv[1:]
    if words:
        torch.set_num_threads(1)
    vocabulary = pq.read_table(vocabulary_path).to_pandas()
    groups = vocabulary.groupby("field", observed=True)
    maps = {name: dict(zip(part["value"], part["id"], strict=True)) for name, part in groups}
    model = WideDeep(int(vocabulary["id"].max()) + 1).eval()
    seconds, num_rows = [], 0
    for _ in range(3 if words else 1):
        start, num_rows = time.process_time(), 0
        scores = []
        names, types = [*INTEGERS, *CATEGORIES], dict.fromkeys(CATEGORIES, str)
        with pd.read_csv(log, sep="\t", header=None, names=names, dtype=types, chunksize=CHUNK_ROWS) as chunks:
            for chunk in chunks:
                numbers = chunk[INTEGERS]
                missing = numbers.isna().to_numpy(np.float32)
                filled = numbers.fillna(0).to_numpy(np.float32)
                numeric = np.concatenate([np.sign(filled) * np.log1p(np.abs(filled)), missing], axis=1)
                ids = np.stack(
                    [chunk[name].fillna("").map(maps[name]).fillna(0).to_numpy(np.int64) for name in CATEGORIES], axis=1
                )
                with torch.inference_mode():
                    scores.append(model(torch.from_numpy(ids), torch.from_numpy(numeric)).numpy())
                num_rows += len(chunk)
        pd.DataFrame({"score": np.concatenate(scores)}).to_csv(log + ".scores.csv")
        seconds.append(time.process_time() - start)
    print(
        json.dumps({"rows_per_second": num_rows / min(seconds), "torch": torch.__version__, "pandas": pd.__version__})
    )


if __name__ == "__main__":
    main()
