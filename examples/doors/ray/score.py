"""Score a Parquet folder with a bundle on Ray: score.py BUNDLE INPUT OUTPUT. INPUT has a column `id` to join by."""

import sys

import pyarrow as pa
import ray.data


class Scorer:
    """Opens the bundle once in each of Ray's actors, and scores Arrow batches there."""

    def __init__(self, path: str) -> None:
        sys.path.append(f"{path}/code")
        from wide_deep_bundle.app.scoring.predictor import Predictor

        self.predictor = Predictor.open(path)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Return a new table, because batches are read-only. A batch without rows gives the same columns."""
        scores = pa.array(self.predictor.score(rows), pa.float32())
        return pa.table({"id": rows["id"], "score": scores})


def scored(rows: ray.data.Dataset, bundle: str) -> ray.data.Dataset:
    """Return the ids and scores of `rows`, computed by `size` actors."""
    return rows.map_batches(
        Scorer,
        fn_constructor_args=[bundle],
        batch_format="pyarrow",
        batch_size=10_000,
        compute=ray.data.ActorPoolStrategy(size=1),
        zero_copy_batch=True,
    )


if __name__ == "__main__":
    bundle, source, target = sys.argv[1:]
    scored(ray.data.read_parquet(source), bundle).write_parquet(target)
