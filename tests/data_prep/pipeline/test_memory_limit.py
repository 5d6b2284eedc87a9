import random
import tracemalloc

import numpy as np
import pytest

from data_prep.encoding.encoder import RowEncoder
from data_prep.encoding.fit import fit_vocabulary
from data_prep.execution.prepared_folder import WORK_FOLDER
from data_prep.kernels import native
from data_prep.kernels.parsed import Chunk
from data_prep.options.log_format import ListForm, LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline import memory_and_disk
from data_prep.pipeline.chunk_tasks import ChunkCounter
from data_prep.pipeline.prepare import prepare
from data_prep.pipeline.split import make_split
from data_prep.statistics.statistics import LogStatistics

MIB = 1 << 20


def encoding_workers(limit, window=200, lookup=100, num_workers=64):
    options = PrepareOptions(memory_limit=limit)
    chunk_bytes = memory_and_disk.chunk_bytes(options)
    return memory_and_disk.encoding_workers(options, num_workers, chunk_bytes, window * MIB, lookup * MIB)


def test_as_many_workers_as_there_is_room_for():
    assert encoding_workers("1 TiB") == (64, 64)
    few, writers = encoding_workers("4 GiB")
    assert 2 < few < 64 and writers == 1
    assert encoding_workers("4 GiB", lookup=1500)[0] < few
    assert encoding_workers("570 MiB") == (1, 1)


def test_workers_write_files_at_a_time_in_the_memory_that_is_left():
    for limit, expected in (("1 GiB", 1), ("2 GiB", 4), ("4 GiB", 4)):
        assert encoding_workers(limit, num_workers=4) == (4, expected)
    assert encoding_workers("2 GiB", window=900, num_workers=4) == (4, 1)


def test_the_zoos_layout_needs_mindspore_besides():
    options = PrepareOptions(memory_limit="500 MiB", layout="zoo")
    with pytest.raises(MemoryError, match="the process itself takes 680 MiB"):
        memory_and_disk.check_limit(options)


def test_a_limit_that_is_too_low_is_an_error_with_the_reason():
    with pytest.raises(
        MemoryError, match=r"memory_limit=500 MiB is too low: writing takes 560 MiB, 200 .* and 100 for"
    ):
        encoding_workers("500 MiB")


@pytest.mark.parametrize("limit", ["700 MiB", "1 GiB", "4 GiB", "64 GiB"])
def test_workers_leave_room_for_counts_on_any_number_of_cores(limit):
    options = PrepareOptions(memory_limit=limit)
    chunk_bytes = memory_and_disk.chunk_bytes(options)
    for num_cores in (1, 2, 64, 1000):
        num_workers = memory_and_disk.counting_workers(options, num_cores, chunk_bytes)
        assert 1 <= num_workers <= num_cores
        assert memory_and_disk.counts_bytes(options, num_workers, chunk_bytes) > 100 * MIB
    assert memory_and_disk.counting_workers(PrepareOptions(memory_limit=limit, workers=1), 64, chunk_bytes) == 1


def test_a_low_limit_makes_chunks_small():
    small, large = PrepareOptions(memory_limit="1 GiB"), PrepareOptions(memory_limit="4 GiB")
    assert memory_and_disk.chunk_bytes(small) < memory_and_disk.chunk_bytes(large)


COLUMNS = {"click": "label", "a": "string", "b": "string"}
OF_MANY_ROWS = {
    "crosses": PrepareOptions(data=LogFormat(COLUMNS, ","), crosses=(("a", "b"),)),
    "lists": PrepareOptions(data=LogFormat({**COLUMNS, "b": "list"}, ",", lists={"b": ListForm("|", 80)})),
}


@pytest.mark.parametrize("kind", OF_MANY_ROWS)
def test_lists_and_crosses_have_their_part_of_a_workers_memory(tmp_path, kind):
    options, draw = OF_MANY_ROWS[kind], random.Random(1)
    lines = "".join(f"0,{draw.randrange(10**5)},{draw.randrange(100)}|{draw.randrange(100)}\n" for _ in range(40_000))
    chunk = Chunk(0, 40_000, lines.encode())
    peaks = peaks_of(tmp_path, options, chunk)
    of_fields = memory_and_disk.worker_bytes(PrepareOptions(), len(chunk.lines)) - memory_and_disk.worker_bytes(
        PrepareOptions(), 0
    )
    assert (
        of_fields
        < max(peaks)
        < memory_and_disk.worker_bytes(options, len(chunk.lines)) - memory_and_disk.worker_bytes(options, 0)
    )
    assert (
        memory_and_disk.worker_bytes(options, memory_and_disk.chunk_bytes(options)) <= 120 * MIB
    )  # as of fields, by smaller chunks


@pytest.mark.parametrize("kernels", ["numpy", "native"] if native.is_available() else ["numpy"])
@pytest.mark.parametrize("crossed", [("a", "b"), ("b", "c")])
def test_combinations_of_lists_have_their_part_of_a_workers_memory(tmp_path, crossed, kernels):
    columns = {"click": "label", "a": "string", "b": "list", "c": "list"}
    log_format = LogFormat(columns, ",", lists={name: ListForm("|", 10) for name in "bc"})
    options, draw = PrepareOptions(data=log_format, crosses=(crossed,), kernels=kernels), random.Random(1)
    cells = [
        "|".join(draw.choices("0123456789", k=10)) for _ in range(20_000)
    ]  # as many combinations as a byte can have
    lines = "".join(
        f"0,{draw.randrange(10**4)},{one},{other}\n" for one, other in zip(cells[::2], cells[1::2], strict=True)
    )
    limit = memory_and_disk.worker_bytes(options, len(lines)) - memory_and_disk.worker_bytes(options, 0)
    assert limit / 6 < max(peaks_of(tmp_path, options, Chunk(0, 10_000, lines.encode()))) < limit


def peaks_of(folder, options, chunk):
    """The most memory that counting and encoding a chunk take."""
    (folder / WORK_FOLDER).mkdir()
    statistics, counter = (
        LogStatistics(options, folder, 1 << 30),
        ChunkCounter(make_split(options, None, None), options),
    )
    peaks = [peak_of(lambda: statistics.add(counter.count(chunk)))]
    fitted = fit_vocabulary(statistics, options, 0, folder)
    encoder = RowEncoder((), fitted.lookup, fitted.ids_dtype, options.encoding)
    return [*peaks, peak_of(lambda: [rows := encoder.encode(chunk)[1], rows.take(np.arange(len(rows)))])]


def peak_of(function):
    tracemalloc.start()
    function()
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    return peak


def test_a_limit_that_no_log_fits_is_an_error_before_it_is_read():
    with pytest.raises(MemoryError, match=r"memory_limit=4 is too low: the process itself takes 260 MiB"):
        prepare("none", "out", PrepareOptions(memory_limit="4"))
