"""Commands that messages advise: each one parses, and works from the folder where the message appears."""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.__main__ import _parser as app_parser
from common.packages import PROJECT, make_command, python_command
from data_prep.__main__ import _parser as data_prep_parser
from tests.programs import run_program

TARGETS = set(re.findall(r"(?m)^([a-z-]+):", (PROJECT / "Makefile").read_text()))
ADVICE = re.compile(rf"python3? (-P )?-m (app|data_prep)\b|\bmake ({'|'.join(TARGETS)})\b")
# The texts of argparse name the command as the user gave it.
USAGES = {"python -m app", "python -m data_prep", "example:\n  python -m data_prep "}
USAGES |= {"python -m data_prep COMMAND --help describes a command. --version prints the version."}


def sources() -> Iterator[tuple[Path, ast.Module]]:
    for package in ("app", "common", "data_prep"):
        for path in (PROJECT / package).rglob("*.py"):
            yield path, ast.parse(path.read_text())


def texts_of(tree: ast.Module) -> Iterator[str]:
    """Yield the string constants of a module, except docstrings."""
    alone = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in alone:
            yield node.value


def advised(function: str) -> list[str]:
    """Return the words of all calls of a function. X replaces what is known only when the program runs."""
    calls = [node for _, tree in sources() for node in ast.walk(tree) if isinstance(node, ast.Call)]
    words = [node.args[0] for node in calls if getattr(node.func, "id", "") == function]
    parts = [word.values if isinstance(word, ast.JoinedStr) else [word] for word in words]
    return [
        "".join(getattr(part, "value", "X") if isinstance(part, ast.Constant) else "X" for part in of) for of in parts
    ]


def test_no_message_spells_out_a_command():
    """Such a command would only work in the project's folder, after .venv was activated."""
    found = [(path.name, text) for path, tree in sources() for text in texts_of(tree) if ADVICE.search(text)]
    assert [each for each in found if each[1] not in USAGES] == []


def test_advised_commands_parse():
    commands = advised("python_command")
    assert len(commands) > 15 and len(advised("make_command")) > 5
    for module, *words in map(shlex.split, commands):
        {"app": app_parser, "data_prep": data_prep_parser}[module]().parse_args(words)
    assert set(advised("make_command")) - {"X"} <= TARGETS


@pytest.mark.parametrize("folder", ["", "scripts", "elsewhere"])
def test_advised_commands_work_in_each_folder(tmp_path, monkeypatch, folder):
    """The shell has no PYTHONPATH, and a folder elsewhere has modules with the project's names."""
    for name in ("app", "common", "data_prep"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path if folder == "elsewhere" else PROJECT / folder)
    log = tmp_path / "log.txt"
    for command in (python_command(f"data_prep synthesize {log} --rows 10"), make_command("help")):
        run_program("bash", "-c", command, env={"PATH": "/usr/bin:/bin"})
    assert len(log.read_text().splitlines()) == 10
