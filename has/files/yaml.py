"""YAML as people write it here: safe, free of surprises, with the line in every error.

Scalars follow YAML 1.2's core schema: `yes` and `on` are text, `1e3` is a number, a date is text,
`010` is ten. A key that stands twice is an error. Anchors and aliases are allowed, within bounds:
aliases that refer to aliases can stand for billions of values in a few lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from has.errors import InputError
from has.files.reading import read_text

MAX_NODES = 200_000
"""Values a document may hold once its aliases are written out; the largest file people write has thousands."""


def load_yaml(path: str | Path) -> Any:
    """The document in `path`: mappings, lists, text, numbers, booleans, None. Raises InputError."""
    return parse_yaml(read_text(path), str(path))


def parse_yaml(text: str, where: str = "argument") -> Any:
    """Like `load_yaml`, for text at hand; `where` names its origin in errors."""
    try:
        loader = _Loader(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            _bound(node, where)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise _input_error(error, where, text) from None
    except yaml.YAMLError as error:
        raise InputError(f"is not YAML text: {error}", where=where) from None
    except RecursionError:
        raise InputError("is nested too deeply", where=where, mend="write it flatter") from None
    except ValueError as error:
        raise InputError(f"holds a number that cannot be read: {error}", where=where) from None


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own shape

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: dict[Any, int] = {}
        for key_node, _ in node.value:
            if key_node.tag == "tag:yaml.org,2002:merge":
                continue
            key = self.construct_object(key_node, deep=True)
            line = key_node.start_mark.line + 1
            try:
                first = seen.setdefault(key, line)
            except TypeError:
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be text or a number", key_node.start_mark
                ) from None
            if first is not line:
                raise _DuplicateKey(key, first, key_node.start_mark)
        return super().construct_mapping(node, deep)


class _DuplicateKey(yaml.MarkedYAMLError):
    def __init__(self, key: Any, first: int, mark: yaml.Mark) -> None:
        super().__init__(problem=f"the key {key} stands twice (first in line {first})", problem_mark=mark)
        self.key = key


def _resolver(tag: str, pattern: str, first: Iterable[str]) -> None:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{tag}", re.compile(rf"(?:{pattern})\Z"), list(first))


_resolver("null", "~|null|Null|NULL|", ["~", "n", "N", ""])
_resolver("bool", "true|True|TRUE|false|False|FALSE", "tTfF")
_resolver("int", r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+", "-+0123456789")
_resolver(
    "float",
    r"[-+]?(?:\.[0-9]+|[0-9]+\.[0-9]*)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+"
    r"|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN)",
    "-+0123456789.",
)
_resolver("merge", "<<", "<")


def _int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = loader.construct_scalar(node)
    base = {"0o": 8, "0x": 16}.get(text[:2], 10)
    return int(text, base)


_Loader.add_constructor("tag:yaml.org,2002:int", _int)


def _bound(node: yaml.Node, where: str) -> None:
    """Refuse documents that are endless (an anchor inside itself) or too large once written out."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) in open_nodes:
            raise InputError(
                f"an alias in line {node.start_mark.line + 1} refers to itself", where=where, mend="remove it"
            )
        if id(node) not in sizes:
            open_nodes.add(id(node))
            children = (
                [part for pair in node.value for part in pair]
                if isinstance(node, yaml.MappingNode)
                else node.value
            )
            sizes[id(node)] = 1 + sum(size(child) for child in children)
            open_nodes.discard(id(node))
        return sizes[id(node)]

    if (nodes := size(node)) > MAX_NODES:
        raise InputError(
            f"stands for {nodes if nodes < 10**12 else 'over 10^12'} values once its aliases are written out",
            where=where,
            allowed=f"at most {MAX_NODES}",
            mend="write it without nested aliases",
        )


def _input_error(error: yaml.MarkedYAMLError, where: str, text: str) -> InputError:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = error.problem or error.context or "cannot be parsed"
    if isinstance(error, _DuplicateKey):
        return InputError(f"{place}{problem}", where=where, field=str(error.key), mend="keep one of the two")
    if "could not determine a constructor for the tag" in problem:
        problem, mend = (
            problem.replace("could not determine a constructor for", "not allowed:"),
            "remove the tag",
        )
    elif mark and mark.line >= text.count("\n"):
        mend = "the file may have been cut off; compare its end with a whole one"
    else:
        mend = "check indentation, quotes and brackets there"
    context = f" ({error.context})" if error.context and error.problem else ""
    return InputError(f"{place}{problem}{context}", where=where, mend=mend)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        """Written out in full: nobody wants to read `*id001`."""
        return True


def _float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    """The shortest decimal that reads back the same; PyYAML's own 1e-07 would read back as text elsewhere."""
    text = repr(value)
    if "e" in text and "." not in text.partition("e")[0]:
        text = text.replace("e", ".0e")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


_Dumper.add_representer(float, _float)
# What the reader takes as text although YAML 1.1 readers would not (and the reverse) is quoted by the
# dumper's own, stricter rules, and those are kept: files must read the same everywhere. To them come
# numbers that only YAML 1.2 sees as such, which must be quoted when they are text.
for _tag in ("int", "float"):
    for _first, _resolvers in _Loader.yaml_implicit_resolvers.items():
        for _name, _pattern in _resolvers:
            if _name.endswith(f":{_tag}"):
                _Dumper.add_implicit_resolver(_name, _pattern, [_first])


def dump_yaml(obj: Any) -> str:
    """YAML text of plain mappings, lists and scalars, keys in the order given; `load_yaml` gives them back."""
    return yaml.dump(
        obj, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=100, default_flow_style=None
    )
