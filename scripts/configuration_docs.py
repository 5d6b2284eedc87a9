"""Print docs/configuration.md, the page of all settings. They are read from the dataclasses that define them.

    python -m scripts.configuration_docs > docs/configuration.md

The description of a setting is the comment of its field. Its range comes from its annotation. The texts that a setting
allows are taken from the error message for a wrong value.
"""

from __future__ import annotations

import dataclasses
import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Iterator, Sequence
from typing import Any

from app.config.config import Config
from app.config.optimizer_settings import DeepOptimizer, Schedule, TowerOptimizer, WideOptimizer
from common.settings import bounds_of
from data_prep.options.format_checks import check_list, check_vector, checked_format
from data_prep.options.log_format import ListForm, LogFormat, VectorForm
from data_prep.options.prepare_options import FieldOptions

OPENING = """# Configuration

Written by `make docs` from the dataclasses in `app/config/` and `data_prep/options/`; do not edit it by hand.

A run's settings are the defaults below, changed by the YAML file of `--config` (for `train` it is `configs/auto.yaml`
if none is given), then by words such as `train.batch_size=4096` on the command line. An unknown name or a value of the
wrong type is an error that names the nearest setting. `configs/*.yaml` are complete examples.
"""
PREPARE = "The preparation, `python -m data_prep prepare`. All settings but the last three decide its result."
DATA = """The format of a raw log. A file of `configs/data/` has these names without `prepare.data.`; the defaults are
Criteo's."""
OPTIMIZERS = """The wide table with its head, the deep table and the tower have an optimizer each. Another name, such as
`deep_optimizer.name=adam`, starts from that optimizer's defaults. Below, `GROUP` is `wide`, `deep` or `tower`.
"""
SCHEDULES = """Each optimizer has a schedule, such as `deep_optimizer.schedule.name=cosine`. The default is the first.
"""
GROUPS: dict[str, Any] = {"wide": WideOptimizer, "deep": DeepOptimizer, "tower": TowerOptimizer}
WRONG_VALUES: tuple[Any, ...] = (-1, "?", "", ())
# For classes of sections whose values another function checks: this function. All other classes check their values when
# an object is created.
CHECKS: dict[type, Any] = {LogFormat: checked_format, ListForm: check_list, VectorForm: check_vector}
TYPES = {
    bool: "true or false",
    int: "whole number",
    float: "number",
    str: "text",
    **dict.fromkeys((ListForm, VectorForm, FieldOptions), "section"),
}


def markdown() -> str:
    """Return the text of docs/configuration.md, the page of all settings."""
    return "\n".join([OPENING, *_sections(), *_optimizers(), *_schedules()])


def _sections() -> Iterator[str]:
    for field in dataclasses.fields(Config):
        if field.name.removesuffix("_optimizer") not in GROUPS:
            section = type(getattr(Config(), field.name))
            text = PREPARE if field.name == "prepare" else section.__doc__
            yield from _table(f"## {field.name}", text, section, f"{field.name}.")
            if field.name == "prepare":
                yield from _table("## prepare.data", DATA, LogFormat, "prepare.data.")
                yield from _table("### lists", ListForm.__doc__, ListForm, "prepare.data.lists.COLUMN.")
                yield from _table("### vectors", VectorForm.__doc__, VectorForm, "prepare.data.vectors.COLUMN.")


def _optimizers() -> Iterator[str]:
    yield f"## Optimizers\n\n{OPTIMIZERS}"
    yield "| setting | default | names |\n|---|---|---|"
    for group, variants in GROUPS.items():
        default = getattr(Config(), f"{group}_optimizer").name
        yield f"| `{group}_optimizer.name` | {default} | {', '.join(v.name for v in typing.get_args(variants))} |"
    yield ""
    yield from _variants("optimizer", tuple(dict.fromkeys(itertools.chain(*map(typing.get_args, GROUPS.values())))), "")


def _schedules() -> Iterator[str]:
    yield f"## Learning rate schedules\n\n{SCHEDULES}"
    yield from _variants("schedule", typing.get_args(Schedule), "schedule.")


def _variants(what: str, classes: Sequence[Any], prefix: str) -> Iterator[str]:
    """Yield the lines of two Markdown tables: one of the variants (`classes`) that the key `name` of a section selects,
    such as the optimizers, and one of all settings of these classes.
    """
    yield f"| {what} | |\n|---|---|"
    yield from (f"| `{cls.name}` | {' '.join(cls.__doc__.split())} |" for cls in classes)
    # For each setting: its default values, each with the names of the classes that have this default.
    defaults: dict[tuple[str, ...], dict[str, list[str]]] = {}
    for cls in classes:
        for name, type_, default, allowed, meaning in _rows(cls):
            of_setting = defaults.setdefault((f"GROUP_optimizer.{prefix}{name}", type_, allowed, meaning), {})
            of_setting.setdefault(default, []).append(cls.name)
    yield f"\n| setting | type | {what}: default | allowed | meaning |\n|---|---|---|---|---|"
    names_in_order = [name for name, *_ in defaults]
    for (name, type_, allowed, meaning), by_default in sorted(
        defaults.items(), key=lambda of: names_in_order.index(of[0][0])
    ):
        is_of_all = len(by_default) == 1 and len(*by_default.values()) == len(classes)
        shown = (f"{'all' if is_of_all else ', '.join(names)}: {value}" for value, names in by_default.items())
        yield f"| `{name}` | {type_} | {'<br>'.join(shown)} | {allowed} | {meaning} |"
    yield ""


def _table(heading: str, text: str | None, cls: Any, prefix: str) -> Iterator[str]:
    yield f"{heading}\n\n{' '.join((text or '').split())}\n"
    yield "| setting | type | default | allowed | meaning |\n|---|---|---|---|---|"
    yield from (f"| `{prefix}{name}` | {' | '.join(cells)} |" for name, *cells in _rows(cls))
    yield ""


def _rows(cls: Any) -> Iterator[tuple[str, ...]]:
    """Yield name, type, default, allowed values and meaning of each setting of the section `cls`, as cells of a table.

    The setting `name` and nested sections are left out.
    """
    hints, sentences = typing.get_type_hints(cls), sentences_of(cls)
    for field in dataclasses.fields(cls):
        hint, value = hints[field.name], getattr(cls(), field.name)
        if field.name == "name" or dataclasses.is_dataclass(value):
            continue
        allowed = _allowed(cls, field.name, hint)
        cells = (field.name, _type(hint), _default(value), allowed, _sentence(sentences[field.name], allowed))
        yield tuple(cell.replace("|", chr(92) + "|") for cell in cells)


def sentences_of(cls: type) -> dict[str, str]:
    """Return the comment of each field of a dataclass and its base classes, by the field's name.

    A field without a comment has the text "".
    """
    found: dict[str, str] = {}
    for each in reversed([base for base in cls.__mro__ if dataclasses.is_dataclass(base)]):
        above: list[str] = []
        for line in textwrap.dedent(inspect.getsource(each)).splitlines():
            if comment := re.fullmatch(r" +# ?(.*)", line):
                above.append(comment[1])
                continue
            if field := re.fullmatch(r"    (\w+): .*?(?:  # (.*))?", line):
                words = [*above, field[2] or ""]
                found[field[1]] = " ".join(words).strip() or found.get(field[1], "")
            above = []
    return found


def _sentence(text: str, allowed: str) -> str:
    """Return a setting's comment as a sentence for the docs: with a full stop, and a capital at the beginning.

    A comment that begins with one of the `allowed` values, or with a name, keeps its first letter.
    """
    first = text.split(" ")[0].rstrip(":")
    if first not in [*allowed.split(", "), "true", "false"] and not re.match(r"\w+(_\w+|:)", text):
        text = text[:1].upper() + text[1:]
    return text + "." * (not text.endswith("."))


def _type(hint: Any) -> str:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        return _type(arguments[0])
    if origin is typing.Literal:
        return "text"
    if origin is tuple:
        return f"list of {_type(arguments[0])}s".replace("texts", "text")
    if origin is dict:
        return f"mapping to {_type(arguments[1])}"
    return TYPES[hint]


def _default(value: Any) -> str:
    if isinstance(value, dict) and len(value) > 3:
        return "Criteo's"
    if isinstance(value, tuple):
        return f"`[{', '.join(map(str, value))}]`"
    if value is None or value == "":
        return ""
    return f"`{str(value).lower() if isinstance(value, bool) else repr(value).strip(chr(39))}`"


def _allowed(cls: Any, name: str, hint: Any) -> str:
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is typing.Literal:
        return ", ".join(map(str, arguments))
    if typing.get_origin(hint) is dict and typing.get_origin(arguments[1]) is typing.Literal:
        return ", ".join(typing.get_args(arguments[1]))
    if name in (bounds := bounds_of(cls)):
        return str(bounds[name])
    for wrong in WRONG_VALUES:
        try:
            CHECKS.get(cls, bool)(cls(**{name: wrong}))
        except (ValueError, TypeError, AttributeError) as error:
            answer = re.search(r"\bmust be (.+?)(?:, and finite)?(?:[;,] found|$)", str(error))
            if answer and name in str(error):
                return answer[1]
    return ""


if __name__ == "__main__":
    print(markdown(), end="")
