"""What a field may hold, in words, read off the noun that declares it."""

from __future__ import annotations

import enum
import types
import typing
from collections.abc import Sequence
from typing import Any, Literal, get_args, get_origin

from pydantic import BaseModel
from pydantic.fields import FieldInfo

Declared = tuple[Any, tuple[Any, ...]]
"""A type and its bounds."""


def allowed(cls: type[BaseModel], path: Sequence[str | int]) -> str:
    """What may stand at `path` inside a `cls`: `an integer of at least 1`, `one of request, token`, …

    Empty where no such place is declared.
    """
    declared = _declared_at(cls, path)
    return describe(*declared[0]) if declared else ""


def model_at(cls: type[BaseModel], path: Sequence[str | int]) -> type[BaseModel] | None:
    """The noun that stands at `path` inside a `cls`, if one does."""
    models = (_model_in(annotation) for annotation, _ in _declared_at(cls, path))
    return next((model for model in models if model is not None), None)


def _declared_at(cls: type[BaseModel], path: Sequence[str | int]) -> list[Declared]:
    """What is declared for `path`; several where it leads through a union."""
    declared: list[Declared] = [(cls, ())]
    for part in path:
        declared = [step for annotation, _ in declared for step in _inside(annotation, part)]
    return declared


def _inside(annotation: Any, part: str | int) -> list[Declared]:
    """What `annotation` declares for its field, element or value `part`, for every branch of a union."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return _inside(args[0], part)
    if origin in (typing.Union, types.UnionType):
        return [found for arg in args for found in _inside(arg, part)]
    if origin is tuple and isinstance(part, int):
        return [(args[0], ())]
    if origin is dict:
        return [(args[1], ())]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        field = annotation.model_fields.get(str(part))
        return [(field.annotation, tuple(field.metadata))] if field else []
    return []


def describe(annotation: Any, bounds: tuple[Any, ...] = ()) -> str:
    """A type with its bounds, in words."""
    origin, args = get_origin(annotation), get_args(annotation)
    if origin is typing.Annotated:
        return describe(args[0], (*bounds, *args[1:]))
    if annotation is types.NoneType:
        return ""
    if origin in (typing.Union, types.UnionType):
        parts = [describe(arg, bounds) for arg in args if arg is not types.NoneType]
        return "a number" if parts == ["an integer", "a number"] else " or ".join(parts)
    if origin is Literal:
        return repr(args[0]) if len(args) == 1 else "one of " + ", ".join(map(str, args))
    if annotation in (int, float):
        return ("an integer" if annotation is int else "a number") + _range(bounds)
    if origin is tuple:
        inner = describe(args[0])
        return f"a list of {len(args)}, each {inner}" if Ellipsis not in args else f"a list, each {inner}"
    if origin is dict:
        return f"a mapping of {describe(args[0])} to {describe(args[1])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "a mapping with the keys " + ", ".join(annotation.model_fields)
    if isinstance(annotation, type) and issubclass(annotation, enum.Enum):
        return "one of " + ", ".join(str(member.value) for member in annotation)
    return {str: "text", bool: "true or false"}.get(annotation, "a value")


def _range(bounds: tuple[Any, ...]) -> str:
    """Bounds as annotated_types carry them (`ge`, `gt`, `le`, `lt`), also inside pydantic's Field."""
    found: dict[str, Any] = {}
    for bound in bounds:
        for item in bound.metadata if isinstance(bound, FieldInfo) else (bound,):
            found |= {k: getattr(item, k) for k in ("ge", "gt", "le", "lt") if hasattr(item, k)}
    found = {name: f"{bound:g}" if isinstance(bound, float) else bound for name, bound in found.items()}
    low = f"at least {found['ge']}" if "ge" in found else f"above {found['gt']}" if "gt" in found else ""
    high = f"at most {found['le']}" if "le" in found else f"below {found['lt']}" if "lt" in found else ""
    if "ge" in found and "le" in found:
        return f" from {found['ge']} to {found['le']}"
    both = " and ".join(part for part in (low, high) if part)
    return f" of {both}" if both.startswith("at") else f" {both}" if both else ""


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in get_args(annotation) if (found := _model_in(arg))), None)
