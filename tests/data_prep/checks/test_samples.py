"""describe looks at rows from all over its input."""

import numpy as np
import pandas as pd
import pytest

from data_prep.checks.propose import describe
from data_prep.raw_log.formats import spread

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


@pytest.mark.parametrize("change", [lambda frame: frame[frame.columns[::-1]], lambda frame: frame.assign(more=1)])
def test_parts_with_other_headers_are_named(tmp_path, change):
    part(1).to_csv(tmp_path / "a.csv", index=False)
    change(part(2)).to_csv(tmp_path / "b.csv", index=False)
    with pytest.raises(ValueError, match=r"a\.csv has the columns click, .*, and a later file .*set others: ignored"):
        describe(str(tmp_path))
