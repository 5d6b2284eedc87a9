"""The ranks of a job: how many there are, and the rank table that an Ascend cluster is described by."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RANK_TABLE_VERSION = "1.0"
EXAMPLE = "configs/rank_table_1p_0.json is an example"


def check_rank_table(path: Path, num_ranks: int) -> None:
    """Raise ValueError or FileNotFoundError unless the file describes `num_ranks` ranks, one device each.

    The form is that of HCCL's `hccl_tools`: version, server_count, server_list[*].device[*].rank_id, status.
    """
    if not path.is_file():
        raise FileNotFoundError(f"no rank table {path}; give '-' where there is none to give ({EXAMPLE})")
    try:
        table = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"rank table {path} is not JSON: {error} ({EXAMPLE})") from error
    if not isinstance(table, dict) or table.get("version") != RANK_TABLE_VERSION:
        found = table.get("version") if isinstance(table, dict) else type(table).__name__
        raise ValueError(f"rank table {path}: expected version {RANK_TABLE_VERSION!r}, found {found!r} ({EXAMPLE})")
    rank_ids = _rank_ids(path, table.get("server_list"))
    if sorted(rank_ids) != list(range(num_ranks)):
        raise ValueError(
            f"rank table {path}: expected one device each for the ranks 0 … {num_ranks - 1}, "
            f"found rank_id {rank_ids}; it must fit RANK_SIZE={num_ranks} ({EXAMPLE})"
        )


def _rank_ids(path: Path, server_list: Any) -> list[int]:
    if not isinstance(server_list, list) or not server_list:
        raise ValueError(f"rank table {path}: 'server_list' must be a list of servers ({EXAMPLE})")
    rank_ids = []
    for number, server in enumerate(server_list):
        devices = server.get("device") if isinstance(server, dict) else None
        if not isinstance(devices, list) or not devices:
            raise ValueError(f"rank table {path}: server_list[{number}] has no list 'device' ({EXAMPLE})")
        for device in devices:
            try:
                rank_ids.append(int(device["rank_id"]))
            except (KeyError, TypeError, ValueError):
                raise ValueError(
                    f"rank table {path}: server_list[{number}] has a device without a numeric rank_id: {device!r} "
                    f"({EXAMPLE})"
                ) from None
    return rank_ids
