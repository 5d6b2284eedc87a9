"""Dataclasses that a program wrote as JSON, read again."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

Plain = TypeVar("Plain")


def from_dict(plain: Mapping[str, Any], cls: type[Plain]) -> Plain:
    """Return the dataclass that a program wrote as JSON. All items of a tuple have the type of its first one.

    Raises KeyError and TypeError for another class's content. Values are not checked, as `common.settings.convert` does
    for users.
    """
    hints = _type_hints(cls)  # type: ignore[arg-type]
    return cls(**{name: _from_plain(value, hints[name]) for name, value in dict(plain).items()})


_type_hints = functools.cache(typing.get_type_hints)


def _from_plain(value: Any, hint: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin is types.UnionType and isinstance(value, list):  # a list is the union's tuple
        origin, arguments = tuple, next(typing.get_args(each) for each in arguments if typing.get_origin(each) is tuple)
    if origin is tuple:
        return tuple(_from_plain(item, arguments[0]) for item in value)
    if origin is dict:
        return {name: _from_plain(item, arguments[1]) for name, item in dict(value).items()}
    return from_dict(value, hint) if isinstance(hint, type) and dataclasses.is_dataclass(hint) else value
