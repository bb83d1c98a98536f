"""From data to a noun: pydantic's findings become one InputError that a person can act on."""

from __future__ import annotations

import copy
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
    crosses: bool = False
    """Comes of fields that contradict each other, not of one that is wrong by itself."""


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
    findings = _wrong_version(cls, data)
    if not findings:
        findings = _not_finite(data)
        try:
            noun = cls.model_validate(data)
        except ValidationError as error:
            wrong = _findings(cls, data, error)
            findings = _tidy([*findings, *wrong, *_behind(cls, data, wrong)])
        except RecursionError:
            findings = [_Finding((), "is nested too deeply")]
        else:
            if not findings:
                return noun
    raise _input_error(findings, where)


def _findings(cls: type[BaseModel], data: Any, error: ValidationError) -> list[_Finding]:
    return [found for item in error.errors(include_url=False) for found in _found(cls, data, item)]


def _behind(cls: type[BaseModel], data: Mapping[Any, Any], wrong: list[_Finding]) -> list[_Finding]:
    """Fields that contradict each other, which are only looked at where every field is well by itself.

    So the data is looked at again without what was wrong. What is then found at the same place, or
    speaks of a field that was taken out, follows from its being gone and is no finding.
    """
    gone = [finding.path for finding in wrong if finding.path and not isinstance(finding.path[-1], int)]
    left = copy.deepcopy(dict(data))
    for path in gone:
        owner = _at(left, path[:-1])
        if isinstance(owner, dict):
            owner.pop(path[-1], None)
    try:
        cls.model_validate(left)
    except ValidationError as error:
        return [
            finding
            for finding in _findings(cls, left, error)
            if finding.crosses
            and not any(
                finding.path[: max(1, len(path) - 1)] == path[: max(1, len(path) - 1)]
                or str(path[-1]) in finding.message
                for path in gone
            )
        ]
    except RecursionError:
        return []
    return []


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


def _found(cls: type[BaseModel], data: Any, error: ErrorDetails) -> list[_Finding]:
    path, guessed = _real_path(data, error)
    if error["type"] == "value_error":
        lines = str(error["ctx"]["error"]).split("\n")
        return [_from_validator(data, path, line, guessed) for line in lines]
    return [_finding(cls, data, error, path, guessed)]


def _finding(cls: type[BaseModel], data: Any, error: ErrorDetails, path: Path, guessed: bool) -> _Finding:
    kind = error["type"]
    may = allowed(cls, path)
    if kind == "extra_forbidden":
        return _unknown_key(model_at(cls, path[:-1]), path, error["input"])
    if kind == "missing":
        return _Finding(path, "is required", may, f"add {path[-1]}")
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
    return _Finding(path, message, value=_at(data, path), guessed=guessed, crosses=True)


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
    by_place: dict[str, _Finding] = {}
    for finding in sorted(deepest, key=lambda f: not f.misspelt):
        by_place.setdefault(dotted(finding.path), finding)
    meant = {dotted((*f.path[:-1], f.misspelt)) for f in deepest if f.misspelt}
    return [finding for place, finding in by_place.items() if place not in meant]


MOST_LISTED = 20
"""Further findings that a message lists; the rest is counted."""


def _input_error(findings: list[_Finding], where: str) -> InputError:
    errors = [
        InputError(
            f.message,
            where=where,
            field=dotted(f.path),
            allowed=f.allowed,
            mend=f.mend,
            **({} if f.value is _ABSENT else {"value": f.value}),
        )
        for f in findings
    ]
    return listed(errors)


def listed(errors: list[InputError]) -> InputError:
    """The first of several errors of one file, its message followed by a line for each of the others."""
    first, rest = errors[0], errors[1:]
    lines = [f"  also {e.field or 'the whole'}: {e.message}" for e in rest[:MOST_LISTED]]
    lines += [f"  and {len(rest) - MOST_LISTED} more"] if len(rest) > MOST_LISTED else []
    first.message = "\n".join([first.message, *lines])
    return first


def dotted(path: Path) -> str:
    """`rows.3.latency_s`: indices count from 0."""
    return ".".join(map(str, path))


def _kind(value: Any) -> str:
    return _KINDS.get(type(value), "")
