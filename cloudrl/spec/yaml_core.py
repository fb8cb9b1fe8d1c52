"""YAML as people mean it: `1e-6` is a number, `no` is a word, a key stands once, an error has a line."""

import re
from collections.abc import Mapping
from typing import Any

import yaml

from cloudrl.errors import SpecError
from cloudrl.foreign import Malformed, check_depth
from cloudrl.spec.quoting import kind_of, quoted

_LONGEST_INTEGER = 25
_QUOTED = re.compile(r"'(?!<)[^']*'|\"[^\"]*\"")
_OURS = "the key "
"""Begins what this module itself says of a text."""


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
            what = kind_of(key) if isinstance(key, (list, tuple, dict)) else repr(key)
            raise yaml.MarkedYAMLError(problem=f"{_OURS}{what} is not text", problem_mark=key_node.start_mark)
        if key in seen:
            raise yaml.MarkedYAMLError(problem=f"{_OURS}{quoted(key)} stands twice", problem_mark=key_node.start_mark)
        seen.add(key)
    loader.flatten_mapping(node)
    return loader.construct_mapping(node, deep=True)


_Loader.add_constructor("tag:yaml.org,2002:map", _mapping)


class _Dumper(yaml.SafeDumper):
    """Writes what `_Loader` reads back as the same: it quotes what that one would take for a number."""

    yaml_implicit_resolvers = _Loader.yaml_implicit_resolvers


class _Loader11(yaml.SafeLoader):
    """YAML 1.1, as other programs read it with PyYAML."""


def _integer(loader: yaml.SafeLoader, node: yaml.ScalarNode) -> int:
    if len(node.value) > _LONGEST_INTEGER:
        raise yaml.MarkedYAMLError(problem=f"a number of {len(node.value):,} digits", problem_mark=node.start_mark)
    value: int = loader.construct_yaml_int(node)
    return value


for _each in (_Loader, _Loader11):
    _each.add_constructor("tag:yaml.org,2002:int", _integer)


def load_value(text: str, shown: str) -> Any:
    """A value in YAML, such as `[aws, gcp]`.

    Raises:
        SpecError: Not YAML; the message has the line, where there are several, and quotes nothing of it.
    """
    return _load(text, shown, _Loader)


def load_yaml_1_1(text: str, shown: str) -> Any:
    """The same by the rules of YAML 1.1, as other programs read a file that is theirs, too."""
    return _load(text, shown, _Loader11)


def _load(text: str, shown: str, loader: type[yaml.SafeLoader]) -> Any:
    try:
        value = yaml.load(text, Loader=loader)  # noqa: S506 - both are SafeLoaders
        check_depth(value)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"{shown}:{mark.line + 1}" if mark and "\n" in text else shown
        raise SpecError(f"{where}: {_without_quotes(error.problem or error.context or 'not YAML')}") from None
    except yaml.YAMLError as error:  # a character that YAML forbids
        raise SpecError(f"{shown}: {str(error).splitlines()[0]}") from None
    except RecursionError:
        raise SpecError(f"{shown}: it is nested too deeply") from None
    except Malformed as error:
        raise SpecError(f"{shown}: {error}") from None
    except (ValueError, TypeError, AttributeError):  # of constructors: a date with a month 13, an unhashable key
        raise SpecError(f"{shown}: it holds a value that is not valid, such as a date that does not exist") from None
    return value


def _without_quotes(problem: str) -> str:
    """PyYAML's words, without what they quote of the text, which may be a secret; `<block end>` is its own."""
    if problem.startswith(_OURS):
        return problem
    if problem.startswith(r"found character '\t'"):
        return "a tab, where YAML takes only spaces"
    if problem.startswith("found undefined alias"):
        return "a value that begins with * needs quotes"
    if problem.startswith("could not determine a constructor for the tag"):
        return "a value that begins with ! needs quotes"
    return _QUOTED.sub(lambda found: found[0] if len(found[0]) <= len("'x'") else "'...'", problem)


def dump_mapping(values: Mapping[str, Any]) -> str:
    """YAML that `load_value` reads as these values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))
