"""Delta and Iceberg tables are read as what was written to them, whatever happened to them in between."""

import base64
import json
import random
import struct
import uuid
import zlib
from collections import Counter
from datetime import UTC, datetime
from types import SimpleNamespace
from urllib.parse import quote

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from data_prep.options.log_format import LogFormat
from data_prep.options.prepare_options import PrepareOptions
from data_prep.pipeline.prepare import prepare
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.parquet import first_rows
from tests.data_prep.raw_log.test_storage import bucket_fixture  # noqa: F401 (a fixture)

deltalake = pytest.importorskip("deltalake", reason="the extra lake is not installed")
pytest.importorskip("pyiceberg", reason="the extra lake is not installed")
pyroaring = pytest.importorskip("pyroaring")

SHORT, LONG = range(6), range(6, 206)
DELTA_STEPS = ["append", "append", "overwrite", "part", "delete", "update", "merge", "compact", "z-order"]
DELTA_STEPS += ["add", "restore"]
ICEBERG_STEPS = ["append", "append", "overwrite", "delete", "upsert", "add", "rename", "part", "expire"]
OLD = {"minReaderVersion": 1, "minWriterVersion": 2}
FEATURES = {"minReaderVersion": 3, "minWriterVersion": 7}


def rows_of(files):
    """Return how often each row occurs in the files of a log, with null and empty text as one value."""
    return sum((as_counts(first_rows(file, 1 << 20, 1 << 20).to_pylist()) for file in files), Counter())


def as_counts(rows):
    present = ({name: value for name, value in row.items() if value not in (None, "")} for row in rows)
    return Counter(tuple(sorted(row.items())) for row in present)


def some_rows(rng, columns, first_id):
    cells = {
        "site": lambda: rng.choice(["a", "b c", "ü/%", "", None]),
        "price": lambda: rng.choice([0.5, 1.25, None]),
        "count": lambda: rng.choice([1, 2, None]),
    }
    return [{"id": first_id + k, **{name: cells[name]() for name in columns[1:]}} for k in range(rng.randrange(1, 6))]


TYPES = {"id": pa.int64(), "site": pa.string(), "price": pa.float64(), "count": pa.int32()}


def as_table(rows, columns):
    return pa.Table.from_pylist(rows, pa.schema([(name, TYPES[name]) for name in columns]))


def delta_history(rng, path):
    """Write a table by random operations. Return the rows that it must have after each version."""
    columns, rows, wanted = ["id", "site", "price"], [], []
    parts = rng.choice([None, ["site"]])
    for step in range(rng.randrange(3, 9)):
        new = some_rows(rng, columns, 100 * step)
        kind = rng.choice(DELTA_STEPS) if step else "append"
        table = deltalake.DeltaTable(path) if step else None
        if kind in ("append", "overwrite", "add"):
            if kind == "add" and "count" not in columns:
                columns.append("count")
                new = some_rows(rng, columns, 100 * step)
            rows = new if kind == "overwrite" else rows + new
            mode = "overwrite" if kind == "overwrite" else "append"
            deltalake.write_deltalake(
                path, as_table(new, columns), mode=mode, partition_by=parts, schema_mode="merge" if step else None
            )
        elif kind == "part":
            new = [{**row, "site": "a"} for row in new]
            rows = [row for row in rows if row.get("site") != "a"] + new
            deltalake.write_deltalake(path, as_table(new, columns), mode="overwrite", predicate="site = 'a'")
        elif kind == "delete":
            rows = [row for row in rows if row["id"] % 3]
            table.delete("id % 3 = 0")
        elif kind == "update":
            rows = [{**row, "price": 9.0} if row["id"] % 2 else row for row in rows]
            table.update(updates={"price": "9.0"}, predicate="id % 2 = 1")
        elif kind == "merge":
            new = [{**row, "id": rng.choice(rows)["id"] if rows and k == 0 else row["id"]} for k, row in enumerate(new)]
            ids = {row["id"] for row in new}
            rows = [row for row in rows if row["id"] not in ids] + new
            merge = table.merge(as_table(new, columns), "t.id = s.id", source_alias="s", target_alias="t")
            merge.when_matched_update_all().when_not_matched_insert_all().execute()
        elif kind == "compact":
            table.optimize.compact()
        elif kind == "z-order":
            table.optimize.z_order(["id"])
        elif kind == "restore" and len(wanted) > 1:
            version = rng.randrange(len(wanted) - 1)
            rows, columns = wanted[version][0], list(wanted[version][1])
            table.restore(version)
        version = deltalake.DeltaTable(path).version()
        wanted += [(list(rows), list(columns))] * (version + 1 - len(wanted))
    return [rows for rows, _ in wanted]


@pytest.mark.parametrize("seed", [*SHORT, *(pytest.param(seed, marks=pytest.mark.slow) for seed in LONG)])
def test_delta_history_is_read_as_written(tmp_path, seed):
    rng, path = random.Random(seed), str(tmp_path / "table")
    wanted = delta_history(rng, path)
    sql = deltalake.QueryBuilder().register("t", deltalake.DeltaTable(path)).execute("select * from t")
    if not wanted[-1]:
        with pytest.raises(ValueError, match="has no rows"):
            find_log(path)
        return
    assert rows_of(find_log(path)) == as_counts(wanted[-1]) == as_counts(pa.table(sql).to_pylist())
    version = rng.randrange(len(wanted))
    if wanted[version]:
        assert rows_of(find_log(path, version)) == as_counts(wanted[version])


def iceberg_table(folder, schema):
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("c", uri=f"sqlite:///{folder}/catalog.db", warehouse=f"file://{folder}/lake")
    catalog.create_namespace("n")
    return catalog.create_table("n.t", schema), f"{folder}/lake/n/t"


@pytest.mark.parametrize("seed", [*range(4), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(4, 104))])
def test_iceberg_history_is_read_as_written(tmp_path, seed):
    pytest.importorskip("sqlalchemy")
    from pyiceberg.table import StaticTable
    from pyiceberg.types import IntegerType

    rng, columns, rows = random.Random(seed), ["id", "site", "price"], []
    table, path = iceberg_table(tmp_path, as_table([], columns).schema)
    names = {name: name for name in columns}
    for step in range(rng.randrange(3, 8)):
        new = some_rows(rng, columns, 100 * step)
        written = as_table(new, columns).rename_columns([names[name] for name in columns])
        kind = rng.choice(ICEBERG_STEPS) if step else "append"
        if kind == "append":
            table.append(written)
            rows = rows + new
        elif kind == "overwrite":
            table.overwrite(written)
            rows = new
        elif kind == "delete":
            table.delete(f"id < {50 * step}")
            rows = [row for row in rows if row["id"] >= 50 * step]
        elif kind == "upsert" and rows and len(table.schemas()) == 1:  # pyiceberg 0.12.0 cannot after a schema change.
            new[0]["id"] = rows[0]["id"]
            written = as_table(new, columns).rename_columns([names[name] for name in columns])
            table.upsert(written, join_cols=["id"])
            rows = [row for row in rows if row["id"] not in {each["id"] for each in new}] + new
        elif kind == "add" and "count" not in columns:
            with table.update_schema() as update:
                update.add_column("count", IntegerType())
            columns, names = [*columns, "count"], {**names, "count": "count"}
        elif kind == "rename":
            with table.update_schema() as update:
                update.rename_column(names["price"], f"price{step}")
            names = {**names, "price": f"price{step}"}
        elif kind == "expire":
            for snapshot in table.snapshots()[:-1]:
                table.maintenance.expire_snapshots().by_id(snapshot.snapshot_id).commit()
        elif kind == "part" and not table.spec().fields:
            with table.update_spec() as update:
                update.add_field("site", "identity")
    wanted = as_counts([{names[name]: value for name, value in row.items()} for row in rows])
    if rows:
        assert rows_of(find_log(path)) == wanted
        scanned = StaticTable.from_metadata(table.metadata_location).scan().to_arrow_batch_reader()
        assert wanted == as_counts(row for batch in scanned for row in batch.to_pylist())


def write_delta(folder, files, fields, protocol, configuration=(), partition=(), **actions):
    """Write a Delta table by hand: `files` has the Arrow table of each data file, `actions` parts of its add action."""
    (folder / "_delta_log").mkdir(parents=True)
    schema = {
        "type": "struct",
        "fields": [{"name": n, "type": t, "nullable": True, "metadata": m} for n, t, m in fields],
    }
    log = [
        {"protocol": protocol},
        {
            "metaData": {
                "id": str(uuid.UUID(int=1)),
                "format": {"provider": "parquet", "options": {}},
                "schemaString": json.dumps(schema),
                "partitionColumns": list(partition),
                "createdTime": 1,
                "configuration": dict(configuration),
            }
        },
    ]
    for name, table in files.items():
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=3)
        add = {"path": f"{name}.parquet", "partitionValues": {}, "size": (folder / f"{name}.parquet").stat().st_size}
        stats = json.dumps({"numRecords": table.num_rows})
        log.append({"add": {**add, "modificationTime": 1, "dataChange": True, "stats": stats, **actions.get(name, {})}})
    (folder / "_delta_log" / f"{0:020}.json").write_text("\n".join(map(json.dumps, log)))
    return str(folder)


def ids(*numbers):
    return pa.table({"id": pa.array(numbers, pa.int64())})


def vector_bytes(rows):
    return struct.pack("<IQI", 1681511377, 1, 0) + pyroaring.BitMap(rows).serialize()


def z85(content):
    """Encode as the specification of Delta asks: base85 with the alphabet of ZeroMQ."""
    python = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;<=>?@^_`{|}~"
    zeromq = b"0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
    padded = content + b"\0" * (-len(content) % 4)
    return base64.b85encode(padded).translate(bytes.maketrans(python, zeromq)).decode()


def test_deletion_vectors_of_delta_are_applied(tmp_path):
    inline, stored, name = vector_bytes([1, 3, 7]), vector_bytes([0, 2]), uuid.UUID(int=5)
    features = {**FEATURES, "readerFeatures": ["deletionVectors"], "writerFeatures": ["deletionVectors"]}
    vectors = {
        "a": {"storageType": "i", "pathOrInlineDv": z85(inline), "sizeInBytes": len(inline), "cardinality": 3},
        "b": {"storageType": "u", "pathOrInlineDv": z85(name.bytes), "offset": 1, "sizeInBytes": len(stored),
              "cardinality": 2},
    }  # fmt: skip
    (tmp_path / "t").mkdir()
    content = b"\x01" + struct.pack(">i", len(stored)) + stored + struct.pack(">I", zlib.crc32(stored))
    (tmp_path / "t" / f"deletion_vector_{name}.bin").write_bytes(content)
    files = {"a": ids(*range(10)), "b": ids(*range(10, 14)), "c": ids(20)}
    adds = {name: {"deletionVector": vector} for name, vector in vectors.items()}
    table = write_delta(tmp_path / "t", files, [("id", "long", {})], features, **adds)
    assert rows_of(find_log(table)) == as_counts({"id": k} for k in [0, 2, 4, 5, 6, 8, 9, 11, 13, 20])


@pytest.mark.parametrize("mode", ["name", "id"])
def test_mapped_columns_are_found(tmp_path, mode):
    """A renamed column keeps its physical name, and another column of that old name may follow."""
    columns = [("x", "long", "old"), ("old", "string", "c2"), ("day", "date", "c3")]
    fields = [
        (name, kind, {"delta.columnMapping.id": place, "delta.columnMapping.physicalName": physical})
        for place, (name, kind, physical) in enumerate(columns, 1)
    ]
    schema = pa.schema(
        [
            pa.field("old", pa.int64(), metadata={"PARQUET:field_id": "1"}),
            pa.field("c2", pa.string(), metadata={"PARQUET:field_id": "2"}),
        ]
    )
    table = write_delta(
        tmp_path / "t",
        {"a": pa.table({"old": [7, 8], "c2": ["p", "q"]}, schema)},
        fields,
        {"minReaderVersion": 2, "minWriterVersion": 5},
        {"delta.columnMapping.mode": mode, "delta.columnMapping.maxColumnId": "3"},
        ["day"],
        a={"partitionValues": {"c3": "2024-01-02"}},
    )
    (file,) = find_log(table)
    rows = [{name: str(value) for name, value in row.items()} for row in first_rows(file, 9, 9).to_pylist()]
    assert rows == [{"x": "7", "old": "p", "day": "2024-01-02"}, {"x": "8", "old": "q", "day": "2024-01-02"}]


def test_times_have_the_unit_of_the_table(tmp_path):
    moment = datetime(2024, 1, 1, 1, 2, 3, 456_000, UTC)
    files = {unit: pa.table({"at": pa.array([moment, None], pa.timestamp(unit, "UTC"))}) for unit in ("ms", "us", "ns")}
    table = write_delta(tmp_path / "t", files, [("at", "timestamp", {})], OLD)
    assert {first_rows(file, 9, 9).schema.field("at").type for file in find_log(table)} == {pa.timestamp("us", "UTC")}
    assert rows_of(find_log(table)) == as_counts([{"at": moment}, {}] * 3)


@pytest.mark.parametrize("form", ["file://{}", "file:{}", "{}"])
def test_absolute_paths_of_data_files_are_followed(tmp_path, form):
    pq.write_table(ids(7), tmp_path / "else where%.parquet")
    path = form.format(quote(f"{tmp_path}/else where%.parquet"))
    table = write_delta(tmp_path / "t", {"a": ids(1)}, [("id", "long", {})], OLD, a={"path": path})
    assert rows_of(find_log(table)) == as_counts([{"id": 7}])


def test_binary_partition_columns_are_refused(tmp_path):
    deltalake.write_deltalake(tmp_path / "t", pa.table({"id": [1], "key": [b"a"]}), partition_by=["key"])
    with pytest.raises(ValueError, match="its partition columns key are binary"):
        find_log(tmp_path / "t")


def test_widened_columns_have_the_new_type(tmp_path):
    features = {**FEATURES, "readerFeatures": ["typeWidening"], "writerFeatures": ["typeWidening"]}
    narrow = pa.table({"id": pa.array([1, None], pa.int16())})
    table = write_delta(tmp_path / "t", {"a": narrow, "b": ids(2**40)}, [("id", "long", {})], features)
    assert [first_rows(file, 9, 9)["id"].to_pylist() for file in find_log(table)] == [[1, None], [2**40]]


@pytest.mark.parametrize("feature", ["variantType", "somethingNew"])
def test_unknown_feature_is_refused_by_name(tmp_path, feature):
    features = {**FEATURES, "readerFeatures": [feature], "writerFeatures": [feature]}
    table = write_delta(tmp_path / "t", {"a": ids(1)}, [("id", "long", {})], features)
    with pytest.raises(ValueError, match=feature):
        find_log(table)


def test_files_come_in_the_order_of_commits(tmp_path):
    path = str(tmp_path / "t")
    for day in range(3):
        deltalake.write_deltalake(path, ids(day), mode="append")
    assert [first_rows(file, 1, 1)["id"][0].as_py() for file in find_log(path)] == [0, 1, 2]
    table, path = iceberg_table(tmp_path, ids().schema)
    for day in range(3):
        table.append(ids(day))
    assert [first_rows(file, 1, 1)["id"][0].as_py() for file in find_log(path)] == [0, 1, 2]


def with_deletes(folder, delete_file, content):
    """Write an Iceberg table of ten rows, and a snapshot by hand that adds a delete file, as Spark does."""
    from pyiceberg import manifest
    from pyiceberg.typedef import Record

    class DeletesWriter(manifest.ManifestWriterV2):
        def content(self):
            return manifest.ManifestContent.DELETES

        @property
        def _meta(self):
            return {**super()._meta, "content": "deletes"}

    table, path = iceberg_table(folder, ids().schema)
    table.append(ids(*range(10)))
    data_file = next(iter(table.scan().plan_files())).file.file_path
    delete_file(data_file, f"{folder}/deletes.parquet")
    old, number = table.current_snapshot(), 77
    file = manifest.DataFile.from_args(
        content=manifest.DataFileContent[content],
        file_path=f"{folder}/deletes.parquet",
        file_format=manifest.FileFormat.PARQUET,
        partition=Record(),
        record_count=3,
        file_size_in_bytes=1,
        equality_ids=[1] if content == "EQUALITY_DELETES" else None,
        spec_id=0,
    )
    out = table.io.new_output
    with DeletesWriter(table.spec(), table.schema(), out(f"{path}/metadata/m.avro"), number, "null") as writer:
        added = {"status": manifest.ManifestEntryStatus.ADDED, "snapshot_id": number, "data_file": file}
        writer.add_entry(manifest.ManifestEntry.from_args(**added, sequence_number=2, file_sequence_number=2))
    manifests = [*old.manifests(table.io), writer.to_manifest_file()]
    with manifest.write_manifest_list(2, out(f"{path}/metadata/l.avro"), number, old.snapshot_id, 2, "null") as listed:
        listed.add_manifests(manifests)
    metadata = json.loads(table.metadata.model_dump_json())
    snapshot = {**metadata["snapshots"][-1], "snapshot-id": number, "sequence-number": 2}
    metadata["snapshots"].append({**snapshot, "manifest-list": f"{path}/metadata/l.avro"})
    metadata |= {"current-snapshot-id": number, "last-sequence-number": 2}
    metadata["refs"]["main"]["snapshot-id"] = number
    with table.io.new_output(f"{path}/metadata/00009-x.metadata.json").create() as stored:
        stored.write(json.dumps(metadata).encode())
    return path


def test_position_deletes_of_iceberg_are_applied(tmp_path):
    def delete(data_file, path):
        deletes = {"file_path": [data_file, data_file, "another"], "pos": pa.array([2, 9, 1], pa.int64())}
        pq.write_table(pa.table(deletes), path)

    path = with_deletes(tmp_path, delete, "POSITION_DELETES")
    assert rows_of(find_log(path)) == as_counts({"id": k} for k in [0, 1, 3, 4, 5, 6, 7, 8])


def test_equality_deletes_of_iceberg_are_refused(tmp_path):
    path = with_deletes(tmp_path, lambda _, path: pq.write_table(ids(3, 4, 5), path), "EQUALITY_DELETES")
    with pytest.raises(ValueError, match=r"equality deletes.*rewrite the data files"):
        find_log(path)


def test_deletion_vectors_of_iceberg_are_read(tmp_path):
    """A Puffin file with one vector, laid out by hand as its specification says."""
    from pyiceberg.io.pyarrow import PyArrowFileIO
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    from data_prep.raw_log.lake.iceberg_table import kept_rows

    bitmap = struct.pack("<qI", 1, 0) + pyroaring.BitMap([1, 4]).serialize()
    vector = struct.pack("<I", 1681511377)[:4] + bitmap
    blob = struct.pack(">I", len(vector)) + vector + struct.pack(">I", zlib.crc32(vector))
    properties = {"referenced-data-file": "data.parquet", "cardinality": "2"}
    described = {"type": "deletion-vector-v1", "fields": [], "snapshot-id": -1, "sequence-number": -1, "offset": 4}
    footer = json.dumps({"blobs": [{**described, "length": len(blob), "properties": properties}]}).encode()
    content = b"PFA1" + blob + b"PFA1" + footer + struct.pack("<i", len(footer)) + b"\0\0\0\0" + b"PFA1"
    (tmp_path / "v.puffin").write_bytes(content)
    file = DataFile.from_args(
        content=DataFileContent.POSITION_DELETES,
        file_path=str(tmp_path / "v.puffin"),
        file_format=FileFormat.PUFFIN,
        partition=Record(),
        record_count=2,
        file_size_in_bytes=len(content),
    )
    task = SimpleNamespace(file=SimpleNamespace(file_path="data.parquet", record_count=6), delete_files={file})
    kept = kept_rows([task], PyArrowFileIO())
    assert {path: rows.tolist() for path, rows in kept.items()} == {
        "data.parquet": [True, False, True, True, False, True]
    }


def test_delta_table_in_a_bucket_is_read(tmp_path, bucket):
    table = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "site": ["a b", "ü/%", None]})
    deltalake.write_deltalake(tmp_path / "t", table, partition_by=["site"])
    files = [path for path in (tmp_path / "t").rglob("*") if path.is_file()]
    bucket.objects = {f"lake/{path.relative_to(tmp_path)}": path.read_bytes() for path in files}
    assert rows_of(find_log(bucket.uri("lake/t"))) == as_counts(table.to_pylist())


def test_iceberg_table_in_a_bucket_is_read(tmp_path, bucket):
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.io.pyarrow import PyArrowFileIO

    log = pa.table({"id": pa.array([1, 2, 3], pa.int64()), "site": ["a b", "ü/%", None]})
    catalog, local = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse="s3://logs/lake"), str(tmp_path)
    with pytest.MonkeyPatch.context() as written:
        for name in ("new_input", "new_output"):  # The files of the bucket `logs` are written into a local folder.
            old = getattr(PyArrowFileIO, name)
            written.setattr(PyArrowFileIO, name, lambda io, to, old=old: old(io, to.replace("s3://logs", local)))
        catalog.create_namespace("n")
        table = catalog.create_table("n.t", log.schema)
        with table.update_spec() as update:
            update.add_field("site", "identity")
        table.append(log)
    files = [path for path in (tmp_path / "lake").rglob("*") if path.is_file()]
    bucket.objects = {str(path.relative_to(tmp_path)): path.read_bytes() for path in files}
    assert rows_of(find_log(bucket.uri("lake/n/t"))) == as_counts(log.to_pylist())


@pytest.mark.parametrize("dtype", [pa.float64(), pa.float32()])
def test_iceberg_file_without_its_double_partition_is_refused(tmp_path, dtype):
    pytest.importorskip("sqlalchemy")
    log = pa.table({"id": [1, 2, 3], "price": pa.array([0.1, 0.25, None], dtype)})
    table, path = iceberg_table(tmp_path, log.schema)
    with table.update_spec() as update:
        update.add_field("price", "identity")
    table.append(log)
    assert rows_of(find_log(path)) == as_counts(log.to_pylist())
    for file in (tmp_path / "lake/n/t/data").rglob("*.parquet"):
        pq.write_table(pq.ParquetFile(file).read().drop_columns("price"), file)
    if dtype == pa.float32():
        assert rows_of(find_log(path)) == as_counts(log.to_pylist())
    else:
        with pytest.raises(ValueError, match=r"price=0\.\w+/.*lacks the partition columns price of type double"):
            rows_of(find_log(path))


def test_unsigned_ids_in_signed_iceberg_columns_are_read_or_named(tmp_path):
    pytest.importorskip("sqlalchemy")
    table, path = iceberg_table(tmp_path, pa.schema({"id": pa.uint64()}))
    table.append(log := pa.table({"id": pa.array([7, 2**63 - 1], pa.uint64())}))
    assert rows_of(find_log(path)) == as_counts(log.to_pylist())
    for file in (tmp_path / "lake/n/t/data").rglob("*.parquet"):
        pq.write_table(pa.table({"id": pa.array([7, 2**63], pa.uint64())}, pq.read_schema(file)), file)
    with pytest.raises(ValueError, match=r"cannot be read \(Integer value 9223372036854775808 not in range.*as text"):
        rows_of(find_log(path))


def test_missing_library_is_named(tmp_path, monkeypatch):
    deltalake.write_deltalake(tmp_path / "t", ids(1))
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(ValueError, match=r"is a table of Delta, and .* has no deltalake; run make"):
        find_log(tmp_path / "t")


def test_resumed_preparation_reads_its_version(tmp_path, monkeypatch):
    log = pa.table({"click": [0, 1] * 500, "site": [f"s{k % 7}" for k in range(1000)]})
    path, options = str(tmp_path / "t"), PrepareOptions(data=LogFormat(columns={"click": "label", "site": "string"}))
    deltalake.write_deltalake(path, log)

    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as interrupted, pytest.raises(KeyboardInterrupt):
        interrupted.setattr("data_prep.pipeline.prepare.write_splits", stop)
        prepare(path, tmp_path / "out", options)
    deltalake.write_deltalake(path, log, mode="append")
    source = prepare(path, tmp_path / "out", options).source
    assert (source["table"], source["version"], source["lines"]) == (path, 0, 1000)
    assert prepare(path, tmp_path / "new", options).source["lines"] == 2000
    assert prepare(path, tmp_path / "old", options, version=0).source["lines"] == 1000


def test_missing_versions_and_files_are_named(tmp_path):
    path = str(tmp_path / "t")
    deltalake.write_deltalake(path, ids(1))
    with pytest.raises(ValueError, match="version 7 of the Delta table"):
        find_log(path, 7)
    with pytest.raises(ValueError, match="--version 7 needs one Delta or Iceberg table"):
        find_log([path, path], 7)
    next((tmp_path / "t").glob("*.parquet")).unlink()
    with pytest.raises(FileNotFoundError, match=r"a data file of version 0 .* removed by a vacuum"):
        find_log(path)
