"""describe looks at rows from all over its input."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from data_prep.checks.propose import describe
from data_prep.kernels.native import choose_kernels
from data_prep.raw_log.formats import spread
from data_prep.raw_log.log_files import find_log
from data_prep.raw_log.reading import sample_log

PARTS = 45


def part(number, num_rows=200):
    random = np.random.default_rng(number)
    country = f"c{number % 5}"
    columns = {"click": random.integers(0, 2, num_rows), "country": country, "day": f"d{number}", "size": 1}
    return pd.DataFrame(columns | {"shop": random.choice(["s1", "s2", "s3"], num_rows)})


@pytest.mark.parametrize("ending", ["csv", "jsonl", "parquet"])
def test_columns_constant_within_a_part_are_categories(tmp_path, ending):
    for number in range(PARTS):
        path, frame = tmp_path / f"part-{number}.{ending}", part(number)
        if ending == "csv":
            frame.to_csv(path, index=False)
        elif ending == "jsonl":
            frame.to_json(path, orient="records", lines=True)
        else:
            frame.astype({"size": "float64" if number else "int64"}).to_parquet(path, row_group_size=50)
    proposal = describe(str(tmp_path), num_rows=2_000)
    assert {each.name: each.kind for each in proposal.guesses}["country"] == "string"
    days = {value for column in proposal.rows.columns if column.name == "day" for value in column.values}
    assert days == {f"d{number}" for number in spread(range(PARTS), 20)} and {"d0", "d44"} <= days
    of_files = (
        f"2,000 rows, the first rows of 20 of 45 files, part-0.{ending} to part-44.{ending} (the others were not "
    )
    assert f"Proposed from {of_files}looked at)" in proposal.as_yaml()


def test_a_parquet_file_is_looked_at_all_over(tmp_path):
    pd.concat([part(number) for number in range(PARTS)]).to_parquet(tmp_path / "log.parquet", row_group_size=200)
    for num_rows, num_days in ((1_000, 20), (6_000, 30), (10**6, 45)):
        rows = describe(str(tmp_path / "log.parquet"), num_rows=num_rows).rows
        days = {value for column in rows.columns if column.name == "day" for value in column.values}
        assert rows.num_rows == min(num_rows, 200 * PARTS) and len(days) == num_days
        assert rows.sampled == f"{rows.num_rows:,} rows from all over {tmp_path}/log.parquet"


def test_a_part_with_other_types_is_left_out(tmp_path):
    part(1).to_parquet(tmp_path / "a.parquet")
    part(2).assign(size="x").to_parquet(tmp_path / "b.parquet")
    proposal = describe(str(tmp_path))
    assert proposal.rows.num_rows == 200
    (finding,) = proposal.findings
    assert finding.what.startswith("not looked at, as the types of their columns differ from a.parquet: b.parquet (")


TAKEN_BY_NAME, SAME_NAMES = "set others: ignored", "give all files the same names"
FAULTS = {  # how the text of a part is made from a frame, and what describe says of it
    "none": (lambda frame: frame.to_csv(index=False), ""),
    "mark": (lambda frame: "\ufeff" + frame.to_csv(index=False), ""),
    "order": (lambda frame: frame[frame.columns[::-1]].to_csv(index=False), TAKEN_BY_NAME),
    "more": (lambda frame: frame.assign(more=1).to_csv(index=False), TAKEN_BY_NAME),
    "other name": (lambda frame: frame.rename(columns={"shop": "store"}).to_csv(index=False), SAME_NAMES),
    "capitals": (lambda frame: frame.rename(columns=str.upper).to_csv(index=False), SAME_NAMES),
    "fewer": (lambda frame: frame.drop(columns="size").to_csv(index=False), SAME_NAMES),
    "separator": (lambda frame: frame.to_csv(index=False, sep=";"), "have not 5 columns"),
    "UTF-16": (lambda frame: frame.to_csv(index=False), "iconv -f UTF-16"),
}


def test_rows_that_share_words_are_no_headers(tmp_path):
    for number in range(3):
        rows = [f"{'yes' if row % 3 else 'no'},shop{row % 4},{'east' if row % 5 else 'west'}" for row in range(90)]
        (tmp_path / f"part-{number}.csv").write_text("\n".join([f"no,shop0,w{number}", *rows[1:]]) + "\n")
    assert describe(str(tmp_path), label="column_1").rows.num_rows == 270


def test_one_object_with_all_rows_is_named(tmp_path):
    part(1).to_json(tmp_path / "log.json")
    with pytest.raises(ValueError, match="write an object for each row"):
        describe(str(tmp_path / "log.json"))


@pytest.mark.parametrize(("of_type", "large"), [("float64", 2**60), ("float32", 2**25)])
def test_ids_that_were_floats_are_named(of_type, large):
    frame = part(1).assign(uid=(large + 1_000 * np.arange(200) % 7_000).astype(of_type))
    assert "# In uid whole numbers so large are not exact as floats" in describe(frame).as_yaml()


@settings(max_examples=20, deadline=None)
@given(st.sampled_from([*FAULTS]), st.integers(2, 5), st.data())
def test_parts_are_read_or_named(tmp_path_factory, name, num_parts, data):
    """One of the parts after the first is written otherwise; all rows are good, or describe says what differs."""
    folder, (write, words) = tmp_path_factory.mktemp("parts"), FAULTS[name]
    odd = data.draw(st.integers(1, num_parts - 1))
    for number in range(num_parts):
        text = write(part(number)) if number == odd else part(number).to_csv(index=False)
        encoding = "utf-16" if name == "UTF-16" and number == odd else "utf-8"
        (folder / f"part-{number}.csv").write_text(text, encoding=encoding)
    try:
        proposal = describe(str(folder))
    except ValueError as error:
        assert words and words in str(error)
        return
    assert words in "".join(map(str, proposal.findings)) and bool(proposal.findings) == bool(words)
    if not words:
        samples = sample_log(find_log(str(folder)), proposal.as_format(), 10_000)
        rows = [choose_kernels("auto").parse_chunk(sample.chunk, proposal.as_format()).rows for sample in samples]
        assert sum(len(each.labels) for each in rows) == 200 * num_parts
