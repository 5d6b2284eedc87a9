"""Compute the logits of a bundle's golden rows with MindSpore: python score.py BUNDLE"""

import sys

import mindspore as ms
import numpy as np
from mindspore import Tensor, nn

from app.scoring.bundle_model import golden_rows
from app.scoring.predictor import Predictor

predictor = Predictor.open(sys.argv[1])
rows = predictor.score_chunk(predictor.chunk_of(golden_rows(predictor))).encoded
assert rows is not None
deep_rows, wide_rows = predictor.tower_inputs(rows.ids)
inputs = np.concatenate([deep_rows, rows.numeric, rows.vectors], axis=1)

tower = nn.GraphCell(ms.load(str(predictor.folder / "tower.mindir")))
logits = tower(Tensor(inputs), Tensor(wide_rows)).asnumpy()
print("\n".join(map(str, logits.tolist())))
