"""The files of a release agree on its version, its licence and its date."""

import argparse
import re
import tomllib

import pytest
import yaml

import app.__main__
import data_prep.__main__
from app.cli import predict, serve
from common import RELEASE


def test_version_and_licence_are_the_same_everywhere(project):
    package = tomllib.loads((project / "pyproject.toml").read_text())["project"]
    citation = yaml.safe_load((project / "CITATION.cff").read_text())
    newest = re.findall(r"^## (\d\S+)", (project / "CHANGELOG.md").read_text(), re.MULTILINE)[0]
    assert package["version"] == citation["version"] == newest == RELEASE
    assert package["license"] == citation["license"] == "Apache-2.0"
    assert {"cff-version", "message", "title", "authors", "date-released"} <= citation.keys()


def test_the_licence_is_whole(project):
    text = (project / "LICENSE").read_text()
    assert "Version 2.0, January 2004" in text and "END OF TERMS AND CONDITIONS" in text
    assert [number for number in range(1, 10) if not re.search(rf"^ *{number}\. [A-Z]", text, re.MULTILINE)] == []


def commands_of(parser):
    """Yield the words of every command and subcommand of a parser, and of the program itself."""
    yield []
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield from ([name, *words] for words in commands_of(command))


def predict_alone(words):
    return predict.main(predict.add_arguments, "app.cli.predict", words)


def serve_alone(words):
    return predict.main(serve.add_arguments, "app.cli.serve", words)


@pytest.mark.parametrize(
    ("main", "commands"),
    [
        (app.__main__.main, [*commands_of(app.__main__._parser())]),
        (data_prep.__main__.main, [*commands_of(data_prep.__main__._parser())]),
        (predict_alone, [[]]),
        (serve_alone, [[]]),
    ],
)
def test_every_command_prints_the_version(main, commands, capsys):
    assert commands
    for words in commands:
        with pytest.raises(SystemExit) as ended:
            main([*words, "--version"])
        assert (ended.value.code, capsys.readouterr().out) == (0, f"{RELEASE}\n"), words
