"""The modules that a bundle carries."""

from app.scoring.trained.bundle_code import CODE_ROOTS, PROJECT, code_files
from benchmarks.house import code_lines


def test_a_bundle_carries_what_scores_and_nothing_else():
    files = code_files(CODE_ROOTS)
    packages = {"/".join(path.relative_to(PROJECT).parts[:2]) for path in files}
    assert packages >= {"app/scoring", "data_prep/encoding", "data_prep/kernels", "data_prep/raw_log"}
    assert not [path for path in files if "trained" in path.parts]
    others = {"config", "distributed", "model", "run", "serving", "training"}
    assert not packages & {f"app/{name}" for name in others}
    assert not packages & {f"data_prep/{name}" for name in ("checks", "pipeline", "report", "sources", "statistics")}
    assert len(files) <= 63
    assert code_lines(files) < 8_450  # The code reads logs of every format.
