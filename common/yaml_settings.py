"""A command line's words: commands, and settings `section.key=value`, which come from YAML files too."""

from __future__ import annotations

import argparse
import typing
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import yaml

from common.packages import PROJECT
from common.settings import Settings, merge


class CommandParser(argparse.ArgumentParser):
    """argparse's parser, but an unknown argument after a command is answered with that command's usage."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> tuple[argparse.Namespace, list[str]]:
        """Parse as argparse does, and end with a usage error for what it does not know."""
        parsed, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return parsed, unknown


def resolve(
    cls: type[Settings], yaml_path: Path | None = None, overrides: Iterable[str] = (), base: Settings | None = None
) -> Settings:
    """Return `base`, by default the defaults of `cls`, changed by a YAML file, then by `section.key=value`.

    Raises ValueError for an unknown key, a wrong type or an override without `=`, FileNotFoundError for a
    missing file.
    """
    settings = cls() if base is None else base
    if yaml_path is not None:
        settings = merge(settings, read_yaml(yaml_path), where=str(yaml_path))
    return override(settings, overrides)


def override(settings: Settings, words: Iterable[str]) -> Settings:
    """Return `settings` changed by all of `words` (`section.key=value`) at once, as some are only valid together.

    Of two for the same key the later one counts. Raises ValueError as `resolve` does.
    """
    words = list(words)
    changes: dict[str, Any] = {}
    for word in words:
        _merge_into(changes, parse_override(word))
    return merge(settings, changes, where=f"argument{'s' * (len(words) > 1)} {', '.join(map(repr, words))}")


def _merge_into(changes: dict[str, Any], more: dict[str, Any]) -> None:
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(changes.get(name), dict):
            _merge_into(changes[name], value)
        else:
            changes[name] = value


class _UniqueKeys(yaml.constructor.SafeConstructor):
    """Refuses duplicate keys, of which PyYAML would silently take the last one."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} occurs twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


class _Loader(_UniqueKeys, yaml.SafeLoader):
    """Its errors show the line."""


class _FastLoader(_UniqueKeys, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """Takes a tenth of the time, as it parses by libyaml."""


_FAST_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)  # takes a third of the time


def load_yaml(text: str) -> Any:
    """Return what YAML text stands for. Raises YAMLError, for duplicate keys too."""
    try:
        return yaml.load(text, _FastLoader)  # noqa: S506 (it is a SafeLoader)
    except yaml.YAMLError:
        return yaml.load(text, _Loader)  # noqa: S506 (it is a SafeLoader)


def dump_yaml(value: Any) -> str:
    """Return YAML text of plain values, in their order."""
    return yaml.dump(value, Dumper=_FAST_DUMPER, sort_keys=False)


def find_config(path: Path) -> Path:
    """Return the path of a file of settings: configs/auto.yaml is the project's, unless there is one here."""
    is_of_project = path.parts[:1] == ("configs",) and ((PROJECT / path).is_file() or not path.parent.is_dir())
    return PROJECT / path if is_of_project and not path.is_file() else path


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping in a YAML file, as `find_config` finds it. An empty file is an empty mapping."""
    path = find_config(path)
    if not path.is_file():
        folder = path.parent if path.parent.is_dir() else Path()
        names = ", ".join(sorted(p.name for p in folder.glob("*.yaml"))) or "none"
        raise FileNotFoundError(f"no config file {path}; the .yaml files in {folder}: {names}")
    try:
        return parse_yaml(path.read_text(encoding="utf-8"), where=str(path))
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from error


def parse_yaml(text: str, where: str) -> dict[str, Any]:
    """Return the mapping that is YAML text. `where` names its origin in errors."""
    try:
        content = load_yaml(text)
    except yaml.YAMLError as error:
        raise ValueError(f"{where} is not YAML: {error}") from error
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise ValueError(f"{where}: expected sections with keys, found {type(content).__name__}")
    return content


def parse_override(word: str) -> dict[str, Any]:
    """Parse `section.key=value` to nested mappings. The value is YAML (`[64, 32]`, `1e-3`, `true`)."""
    key, equals, text = word.partition("=")
    if not equals or not key:
        raise ValueError(f"argument {word!r}: expected section.key=value, such as train.batch_size=4096")
    try:
        value: Any = load_yaml(text)
    except yaml.YAMLError as error:
        raise ValueError(f"argument {word!r}: the value is not YAML: {error}") from error
    for name in reversed(key.split(".")):
        value = {name: value}
    return typing.cast("dict[str, Any]", value)
