"""What was run: settings, what differs between runs, command, machine, versions and data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import yaml

from app.run.record import RunRecord
from common.html.charts import Html
from common.html.page import code, definitions, section, table


def settings_section(runs: Sequence[RunRecord]) -> Html:
    """Differences first; then each run's own."""
    parts = []
    if len(runs) > 1:
        rows = differences(runs)
        head = ["setting", *(run.name for run in runs)]
        parts.append(table(head, rows, "What differs") if rows else Html("<p>All settings are the same.</p>"))
    for run in runs:
        named = {"run": run.name} if len(runs) > 1 else {}
        parts.append(definitions({**named, **described(run)}))
    parts.append(_whole(runs[0]))
    return section("Settings, command and machine", *parts)


def differences(runs: Sequence[RunRecord]) -> list[list[str]]:
    """Of each setting that is not the same in all runs: its name, and its value in each; "–" where a run has none."""
    flat = [flatten(run.config) for run in runs]
    names = list(dict.fromkeys(name for each in flat for name in each))
    rows = [[name, *(str(each.get(name, "–")) for each in flat)] for name in names]
    return [row for row in rows if len(set(row[1:])) > 1]


def flatten(config: dict[str, Any], before: str = "") -> dict[str, Any]:
    """Nested settings as `section.key`."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        if isinstance(value, dict) and value:
            found |= flatten(value, f"{before}{name}.")
        else:
            found[f"{before}{name}"] = value
    return found


def described(run: RunRecord) -> dict[str, object]:
    """What the run's state says of where and how it was run."""
    state = run.state
    rows = ", ".join(f"{name} {count:,}" for name, count in state.get("rows", {}).items())
    ids = state.get("identity", {}).get("data", {}).get("vocabulary_size", 0)
    versions = ", ".join(f"{name} {number}" for name, number in state.get("versions", {}).items())
    return {
        "command": code(state.get("command", "unknown")),
        "status": state["status"],
        "data": f"rows: {rows or 'unknown'}; {ids:,} ids",
        "machine": state.get("machine", "unknown"),
        "versions": f"Python {state.get('python', 'unknown')}, {versions}",
        "commit": state.get("commit", "unknown"),
    }


def _whole(run: RunRecord) -> Html:
    words = yaml.safe_dump(run.config, sort_keys=False)
    return Html(f"<details><summary>All settings of {run.name}</summary><pre>{code(words)}</pre></details>")
