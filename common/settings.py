"""Hold settings in frozen dataclasses, whose values a YAML file and `section.key=value` arguments change.

    dataclass  <-  configs/*.yaml  <-  section.key=value

An unknown key or a value of the wrong type is an error that names the place and the nearest key.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import functools
import json
import math
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from common.text import nearest

Settings = TypeVar("Settings")
# Keep the results of this function, because evaluating the type hints of a class takes most of the time of `merge`.
type_hints = functools.cache(typing.get_type_hints)


@dataclass(frozen=True)
class Bounds:
    """The allowed range of a setting, used in a type annotation: `Annotated[float, Bounds(least=0, below=1)]`.

    `least` and `most` are inclusive, `above` and `below` exclusive. `expected` is text that replaces the bounds in
    errors and docs. If the setting is a list, the bounds apply to each element, and the list must not be empty.
    """

    least: float = -math.inf
    above: float = -math.inf
    most: float = math.inf
    below: float = math.inf
    expected: str = ""

    def __str__(self) -> str:
        is_open, low, high = math.isinf(self.least), max(self.least, self.above), min(self.most, self.below)
        if self.expected or math.isfinite(high):
            ends = "(["[not is_open], ")]"[high == self.most]
            return self.expected or f"in {ends[0]}{low:g}, {high:g}{ends[1]}"
        return f"above {low:g}" if is_open else f"{low:g} or more"

    def admit(self, value: Any) -> bool:
        """Return True if `value` is None, a finite number within the bounds, or a non-empty tuple of such numbers."""
        if isinstance(value, tuple):
            return bool(value) and all(map(self.admit, value))
        return value is None or bool(self.least <= value <= self.most and self.above < value < self.below)


# Used as `Removed.value` for a removed setting that never changed a result: a run or file that recorded the setting is
# accepted, whatever value it recorded.
ANY_VALUE = object()


@dataclass(frozen=True)
class Removed:
    """A setting, or a section of settings, that an earlier release had and this one does not have.

    The class of all settings of a program has the class attribute `REMOVED`, which maps the full names of removed
    settings to objects of this class. `merge` raises an error for a removed setting. `without_removed` drops the
    setting from settings that an earlier release has written to a file.
    """

    now: str  # Text for the error message: how the program behaves now, and what to use in place of the setting.
    # Value of the removed setting with which an earlier release behaved as the program does now.
    value: Any = ANY_VALUE


class OutOfBoundsError(ValueError):
    """Raised if a number is outside of the bounds of its setting.

    The message begins with the name of the setting's field, without the name of its section.
    """


class Checked:
    """Base class of settings. It checks each number against the `Bounds` in the annotation of the number's field.

    A subclass that has rules between its fields checks them in its own `__post_init__`, which first calls
    `Checked.__post_init__`.
    """

    def __post_init__(self) -> None:
        """Check the numbers of a new object. Raise OutOfBoundsError for the first field whose number is outside of its
        `Bounds`.
        """
        for name, bounds in bounds_of(type(self)).items():  # type: ignore[arg-type]
            value = getattr(self, name)
            if not bounds.admit(value):
                is_infinite = isinstance(value, float) and not math.isfinite(value)
                value_to_print = list(value) if isinstance(value, tuple) else value
                raise OutOfBoundsError(f"{name} must be {bounds}{', and finite' * is_infinite}; found {value_to_print}")


def did_you_mean(name: str, known: Sequence[str]) -> str:
    """Return a text for the end of an error message about the unknown name `name`: what the user may have meant.

    The text asks about the name in `known` that is most similar, or lists all names in `known` if none is similar.
    """
    return f"did you mean {close!r}?" if (close := nearest(name, known)) else f"known here: {', '.join(known)}"


@functools.cache
def bounds_of(settings_class: type) -> dict[str, Bounds]:
    """Return the `Bounds` of each field of a settings class by the field's name. Fields without bounds are left out."""
    hints = typing.get_type_hints(settings_class, include_extras=True)
    return {name: hint.__metadata__[0] for name, hint in hints.items() if typing.get_origin(hint) is Annotated}


Count = Annotated[int, Bounds(least=1)]
CountOrZero = Annotated[int, Bounds(least=0)]
Seed = Annotated[int, Bounds(least=0, below=2**63, expected="between 0 and 2**63 - 1")]
Positive = Annotated[float, Bounds(above=0)]
NotNegative = Annotated[float, Bounds(least=0)]
Fraction = Annotated[float, Bounds(least=0, below=1)]


def flatten(sections: Mapping[str, Any], before: str = "") -> dict[str, Any]:
    """Return settings that are nested mappings as one flat mapping, whose keys have the form `section.key`."""
    flat: dict[str, Any] = {}
    for name, value in sections.items():
        flat |= flatten(value, f"{before}{name}.") if isinstance(value, dict) else {f"{before}{name}": value}
    return flat


def setting_text(value: Any) -> str:
    """Return a setting's value as it is written in YAML and on a command line, such as true, null or ["a", "b"]."""
    return value if value and isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def without_removed(recorded: Mapping[str, Any], removed: Mapping[str, Removed]) -> dict[str, Any]:
    """Return a copy of the settings `recorded` by an earlier release, without removed settings that now have no effect.

    `recorded` is a nested mapping. `removed` maps the full names of removed settings to their descriptions. A setting
    whose recorded value is `Removed.value` asked for what the program does now, so it is dropped. A removed setting
    with another value stays, so that `merge` raises an error for it and comparisons of settings see the difference.
    """
    result: dict[str, Any] = copy.deepcopy(dict(recorded))
    for setting, gone in removed.items():
        *names, key = setting.split(".")
        section = functools.reduce(lambda inner, name: inner.get(name) or {}, names, result)
        if key in section and (gone.value is ANY_VALUE or section[key] == gone.value):
            del section[key]
    return result


def merge(
    settings: Settings, changes: Mapping[str, Any], where: str, prefix: str = "", whole: Settings | None = None
) -> Settings:
    """Return a copy of `settings` in which the values of `changes`, a nested mapping, replace the old values.

    In errors, `where` says where the changes come from, and `prefix` is put before the key. If `settings` are only one
    section, `whole` are all settings: the error about an unknown key then looks for the key in other sections. Raise
    ValueError for an unknown key, a removed one (see `Removed`) or a wrong value.
    """
    whole = settings if whole is None else whole
    hints = type_hints(type(settings))  # type: ignore[arg-type]
    names = [field.name for field in dataclasses.fields(settings)]  # type: ignore[arg-type]
    changed: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in names:
            raise ValueError(
                f"{where}: unknown key '{prefix}{name}'; {_advice(str(name), value, names, prefix, whole)}"
            )
        current = getattr(settings, name)
        if dataclasses.is_dataclass(current):
            if not isinstance(value, Mapping):
                raise ValueError(
                    f"{where}: '{prefix}{name}' is a section with keys, found {type(value).__name__} {value!r}"
                )
            variant = _variant(current, hints[name], value, where, f"{prefix}{name}")
            changed[name] = merge(variant, value, where, f"{prefix}{name}.", whole)
        else:
            changed[name] = convert(value, hints[name], where, f"{prefix}{name}")
    try:
        return dataclasses.replace(settings, **changed)  # type: ignore[type-var]
    except OutOfBoundsError as error:
        raise ValueError(f"{where}: {prefix}{error}") from error
    # The error comes from `__post_init__` of the section's class, which checks rules between fields.
    except ValueError as error:
        raise ValueError(f"{where}: {error}") from error


def _advice(name: str, value: object, names: Sequence[str], prefix: str, whole: object) -> str:
    """Return the end of the error message about the unknown key `name`: which key the user may have meant.

    `value` is what the user gave the unknown key, `names` are the keys of its section, and `prefix` is that section's
    name with a dot, or "" outside of sections. `whole` are all settings. The text names keys of other sections that end
    with the same word, or else the most similar key of this section, or else all keys of this section. For a removed
    setting, the text says how the program behaves now (`Removed.now`).
    """
    if gone := getattr(whole, "REMOVED", {}).get(f"{prefix}{name}"):
        return f"it was removed, so leave it out: {gone.now}"
    last_words = {key.rpartition(".")[2] for key in flatten({name: value})}
    all_keys = flatten(dataclasses.asdict(whole))  # type: ignore[call-overload]
    elsewhere = [key for key in all_keys if not (prefix and key.startswith(prefix))]
    keys = [key for key in elsewhere if key.rpartition(".")[2] in last_words]
    close = nearest(name, names)
    if keys:
        near = [key for key in keys if close and key.startswith(f"{prefix}{close}.")]
        return f"did you mean {' or '.join(map(repr, near or keys))}?"
    return f"did you mean '{prefix}{close}'?" if close else f"known here: {', '.join(prefix + each for each in names)}"


def _variant(current: Any, hint: Any, changes: Mapping[str, Any], where: str, key: str) -> Any:
    """Return the section of settings to which `merge` applies `changes`.

    Some sections, such as optimizers, have one class for each variant, and the key `name` selects the class. If
    `changes` select another variant than that of `current`, return an object of the other class with its defaults.
    Otherwise return `current`.
    """
    variants: dict[str, Any] = {getattr(variant, "name", ""): variant for variant in typing.get_args(hint)}
    variant_name = changes.get("name")
    if not variants or variant_name is None or variant_name == current.name:
        return current
    if variant_name not in variants:
        hint_text = f"; did you mean '{close}'?" if (close := nearest(str(variant_name), variants)) else ""
        raise ValueError(
            f"{where}: '{key}.name' must be one of {', '.join(variants)}; found {variant_name!r}{hint_text}"
        )
    return variants[variant_name]()


def convert(value: Any, hint: Any, where: str, key: str) -> Any:
    """Return `value` converted to the type `hint` of a setting.

    The hint may be a scalar, Literal, tuple[X, ...], dict[str, X], a settings class, or a union of one of these with
    None. A scalar in place of a tuple of scalars becomes a tuple of one element. If the hint is a union, a list or
    tuple is converted to the tuple type in it, another value to the first other type in it. Raise ValueError, naming
    `where` and `key`, for a wrong value.
    """
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (types.UnionType, typing.Union):
        if value is None and type(None) in arguments:
            return None
        inner = [argument for argument in arguments if argument is not type(None)]
        is_list = isinstance(value, (list, tuple))
        fitting = [argument for argument in inner if (typing.get_origin(argument) is tuple) == is_list]
        return convert(value, (fitting or inner)[0], where, key)
    if origin is typing.Literal:
        if value not in arguments:
            raise ValueError(f"{where}: '{key}' must be one of {', '.join(map(str, arguments))}; found {value!r}")
        return value
    if origin is tuple:
        # Treat a scalar in place of a list as a list of one element.
        if arguments[0] in _SCALARS and isinstance(value, (str, int, float)):
            value = [value]
        if not isinstance(value, (list, tuple)):
            raise _wrong_type(where, key, "a list such as [64, 32]", value)
        return tuple(convert(item, arguments[0], where, f"{key}[{i}]") for i, item in enumerate(value))
    if origin is dict:
        if not isinstance(value, Mapping):
            raise _wrong_type(where, key, "a mapping such as {C3: 20}", value)
        return {str(name): convert(item, arguments[1], where, f"{key}.{name}") for name, item in value.items()}
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        if isinstance(value, Mapping):
            return merge(hint(), value, where, f"{key}.")
        if not isinstance(value, hint):
            raise _wrong_type(where, key, "a section with keys", value)
        return value
    return _convert_scalar(value, hint, where, key)


# For each scalar type of a setting: the types of values read from YAML that are accepted for it, and its name in
# messages. YAML reads 1e-3 (without a dot) as text, so a float may be given as text.
_SCALARS: dict[Any, tuple[tuple[type, ...], str]] = {
    bool: ((bool,), "true or false"),
    int: ((int,), "a whole number"),
    float: ((int, float, str), "a number"),
    str: ((str, int, float), "text"),
}


def _convert_scalar(value: Any, hint: Any, where: str, key: str) -> Any:
    if hint not in _SCALARS:
        raise TypeError(f"settings field '{key}' has type {hint!r}, which settings.py does not support")
    accepted, expected = _SCALARS[hint]
    if isinstance(value, accepted) and isinstance(value, bool) == (hint is bool):
        with contextlib.suppress(ValueError):
            return hint(value)
    if hint is str and isinstance(value, bool):
        expected = "text (YAML takes yes, no, on and off without quotes for true and false: write them in quotes)"
    raise _wrong_type(where, key, expected, value)


def as_dict(settings: Any) -> dict[str, Any]:
    """Return the object `settings` as nested mappings and lists that can be written as YAML or JSON."""
    plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(settings)))
    return plain


def _wrong_type(where: str, key: str, expected: str, value: Any) -> ValueError:
    return ValueError(f"{where}: '{key}' must be {expected}; found {type(value).__name__} {value!r}")
