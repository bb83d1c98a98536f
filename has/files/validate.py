"""From data to a noun: pydantic's findings become one InputError that a person can act on."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from pydantic_core import ErrorDetails

from has.errors import InputError
from has.files.jsonl import not_finite
from has.files.words import allowed, model_at

NounT = TypeVar("NounT", bound=BaseModel)
Path = tuple[str | int, ...]
SUPPORTED_VERSION = 1

_ABSENT: Any = object()
_LEADING_FIELD = re.compile(r"([A-Za-z_]\w*(?:\.\w+)*): (.+)", re.DOTALL)
_KINDS = {
    dict: "a mapping",
    list: "a list",
    tuple: "a list",
    str: "text",
    bool: "true or false",
    type(None): "nothing",
}


@dataclass(frozen=True, slots=True)
class _Finding:
    path: Path
    message: str
    allowed: str = ""
    mend: str = ""
    value: Any = _ABSENT
    guessed: bool = False
    """Stems from one branch of a union; a finding deeper inside tells more."""
    misspelt: str = ""
    """The known key that an unknown one resembles: that it is missing, too, needs no saying."""


def validate(cls: type[NounT], data: Any, where: str = "argument") -> NounT:
    """`data` (plain mappings, lists and scalars) as a `cls`.

    Raises InputError naming `where`, the dotted field, its value, what is allowed and the mend;
    when there are several findings, all are listed and the first fills the error's attributes.
    """
    if not isinstance(data, Mapping):
        empty = data is None
        raise InputError(
            "is empty" if empty else f"must be a mapping of keys to values, not {_kind(data)}",
            where=where,
            allowed="a mapping with the keys " + ", ".join(cls.model_fields),
            mend="write at least the required keys: "
            + ", ".join(name for name, field in cls.model_fields.items() if field.is_required()),
        )
    findings = _wrong_version(cls, data) or _not_finite(data)
    if not findings:
        try:
            return cls.model_validate(data)
        except ValidationError as error:
            findings = _tidy([_finding(cls, data, item) for item in error.errors(include_url=False)])
        except RecursionError:
            findings = [_Finding((), "is nested too deeply")]
    raise _input_error(findings, where)


def _wrong_version(cls: type[BaseModel], data: Mapping[Any, Any]) -> list[_Finding]:
    """Another version would make nonsense of every other finding, so it is the only one."""
    if "version" not in cls.model_fields or "version" not in data:
        return []
    version = data["version"]
    if type(version) is int and version == SUPPORTED_VERSION:
        return []
    newer = type(version) is int and version > SUPPORTED_VERSION
    return [
        _Finding(
            ("version",),
            f"this HAS reads version {SUPPORTED_VERSION} only",
            allowed=str(SUPPORTED_VERSION),
            mend="upgrade HAS, or write the file anew" if newer else f"write version: {SUPPORTED_VERSION}",
            value=version,
        )
    ]


def _not_finite(data: Any) -> list[_Finding]:
    """NaN and infinities, wherever they stand: also in free-form parts, which no type guards."""
    return [
        _Finding((path,), "must be a finite number", "a finite number", value=value)
        for path, value in not_finite(data).items()
    ]


def _finding(cls: type[BaseModel], data: Any, error: ErrorDetails) -> _Finding:
    path, guessed = _real_path(data, error)
    kind = error["type"]
    may = allowed(cls, path)
    if kind == "extra_forbidden":
        return _unknown_key(model_at(cls, path[:-1]), path, error["input"])
    if kind == "missing":
        return _Finding(path, "is required", may, f"add {path[-1]}")
    if kind == "value_error":
        return _from_validator(data, path, str(error["ctx"]["error"]), guessed)
    if "[key]" in error["loc"]:
        return _Finding(path, "the key must be a number", "a number", value=path[-1])
    if kind == "invalid_key":
        return _Finding(path, "keys must be text", "text", value=path[-1])
    if kind in _TYPE_ERRORS:
        found = _kind(error["input"])
        shown = may if may and not may.startswith("a mapping with") else _TYPE_ERRORS[kind]
        message = f"must be {shown}" + (f", not {found}" if found else "")
        return _Finding(path, message, may or shown, value=_at(data, path), guessed=guessed)
    message = error["msg"].replace("Input should be", "must be").replace("Tuple should have", "must have")
    return _Finding(path, message[:1].lower() + message[1:], may, value=_at(data, path), guessed=guessed)


_TYPE_ERRORS = {
    "int_type": "an integer",
    "int_from_float": "an integer",
    "float_type": "a number",
    "bool_type": "true or false",
    "string_type": "text",
    "tuple_type": "a list",
    "list_type": "a list",
    "dict_type": "a mapping",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "finite_number": "a finite number",
}


def _real_path(data: Any, error: ErrorDetails) -> tuple[Path, bool]:
    """pydantic's location without the names of union branches, which no file holds."""
    path: Path = ()
    here, guessed, last = data, False, len(error["loc"]) - 1
    for index, part in enumerate(error["loc"]):
        if _holds(here, part):
            here = here[part]
        elif index == last and error["type"] in ("missing", "extra_forbidden"):
            here = None
        elif isinstance(here, Mapping) and part == "[key]":
            continue
        elif isinstance(here, Mapping) and (key := _numeric_key(here, part)) is not None:
            here = here[key]
        else:
            guessed = True
            continue
        path = (*path, part)
    return path, guessed


def _holds(here: Any, part: str | int) -> bool:
    if isinstance(here, Mapping):
        return part in here
    return isinstance(here, list | tuple) and isinstance(part, int) and part < len(here)


def _numeric_key(mapping: Mapping[Any, Any], part: str | int) -> Any:
    """pydantic spells the key 0.5 of a mapping as '0.5'."""
    return next((key for key in mapping if not isinstance(key, str) and str(key) == str(part)), None)


def _unknown_key(owner: type[BaseModel] | None, path: Path, value: Any) -> _Finding:
    known = list(owner.model_fields) if owner else []
    close = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.6)
    mend = f"did you mean {close[0]}?" if close else f"remove {path[-1]}"
    misspelt = close[0] if close else ""
    return _Finding(path, "unknown key", "the keys " + ", ".join(known), mend, value, misspelt=misspelt)


def _from_validator(data: Any, path: Path, message: str, guessed: bool) -> _Finding:
    """A noun's own check says `field: message`, the field counted from the noun that checks."""
    if match := _LEADING_FIELD.fullmatch(message):
        path = (*path, *(int(part) if part.isdigit() else part for part in match[1].split(".")))
        message = match[2]
    return _Finding(path, message, value=_at(data, path), guessed=guessed)


def _at(data: Any, path: Path) -> Any:
    here = data
    for part in path:
        if _holds(here, part):
            here = here[part]
        elif isinstance(here, Mapping) and (key := _numeric_key(here, part)) is not None:
            here = here[key]
        else:
            return _ABSENT
    return here


def _tidy(findings: list[_Finding]) -> list[_Finding]:
    """One finding a place; of a union's branches those that got deepest; misspelt keys first."""
    deepest = [
        f
        for f in findings
        if not (
            f.guessed and any(len(o.path) > len(f.path) and o.path[: len(f.path)] == f.path for o in findings)
        )
    ]
    by_path: dict[Path, _Finding] = {}
    for finding in sorted(deepest, key=lambda f: not f.misspelt):
        by_path.setdefault(finding.path, finding)
    meant = {(*f.path[:-1], f.misspelt) for f in deepest if f.misspelt}
    return [finding for path, finding in by_path.items() if path not in meant]


def _input_error(findings: list[_Finding], where: str) -> InputError:
    first, rest = findings[0], findings[1:]
    message = first.message
    if rest:
        lines = [f"  also {dotted(f.path) or 'the whole'}: {f.message}" for f in rest[:20]]
        lines += [f"  and {len(rest) - 20} more"] if len(rest) > 20 else []
        message = "\n".join([message, *lines])
    extra = {} if first.value is _ABSENT else {"value": first.value}
    return InputError(
        message, where=where, field=dotted(first.path), allowed=first.allowed, mend=first.mend, **extra
    )


def dotted(path: Path) -> str:
    """`rows.3.latency_s`: indices count from 0."""
    return ".".join(map(str, path))


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "")
