"""Read settings from YAML files and `section.key=value` arguments."""

from __future__ import annotations

import typing
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from common.packages import PROJECT
from common.settings import Settings, merge


def resolve(
    cls: type[Settings], yaml_path: Path | None = None, overrides: Iterable[str] = (), base: Settings | None = None
) -> Settings:
    """Return the settings `base` after changing them by a YAML file and then by `section.key=value` arguments.

    `base` is by default an object of `cls` with its default values. Raise ValueError for an unknown key, a wrong type,
    or an argument without `=`. Raise FileNotFoundError if the YAML file is missing.
    """
    settings = cls() if base is None else base
    if yaml_path is not None:
        settings = merge(settings, read_yaml(yaml_path), where=str(yaml_path))
    return override(settings, overrides)


def override(settings: Settings, words: Iterable[str]) -> Settings:
    """Return a copy of `settings` that is changed by all of `words`, which have the form `section.key=value`, together.

    All changes are applied at once, because some values are only valid in combination. If a key occurs twice, the later
    value counts. Raise ValueError for an unknown key, a wrong type, or a word without `=`.
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
    """YAML constructor that raises an error if a mapping has a key twice.

    Without this class, PyYAML would silently take the later of the two values.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if str(key.value) in seen:
                raise yaml.constructor.ConstructorError(None, None, f"key {key.value!r} occurs twice", key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


class _Loader(_UniqueKeys, yaml.SafeLoader):
    """YAML loader written in Python. It is slow, but its error messages show the faulty line."""


class _FastLoader(_UniqueKeys, getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
    """YAML loader that parses with the C library libyaml, if PyYAML was built with it, in a tenth of the time."""


# YAML writer that uses the C library libyaml, if PyYAML was built with it. Otherwise PyYAML's own writer is used, which
# takes three times as long.
_FAST_DUMPER = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


def load_yaml(text: str) -> Any:
    """Return the value of a YAML text. Raise YAMLError if the text is not YAML or has a key twice in a mapping."""
    try:
        return yaml.load(text, _FastLoader)  # noqa: S506 (it is a SafeLoader)
    except yaml.YAMLError:
        return yaml.load(text, _Loader)  # noqa: S506 (it is a SafeLoader)


def dump_yaml(value: Any) -> str:
    """Return the YAML text of mappings, lists and scalars. Mappings keep the order of their keys."""
    return yaml.dump(value, Dumper=_FAST_DUMPER, sort_keys=False)


def find_config(path: Path) -> Path:
    """Return the path of the settings file that a user means by `path`.

    A path that begins with configs/, such as configs/auto.yaml, means the file in the project's folder, unless the
    current folder has a file with this path. All other paths are returned unchanged.
    """
    is_of_project = path.parts[:1] == ("configs",) and ((PROJECT / path).is_file() or not path.parent.is_dir())
    return PROJECT / path if is_of_project and not path.is_file() else path


def read_yaml(path: Path) -> dict[str, Any]:
    """Return the mapping that a YAML file contains. An empty file is an empty mapping.

    `find_config` locates the file. Raise FileNotFoundError if there is no such file, and ValueError if its content is
    not a mapping in YAML.
    """
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
    """Return the mapping that a YAML text contains. An empty text is an empty mapping.

    `where` names the origin of the text in errors. Raise ValueError if the text is not YAML, or not a mapping.
    """
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
    """Return an argument `section.key=value` as nested mappings: {section: {key: value}}.

    The value is YAML, such as `[64, 32]`, `1e-3` or `true`. Raise ValueError if there is no `=`, or if the value is not
    YAML.
    """
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
