"""Bodies of requests to score rows, as clients of the service write them."""

import pyarrow as pa


def arrow_stream(table, compression=None):
    """Return a table as an Arrow IPC stream, with its buffers compressed by "lz4" or "zstd" if that is given."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()
