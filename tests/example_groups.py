"""Groups as an evaluation finds them: one value with an AUC of 0.75, and one of a single class."""

import numpy as np

from app.evaluation.metrics import GroupStream, measure_groups
from app.evaluation.results import Groups


def example_groups(first_name="68fd1e64"):
    """Return the groups of the field C3, of which the value `first_name` has 70 rows and the missing one 30."""
    stream = GroupStream()
    # 50 rows without a click and 10 clicks are tied, 10 clicks rank above them, and 30 rows are of the other group.
    ids, logits, labels = (np.repeat(values, [50, 10, 10, 30]) for values in ([5, 5, 5, 9], [0, 0, 1, 0], [0, 1, 1, 0]))
    stream.add(ids, logits.astype(np.float32), labels)
    rows = stream.result()
    return Groups("C3", rows, measure_groups(rows), [first_name, "(missing)"])
