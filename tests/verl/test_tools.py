"""What is known of verl's tools is what the installed one has."""

import re
from importlib.util import find_spec
from pathlib import Path

from cloudrl.verl.tools import GONE_FORMATS, TOOL_FORMATS

VERL = Path(find_spec("verl").origin).parent


def test_the_formats_are_those_of_the_installed_verl() -> None:
    parsers = (VERL / "experimental/agent_loop/tool_parser.py").read_text()
    assert set(re.findall(r'^@ToolParser\.register\("(.+)"\)$', parsers, re.MULTILINE)) == set(TOOL_FORMATS)
    assert not set(GONE_FORMATS) & set(TOOL_FORMATS)


def test_the_installed_verl_has_no_class_of_a_tool_but_the_base() -> None:
    modules = {path.stem for path in (VERL / "tools").rglob("*.py")}
    assert modules == {"__init__", "base_tool", "function_tool", "schemas", "tool_registry"}
