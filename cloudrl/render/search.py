"""What the ready-made search servers of a cluster are: set-up, artifacts, services, and files that come with them."""

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from cloudrl.errors import InputError
from cloudrl.protocol.services import Artifact, Service
from cloudrl.render.agent import RETRIEVER_FILE, build_retriever, write_agent, write_changed
from cloudrl.retriever.suffixes import SUFFIXES
from cloudrl.spec import Cluster
from cloudrl.spec.services import agent_service, parse_search

LARGEST_BYTES = 2_000_000
"""Of a file that travels with a definition: dstack takes 2 MiB for an entry of `files`."""
MOST_PIECES = 16
"""Into which rows of a user's are divided: such a server may keep them in its database."""


@dataclass(frozen=True)
class Rendered:
    """What the agents of a cluster are asked for, beyond its plain fields.

    Attributes:
        setup: commands that come before the user's own.
        files: what is sent along, by the name of the file on the nodes, in $CLOUDRL_FILES.
    """

    setup: tuple[str, ...]
    artifacts: tuple[Artifact, ...]
    services: tuple[Service, ...]
    has_search: bool
    files: Mapping[str, bytes]


def with_search(cluster: Cluster, *, place: Callable[[str], str] | None = None) -> Rendered:
    """All services of a cluster, with what the ready-made ones bring along.

    Args:
        cluster: as it is declared.
        place: of a path of this machine on the nodes; None where its files are sent to them.

    Raises:
        InputError: a file of this machine that is to be sent is not there, too large, or none of passages.
    """
    setup, files = dict[str, None](), dict[str, bytes]()
    artifacts, services = [artifact.for_agent() for artifact in cluster.artifacts], list[Service]()
    for service in cluster.services:
        if (search := parse_search(service)) is None:
            services.append(agent_service(service))
            continue
        at, path, content = shlex.quote(search.search), search.local_file, b""
        if path is not None and place is not None:
            at = shlex.quote(place(path))
        elif path is not None:
            content = _read(path)
            pieces = _pieces(path, content)
            at = " ".join(f'"$CLOUDRL_FILES"/{shlex.quote(name)}' for name in pieces)
            files.update(pieces)
        if search.package is not None:
            module, requirement = search.package
            setup[f"python3 -c 'import {module}' || python3 -m pip install {requirement}"] = None
        index = search.artifact(at, content)
        artifacts += [] if index is None else [index.for_agent()]
        services.append(search.service(at, content))
    has_search = any(parse_search(service) is not None for service in cluster.services)
    return Rendered(tuple(setup), tuple(artifacts), tuple(services), has_search, files)


def file_names(cluster: Cluster) -> tuple[str, ...]:
    """The names of `files_of`.

    Raises:
        InputError: as by `with_search`.
    """
    rendered = with_search(cluster)
    return (*([RETRIEVER_FILE] if rendered.has_search else []), *rendered.files)


def files_of(cluster: Cluster) -> dict[str, bytes]:
    """What is beside the agent's file on every node: name -> content.

    Raises:
        InputError: as by `with_search`.
    """
    rendered = with_search(cluster)
    return {**({RETRIEVER_FILE: build_retriever()} if rendered.has_search else {}), **rendered.files}


def refuse_other_files(cluster: Cluster, folder: Path) -> None:
    """For a folder that may hold files of the user.

    Raises:
        InputError: as by `files_of`; or there is a file with the name of one of the user's, and another content.
    """
    for name, content in with_search(cluster).files.items():
        there = folder / name
        if there.exists() and there.read_bytes() != content:
            raise InputError(
                f"{there} is there and has another content",
                hint="Replace it: -y\nWrite into another folder: -o DIR/FILE",
            )


def write_files(cluster: Cluster, folder: Path) -> None:
    """Write what its rendered form needs beside it: the agent's file, and `files_of`.

    Raises:
        InputError: as by `files_of`.
    """
    contents = files_of(cluster)
    write_agent(folder, for_cpu=cluster.needs_cpu_parts)
    for name, content in contents.items():
        write_changed(folder / name, content)


def _read(text: str) -> bytes:
    path = Path(text).expanduser()
    if path.suffix not in SUFFIXES:
        raise InputError(
            f"search:{text} does not end in {', '.join(SUFFIXES)}", hint="A file of passages: ./passages.jsonl"
        )
    most = LARGEST_BYTES * (MOST_PIECES if path.suffix == ".jsonl" else 1)
    if path.is_file() and path.stat().st_size > most:
        raise InputError(
            f"search:{text} has {path.stat().st_size:,} bytes; up to {most:,} of {path.suffix} travel with a cluster",
            hint="Put it where all nodes have it, such as a volume, and name that: search:/data/passages.jsonl\n"
            "Or have each node fetch it: --setup 'hf download ME/CORPUS --repo-type dataset --local-dir /data'",
        )
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(
            f"search:{text} cannot be read: {error.strerror}", hint="A file of passages, such as ./passages.jsonl"
        ) from error


def _pieces(text: str, content: bytes) -> dict[str, bytes]:
    """What is sent of a file: itself, or as many as it takes, divided between rows.

    Raises:
        InputError: a row alone is too large.
    """
    path = Path(text)
    if len(content) <= LARGEST_BYTES:
        return {path.name: content}
    pieces, start = dict[str, bytes](), 0
    while start < len(content):
        end = start + LARGEST_BYTES
        if end < len(content) and (end := content.rfind(b"\n", start, end) + 1) == 0:
            raise InputError(
                f"search:{text} has a row of more than {LARGEST_BYTES:,} bytes",
                hint="Split its text into several passages",
            )
        pieces[f"{path.stem}.{len(pieces):02}{path.suffix}"] = content[start:end]
        start = end
    return pieces
