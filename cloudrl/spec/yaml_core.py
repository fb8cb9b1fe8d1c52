"""YAML as people mean it: `1e-6` is a number, `no` is a word, a key stands once, an error has a line."""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from cloudrl.errors import SpecError


class _Loader(yaml.SafeLoader):
    """Plain values by YAML 1.2's core schema.

    PyYAML follows YAML 1.1, where `1e-6` is text, `010` is eight, `1:30` is ninety and `no` is false.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 - the base class declares it


# A whole number is an int, so a float shows a dot or an exponent.
_FLOAT = r"[-+]?(?:[0-9]*\.[0-9]+|[0-9]+\.)(?:[eE][-+]?[0-9]+)?|[-+]?[0-9]+[eE][-+]?[0-9]+|[-+]?\.inf|\.nan"
_PLAIN = (
    ("null", r"~|null|Null|NULL|", ["~", "n", "N", ""]),
    ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
    ("int", r"[-+]?(?:0|[1-9][0-9]*)", list("-+0123456789")),
    ("float", _FLOAT, list("-+.0123456789")),
)
for _tag, _pattern, _first in _PLAIN:
    _Loader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(rf"^(?:{_pattern})$"), _first)


def _mapping(loader: _Loader, node: yaml.MappingNode) -> dict[Any, Any]:
    seen: set[Any] = set()
    for key_node, _ in node.value:
        key = loader.construct_object(key_node, deep=True)
        if not isinstance(key, str):
            raise yaml.MarkedYAMLError(problem=f"the key {key!r} is not text", problem_mark=key_node.start_mark)
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"the key {key!r} stands twice", problem_mark=key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads back as the same: it quotes what that one would take for a number."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


def load_value(text: str, shown: str) -> Any:
    """A value in YAML, such as `[aws, gcp]`.

    Raises:
        SpecError: Not YAML; the message has the line, where there are several.
    """
    try:
        return yaml.load(text, Loader=_Loader)  # noqa: S506 - _Loader is a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{shown}:{mark.line + 1}" if mark and "\n" in text else shown
        raise SpecError(f"{where}: {error.problem or error.context}") from None
    except yaml.YAMLError as error:  # a character that YAML forbids
        raise SpecError(f"{shown}: {str(error).splitlines()[0]}") from None


def dump_mapping(values: Mapping[str, Any]) -> str:
    """YAML that `load_value` reads as these values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))
