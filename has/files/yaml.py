"""YAML as people write it here: safe, free of surprises, with the line in every error.

Scalars follow YAML 1.2's core schema: `yes` and `on` are text, `1e3` is a number, a date is text,
`010` is ten. A key that stands twice is an error. Anchors and aliases are allowed, within bounds:
aliases that refer to aliases can stand for billions of values in a few lines.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeVar

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
            _check(loader, node, where)
            return loader.construct_document(node)
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        raise _input_error(error, where, text) from None
    except yaml.YAMLError as error:
        raise InputError(f"is not YAML text: {error}", where=where) from None
    except RecursionError:
        raise InputError("is nested too deeply", where=where, mend="write it flatter") from None
    except InputError:
        raise
    except ValueError as error:
        raise InputError(f"holds a number that cannot be read: {error}", where=where) from None


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012 - PyYAML's own shape


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


def _check(loader: _Loader, root: yaml.Node, where: str) -> None:
    """Refuse a key that stands twice, and aliases that make the document endless or huge."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node, path: str) -> int:
        if isinstance(node, yaml.ScalarNode):
            return 1
        if id(node) in open_nodes:
            raise InputError(
                f"an alias in line {node.start_mark.line + 1} refers to itself",
                where=where,
                field=path,
                mend="remove it",
            )
        if id(node) not in sizes:
            open_nodes.add(id(node))
            if isinstance(node, yaml.MappingNode):
                children = dict(
                    zip(_keys(loader, node, path, where), (v for _, v in node.value), strict=True)
                )
            else:
                children = dict(enumerate(node.value))
            sizes[id(node)] = 1 + sum(size(v, f"{path}.{key}".lstrip(".")) for key, v in children.items())
            open_nodes.discard(id(node))
        return sizes[id(node)]

    if (nodes := size(root, "")) > MAX_NODES:
        raise InputError(
            f"stands for {nodes if nodes < 10**12 else 'over 10^12'} values once its aliases are written out",
            where=where,
            allowed=f"at most {MAX_NODES}",
            mend="write it without nested aliases",
        )


def _keys(loader: _Loader, node: yaml.MappingNode, path: str, where: str) -> list[Any]:
    """The keys of a mapping, all different."""
    lines: dict[Any, int] = {}
    keys = []
    for key_node, _ in node.value:
        line = key_node.start_mark.line + 1
        if not isinstance(key_node, yaml.ScalarNode):
            raise InputError(f"line {line}: a key must be text or a number", where=where, field=path)
        merge = key_node.tag == "tag:yaml.org,2002:merge"
        key = "<<" if merge else loader.construct_object(key_node)
        if key in lines:
            raise InputError(
                f"line {line}: the key {key} stands twice (first in line {lines[key]})",
                where=where,
                field=f"{path}.{key}".lstrip("."),
                mend="keep one of the two",
            )
        lines[key] = line
        keys.append(key)
    return keys


def _input_error(error: yaml.MarkedYAMLError, where: str, text: str) -> InputError:
    mark = error.problem_mark or error.context_mark
    place = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
    problem = error.problem or error.context or "cannot be parsed"
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
    """Short collections on one line, long ones and the document itself as blocks."""

    def ignore_aliases(self, data: Any) -> bool:
        """Written out in full: nobody wants to read `*id001`."""
        return True

    def represent_mapping(self, tag: str, mapping: Any, flow_style: bool | None = None) -> yaml.MappingNode:
        return _folded(super().represent_mapping(tag, mapping, flow_style))

    def represent_sequence(
        self, tag: str, sequence: Any, flow_style: bool | None = None
    ) -> yaml.SequenceNode:
        return _folded(super().represent_sequence(tag, sequence, flow_style))

    def serialize(self, node: yaml.Node) -> None:
        if isinstance(node, yaml.CollectionNode):
            node.flow_style = not node.value
        super().serialize(node)


ONE_LINE = 88

CollectionT = TypeVar("CollectionT", bound=yaml.CollectionNode)


def _folded(node: CollectionT) -> CollectionT:
    node.flow_style = sum(_length(part) for part in _parts(node)) <= ONE_LINE
    return node


def _parts(node: yaml.Node) -> list[yaml.Node]:
    return (
        [part for pair in node.value for part in pair] if isinstance(node, yaml.MappingNode) else node.value
    )


def _length(node: yaml.Node) -> int:
    """Characters on one line; what is itself a block makes a block of what holds it."""
    if not isinstance(node, yaml.CollectionNode):
        return len(node.value) + 2
    if node.value and not node.flow_style:
        return ONE_LINE + 1
    return 2 + sum(_length(part) for part in _parts(node))


def _float(dumper: yaml.SafeDumper, value: float) -> yaml.ScalarNode:
    """The shortest decimal that reads back the same, also by readers of YAML 1.1, who want 1.0e-07."""
    text = repr(value)
    if "e" in text and "." not in text.partition("e")[0]:
        text = text.replace("e", ".0e")
    return dumper.represent_scalar("tag:yaml.org,2002:float", text)


def _str(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    """PyYAML writes the rarer line ends (next line, line and paragraph separator) so that they read back as
    spaces; only double quotes escape them."""
    style = '"' if any(end in value for end in "\x85\u2028\u2029\ufeff") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(float, _float)
_Dumper.add_representer(str, _str)
# Text that looks like something else is quoted. PyYAML's own rules see to what YAML 1.1 readers would take
# for a date or a truth value; to them come the numbers that only the reader above sees as such.
for _first, _resolvers in _Loader.yaml_implicit_resolvers.items():
    for _name, _pattern in _resolvers:
        if _name.endswith((":int", ":float")):
            _Dumper.add_implicit_resolver(_name, _pattern, [_first])


def dump_yaml(obj: Any) -> str:
    """YAML text of plain mappings, lists and scalars, keys in the order given; `load_yaml` gives them back."""
    return yaml.dump(obj, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=10**6)
