"""What nodes run of cloudrl, each program as one file: a zipapp, the same bytes on every machine."""

import io
import re
import sys
import tokenize
import zipfile
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from pathlib import Path

from cloudrl.private_files import write_file

AGENT_FILE = "cloudrl-node.pyz"
"""On the nodes of every cluster, and beside the rendered file of one with GPUs."""
CPU_AGENT_FILE = "cloudrl-node-cpu.pyz"
"""The same beside the rendered file of a cluster that trains on CPUs: it has the parts for that, too."""
RETRIEVER_FILE = "cloudrl-retriever.pyz"

SHARED_PARTS = (
    "__init__.py",
    "errors.py",
    "units.py",
    "control_groups.py",
    "foreign.py",
    "private_files.py",
    "listening",
)
"""What everything that travels needs."""
_PARTS = (*SHARED_PARTS, "child_process.py", "protocol", "hangs", "saves", "durable", "node", "data")
# the agent makes the tiny models and their data sets; jobs find the plug-in for verl through PYTHONPATH
_CPU_PARTS = ("verl_cpu", "verl/releases.yml", "data/addition.py", "data/capitals.py", "data/capitals.jsonl")
_RETRIEVER_PARTS = (*SHARED_PARTS, "foreign_httpx.py", "retriever")
_MAIN = "import sys\n\nfrom cloudrl.{}.main import main\n\nsys.exit(main())\n"
_LINE_STARTS = (tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT)
_NOT_SEEN = (*_LINE_STARTS, tokenize.COMMENT, tokenize.NL, tokenize.ENDMARKER)
_FSTRING_START, _FSTRING_END = (getattr(tokenize, f"FSTRING_{end}", -1) for end in ("START", "END"))
_SPACED = (tokenize.NAME, tokenize.NUMBER, tokenize.OP, tokenize.STRING, _FSTRING_START, _FSTRING_END)
_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date that a zip can hold


def build_agent(*, for_cpu: bool = False) -> bytes:
    """The bytes of the agent's file.

    Args:
        for_cpu: With what only training on CPUs needs: the plug-in for verl, tiny models, their data sets.
    """
    return _zipapp("node", (*_PARTS, *_CPU_PARTS) if for_cpu else _PARTS, () if for_cpu else _CPU_PARTS)


def build_retriever() -> bytes:
    """The bytes of `cloudrl-retriever.pyz`, which fetches, builds and serves indexes for agents that search."""
    return _zipapp("retriever", _RETRIEVER_PARTS)


@cache  # a quarter of a second, and `cloudrl slurm script` asks more than once
def _zipapp(program: str, parts: tuple[str, ...], without: tuple[str, ...] = ()) -> bytes:
    """A program that can be run, of these parts of the package without those.

    Its bytes depend on the sources alone: fixed order, dates and modes, and no compression, whose output differs
    between builds of zlib.
    """
    buffer = io.BytesIO()
    buffer.write(b"#!/usr/bin/env python3\n")
    with zipfile.ZipFile(buffer, "a", zipfile.ZIP_STORED) as archive:
        sources = {**dict(python_sources(parts)), "__main__.py": _MAIN.format(program).encode()}
        left_out = tuple(f"cloudrl/{part}" for part in without)
        for name, text in sorted(sources.items()):
            if name.startswith(left_out):
                continue
            info = zipfile.ZipInfo(name, _EPOCH)
            info.external_attr = 0o644 << 16
            info.create_system = 3  # Unix, whatever this machine is
            archive.writestr(info, _shortened(name, text))
    return buffer.getvalue()


def _shortened(name: str, text: bytes) -> bytes:
    """A file without what only people read."""
    if name.endswith(".py"):
        return _without_comments(text.decode()).encode()
    return re.sub(rb"(?m)^#.*\n", b"", text) if name.endswith(".yml") else text


def _without_comments(source: str) -> str:
    """The same program without what only people read, line by line, so that the numbers in a traceback stay true."""
    lines, indents, at_start, level = source.splitlines(keepends=True), dict[int, int](), True, 0
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    for row, first, last in reversed(list(_unneeded_spaces(tokens))):
        lines[row - 1] = lines[row - 1][:first] + "\0" * (last - first) + lines[row - 1][last:]
    for kind, text, (row, column), (end, _), _ in tokens:
        if kind == tokenize.COMMENT:
            lines[row - 1] = lines[row - 1][:column].rstrip() + "\n"
        elif kind == tokenize.STRING and at_start and lines[end - 1].rstrip().endswith(text[-3:]):
            lines[row - 1 : end] = ['""\n', *["\n"] * (end - row)]
        level += (kind == tokenize.INDENT) - (kind == tokenize.DEDENT)
        if kind not in _NOT_SEEN:
            indents.setdefault(row, level if at_start else 0)
            indents.update(dict.fromkeys(range(row + 1, end + 1), -1))  # the text of a string
        at_start = at_start if kind in (tokenize.COMMENT, tokenize.NL) else kind in _LINE_STARTS
    for row, indent in indents.items():
        if indent >= 0:
            lines[row - 1] = " " * indent + lines[row - 1].lstrip(" ")
    return "".join(lines).replace("\0", "")


def _unneeded_spaces(tokens: Sequence[tokenize.TokenInfo]) -> Iterator[tuple[int, int, int]]:
    """(row, first column, end) of the spaces between two tokens that are two without them, too; not in f-strings."""
    depth = 0
    for before, after in zip(tokens, tokens[1:]):  # noqa: B905, RUF007  Python 3.9 builds it, too
        depth += (before.type == _FSTRING_START) - (before.type == _FSTRING_END)  # one token before Python 3.12
        (row, first), (next_row, last) = before.end, after.start
        is_gap = row == next_row and first < last and before.type in _SPACED and after.type in _SPACED
        if is_gap and not depth and not (_joins(before.string[-1]) and _joins(after.string[0])):
            yield row, first, last


def _joins(character: str) -> bool:
    """Whether this may continue a name, a number or a string, or begin one."""
    return character.isalnum() or character in "_.'\""


def write_agent(folder: Path, *, for_cpu: bool = False) -> Path:
    """Write the agent's file into a folder, if it differs from the one there, and return its path."""
    return write_changed(folder / (CPU_AGENT_FILE if for_cpu else AGENT_FILE), build_agent(for_cpu=for_cpu))


def write_changed(path: Path, wanted: bytes) -> Path:
    """Write a file, whole or not at all, if it differs."""
    if not path.exists() or path.read_bytes() != wanted:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, wanted, mode=0o666)
    return path


def python_sources(parts: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """Files and folders of this package: path below its parent, as `cloudrl/node/agent.py`, and the bytes of each."""
    root = Path(__file__).parents[2]
    for part in parts:
        path = root / "cloudrl" / part
        for file in [path] if path.is_file() else path.rglob("*.py"):
            yield file.relative_to(root).as_posix(), file.read_bytes()


if __name__ == "__main__":  # `make agent`, which needs nothing but the standard library
    for is_for_cpu in (False, True):
        write_agent(Path(sys.argv[1]), for_cpu=is_for_cpu)
