"""Logs of generated formats with bad cells: native and NumPy kernels give the same rows, counts, ids and files."""

import dataclasses
import os
import pickle

import numpy as np
import pytest

from data_prep.encoding.fit import fit_vocabulary
from data_prep.execution.prepared_folder import WORK_FOLDER
from data_prep.kernels import native
from data_prep.kernels.choose import choose_kernels
from data_prep.kernels.parsed import Chunk
from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.count import ChunkCounter
from data_prep.pipeline.first_pass import numeric_fields
from data_prep.pipeline.prepare import prepare
from data_prep.pipeline.second_pass import Encoder
from data_prep.pipeline.split import make_split
from data_prep.statistics.statistics import LogStatistics
from tests.data_prep.kernels.generated_logs import criteo_log_between, generate_log

# CI has a compiler, so there a missing library is a failure.
if not native.is_available() and "CI" not in os.environ:
    pytest.skip("the native log kernels are not built; run: make native", allow_module_level=True)

OPTIONS = PrepareOptions(min_count=2, block_rows=64, shuffle_window_rows=500, workers=1, max_reject_fraction=1.0)
NUM_LOGS = 100
LOGS_A_TEST = 20


def options_for(log, seed):
    """Options of a log, of every kind in turn."""
    return dataclasses.replace(
        OPTIONS,
        data=log.log_format,
        integer_buckets=seed % 3 == 0,
        vocabulary="hash" if seed % 7 == 0 else "counted",
        oov_buckets=1 + seed % 4,
        numeric_transform=("log1p", "max", "standardize", "quantile")[seed % 4],
    )


def plain(value):
    """Arrays and objects as what can be compared by `==`, with dtype and bytes."""
    if isinstance(value, np.ndarray):
        return value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    if hasattr(value, "tolist") and hasattr(value, "data"):  # Strings
        return value.tolist()
    if dataclasses.is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    return value


def readings(log, options, kernels, lines_a_chunk, folder):
    """Return the results of both passes over a log, chunk by chunk."""
    (folder / WORK_FOLDER).mkdir(parents=True)
    options = dataclasses.replace(options, kernels=kernels)
    chunks = log.chunks(lines_a_chunk)
    parsed = [choose_kernels(kernels).parse_chunk(chunk, log.log_format) for chunk in chunks]
    split = make_split(options, None, None)
    counted = [ChunkCounter(split, options).count(chunk) for chunk in chunks]
    statistics = LogStatistics(options, folder, 1 << 30)
    for counts in counted:
        statistics.add(counts)
    numeric = numeric_fields(options, statistics.numeric, statistics.sample)
    vocabulary = fit_vocabulary(statistics, options, len(numeric), folder)
    encoder = Encoder(numeric, vocabulary.lookup, vocabulary.ids_dtype, split, options, counts=True)
    encoded = [encoder.encode(chunk) for chunk in chunks]
    return {
        "rows": plain([part.rows for part in parsed]),
        "counts": plain(counted),
        "vocabulary": (folder / "vocabulary.parquet").read_bytes(),
        "encoded": plain(encoded),
        "rejects_by_reason": statistics.rejects_by_reason,
        "bins": plain(statistics.bins),
    }


@pytest.mark.parametrize("first_seed", range(0, NUM_LOGS, LOGS_A_TEST))
def test_native_and_numpy_kernels_agree_on_any_format(tmp_path, first_seed):
    for seed in range(first_seed, first_seed + LOGS_A_TEST):
        log = generate_log(seed, num_lines=200)
        options, lines_a_chunk = options_for(log, seed), (1000, 60, 13)[seed % 3]
        ours, theirs = (
            readings(log, options, kernels, lines_a_chunk, tmp_path / f"{seed}-{kernels}")
            for kernels in ("native", "numpy")
        )
        for name, expected in theirs.items():
            assert ours[name] == expected, f"{name} of log {seed}: {log.log_format}"
        assert ours["rejects_by_reason"] == log.rejects_by_reason, f"log {seed}: {log.log_format}"


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("seed", [3, 12, 25, 40])
def test_a_prepared_folder_has_the_same_bytes_by_either(tmp_path, seed):
    log = generate_log(seed, num_lines=500, bad_share=0.02)
    check_folders(tmp_path, log, options_for(log, seed))


def test_criteos_columns_between_commas(tmp_path):
    log = criteo_log_between(",", seed=1, num_lines=1000, num_bad=1)
    check_folders(tmp_path, log, dataclasses.replace(OPTIONS, data=log.log_format))
    tabs = criteo_log_between("\t", seed=1, num_lines=1000, num_bad=1)
    (tmp_path / "tabs.txt").write_bytes(tabs.text)
    prepare(tmp_path / "tabs.txt", tmp_path / "tabs", OPTIONS)
    for name in ("vocabulary.parquet", "statistics.json", "train-00000.mindrecord"):
        assert contents(tmp_path / "tabs")[name] == contents(tmp_path / "native")[name]


def check_folders(tmp_path, log, options):
    (tmp_path / "log.txt").write_bytes(log.text)
    for kernels in ("numpy", "native"):
        schema = prepare(tmp_path / "log.txt", tmp_path / kernels, dataclasses.replace(options, kernels=kernels))
        assert schema.source["rejected_by_reason"] == dict(sorted(log.rejects_by_reason.items()))
        assert schema.source["lines"] == len(log.lines)
    assert contents(tmp_path / "native") == contents(tmp_path / "numpy")


@pytest.mark.parametrize("kernels", ["native", "numpy"])
@pytest.mark.parametrize("separator", ["\t", ","])
def test_rows_are_laid_out_column_by_column_though_lines_were_rejected(kernels, separator):
    log_format = LogFormat(
        {"label": "label", "I1": "integer", "I2": "integer", "C1": "hex32", "C2": "hex32"}, separator=separator
    )
    lines = ["1,1,2,0000000a,0000000b", "2,1,2,0000000a,0000000b", "0,3,4,0000000c,0000000d", "0,5,6,0000000e,"]
    text = "".join(line.replace(",", separator) + "\n" for line in lines).encode()
    rows = choose_kernels(kernels).parse_chunk(Chunk(0, len(lines), text), log_format).rows
    assert rows.values.tolist() == [[10, 12, 14], [11, 13, 0]]
    assert rows.integers.tolist() == [[1, 3, 5], [2, 4, 6]]
    for column in (rows.integers, rows.integers_present, rows.values, rows.values_present, rows.labels):
        assert column.flags.c_contiguous
    assert pickle.loads(pickle.dumps(rows)).values.tolist() == rows.values.tolist()


@pytest.mark.parametrize("kernels", ["native", "numpy"])
@pytest.mark.parametrize("separator", ["0", "a", " ", "\x01"])
def test_a_separator_may_be_a_character_of_numbers(kernels, separator):
    log_format = LogFormat({"label": "label", "I1": "integer", "C1": "string"}, separator, not_clicked=("no",))
    lines = ["1|23|x", "no|4|y", "no||"]
    text = "".join(line.replace("|", separator) + "\n" for line in lines).encode()
    parsed = choose_kernels(kernels).parse_chunk(Chunk(0, len(lines), text), log_format)
    assert parsed.rejects_tsv == b""
    assert parsed.rows.integers.tolist() == [[23, 4, 0]]
    assert [strings.tolist() for strings in parsed.rows.texts] == [[b"x", b"y", b""]]
