"""YAML that people read: sections with a comment above and a blank line between, commands as they are."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from cloudrl.spec import FrozenDict


@dataclass(frozen=True)
class Section:
    """Keys that belong together. A key with None is left out, so is an empty section."""

    keys: Mapping[str, Any]
    comment: str = ""


class _Dumper(yaml.SafeDumper):
    """Block style, lists indented under their key, line breaks shown as line breaks."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        super().increase_indent(flow, indentless=False)

    def ignore_aliases(self, data: Any) -> bool:  # noqa: ARG002 - a value that stands twice is written twice
        return True


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    style = None
    if "\n" in value:
        # `|+`, which a break at the end needs, would make PyYAML end the document there
        style = '"' if value.endswith("\n") else "|"
    if not value.replace("\n", "").isprintable():
        style = '"'  # left to itself PyYAML 6 loses \x85 and \ufeff
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)
_Dumper.add_representer(FrozenDict, yaml.SafeDumper.represent_dict)


def document(header: str, sections: Iterable[Section]) -> str:
    """The whole file: `header` as a comment, then the sections in their order. Ends in a line break."""
    texts = map(_section_text, sections)
    return "\n".join([_comment(header), *filter(None, texts)])


def pick(section: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """These keys of a section that is passed on, as they are."""
    return {name: section[name] for name in names if name in section}


def plain(value: str) -> str | int:
    """A number without its quotes."""
    return int(value) if value.isdecimal() and value.isascii() else value


def _section_text(section: Section) -> str:
    keys = {key: value for key, value in section.keys.items() if value is not None}
    text = "".join(_key(key, value) for key, value in keys.items())
    return _comment(section.comment) + text if keys else ""


def _key(key: str, value: Any) -> str:
    return yaml.dump({key: value}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=float("inf"))


def _comment(text: str) -> str:
    return "".join(f"# {line}".rstrip() + "\n" for line in text.splitlines())
