"""Restore dataclasses from the JSON that a program wrote."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

Plain = TypeVar("Plain")


def from_dict(plain: Mapping[str, Any], cls: type[Plain]) -> Plain:
    """Restore an object of the dataclass `cls` from its fields as plain values.

    All items of a tuple must have the type that the annotation names first. Values are not checked; for what a user
    wrote, there is `common.settings.convert`. Raise KeyError or TypeError if the content is that of another class.
    """
    hints = _type_hints(cls)  # type: ignore[arg-type]
    return cls(**{name: _from_plain(value, hints[name]) for name, value in dict(plain).items()})


_type_hints = functools.cache(typing.get_type_hints)


def _from_plain(value: Any, hint: Any) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    # JSON has no tuples, so a list stands for the tuple among the types of the union.
    if origin is types.UnionType and isinstance(value, list):
        origin, arguments = tuple, next(typing.get_args(each) for each in arguments if typing.get_origin(each) is tuple)
    if origin is tuple:
        return tuple(_from_plain(item, arguments[0]) for item in value)
    if origin is dict:
        return {name: _from_plain(item, arguments[1]) for name, item in dict(value).items()}
    return from_dict(value, hint) if isinstance(hint, type) and dataclasses.is_dataclass(hint) else value
