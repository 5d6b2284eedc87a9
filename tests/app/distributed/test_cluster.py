import json

import pytest

from app.distributed.mpirun import check_rank_table


def table_of(*servers, **changes):
    """A rank table whose servers have devices with these rank ids."""
    server_list = [
        {"server_id": f"192.0.2.{number}", "device": [{"device_id": str(i), "rank_id": i} for i in rank_ids]}
        for number, rank_ids in enumerate(servers)
    ]
    return {"version": "1.0", "server_count": str(len(servers)), "server_list": server_list, **changes}


@pytest.fixture
def write(tmp_path):
    def write_table(content):
        path = tmp_path / "rank_table.json"
        path.write_text(content if isinstance(content, str) else json.dumps(content))
        return path

    return write_table


def test_the_example_is_right(project):
    check_rank_table(project / "configs" / "rank_table_1p_0.json", 1)


def test_ranks_over_servers_in_any_order(write):
    check_rank_table(write(table_of(["2", "3"], ["1", "0"])), 4)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "is not JSON"),
        ("", "is not JSON"),
        ("[]", "expected version '1.0', found 'list'"),
        ("{}", "expected version '1.0', found None"),
        (table_of(["0"], version="2.0"), "expected version '1.0', found '2.0'"),
        (table_of(), "'server_list' must be a list of servers"),
        (table_of(server_list={"device": []}), "'server_list' must be a list of servers"),
        (table_of([]), r"server_list\[0\] has no list 'device'"),
        (table_of(["0"], server_list=["192.0.2.1"]), r"server_list\[0\] has no list 'device'"),
        (table_of(["0"], ["first"]), r"server_list\[1\] has a device without a numeric rank_id: .*'first'"),
        (table_of(["0"], server_list=[{"device": ["0"]}]), "without a numeric rank_id: '0'"),
        (table_of(["0", "0"]), r"found rank_id \[0, 0\]"),
        (table_of(["0", "1"]), r"for the ranks 0 … 0, found rank_id \[0, 1\]; it must fit RANK_SIZE=1"),
        (table_of(["1"]), r"found rank_id \[1\]"),
    ],
)
def test_a_wrong_table_is_described_with_an_example(write, content, message):
    with pytest.raises(ValueError, match=rf"rank table .*rank_table\.json.*{message}.*rank_table_1p_0\.json"):
        check_rank_table(write(content), 1)


def test_a_missing_table(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no rank table .*; give '-' to run without one"):
        check_rank_table(tmp_path / "rank_table.json", 1)
