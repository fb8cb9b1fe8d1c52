"""`cloudrl-retriever.pyz`: fetch, build and serve on a node, where cloudrl is not installed. It writes for a log."""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from cloudrl.errors import CloudrlError, ConnectionFailed
from cloudrl.units import size_text

_EVERY_S = 30.0


def main(argv: Sequence[str] | None = None) -> int:
    """Returns the exit code; its last line is the reason of a failure. Status 75 (sysexits.h) blames the network."""
    for variable in ("HF_HUB_DISABLE_PROGRESS_BARS", "TQDM_DISABLE"):  # libraries read them when they are imported
        os.environ.setdefault(variable, "1")
    args = _parser().parse_args(argv)
    try:
        args.run(args, Log())
    except CloudrlError as error:
        hint = f" -> {'; '.join(error.hint.splitlines())}" if error.hint else ""
        say(f"error: {error.message}{hint}")
        return os.EX_TEMPFAIL if isinstance(error, ConnectionFailed) else error.exit_code
    except OSError as error:
        say(f"error: {error}")
        return 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="cloudrl-retriever.pyz", allow_abbrev=False)
    commands = parser.add_subparsers(required=True)

    def command(
        name: str, run: Callable[[argparse.Namespace, Log], None], places: str | None = None
    ) -> argparse.ArgumentParser:
        added = commands.add_parser(name, allow_abbrev=False)
        added.set_defaults(run=run)
        added.add_argument("place", nargs=places)
        added.add_argument("--device", default="cpu")
        return added

    command("fetch", _fetch).add_argument("--to", type=Path, required=True)
    build = command("build", _build, "+")
    build.add_argument("--to", type=Path, required=True)
    build.add_argument("--engine", default="flat")
    serve = command("serve", _serve)
    serve.add_argument("--port", type=int, required=True)
    serve.add_argument("--peers", default="")
    serve.add_argument("--shard", type=int)
    serve.add_argument("--peer-token-file", type=Path)
    return parser


def _fetch(args: argparse.Namespace, log: Log) -> None:
    from cloudrl.retriever.fetch import fetch

    fetch(args.place, args.to, on_progress=log.progress, say=say)


def _build(args: argparse.Namespace, log: Log) -> None:
    from cloudrl.retriever.build import BuildOptions, build
    from cloudrl.retriever.linking import link
    from cloudrl.retriever.record import read_record

    places = tuple(map(Path, args.place))
    place = places[0]
    if place.is_dir() and read_record(place) is not None:
        say(f"{place} is an index already")
        link(place, args.to, say)
        return
    # uploaded files are in a new folder at each start of a cluster
    is_sent = place.is_file() and str(place.absolute().parent) == os.environ.get("CLOUDRL_FILES")
    options = BuildOptions(places, engine=args.engine, by_content=is_sent)
    build(options, args.to, device=args.device, replace=True, on_progress=log.progress, say=say)


def _serve(args: argparse.Namespace, log: Log) -> None:
    from cloudrl.retriever.opening import Source
    from cloudrl.retriever.serpapi import NAME
    from cloudrl.retriever.server import ServeOptions
    from cloudrl.retriever.serving import serve
    from cloudrl.retriever.sharing import read_sharing

    is_web = args.place == NAME
    source = Source(None, engine=NAME) if is_web else Source(Path(args.place), device=args.device)
    options = ServeOptions(port=args.port, token=os.environ.get("CLOUDRL_RETRIEVER_TOKEN", ""))
    sharing = read_sharing(args.peers, args.shard, args.peer_token_file)

    def ready(address: str) -> None:
        say(f"ready: {address}")

    serve(source, options, sharing=sharing, on_progress=log.progress, say=say, on_ready=ready)


class Log:
    """How far a long piece of work is, in a line now and then."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._said_at = clock, clock()

    def progress(self, what: str, done: int, total: int) -> None:
        """Of so many bytes."""
        if self._clock() - self._said_at >= _EVERY_S:
            self._said_at = self._clock()
            say(f"{what}: {100 * done / max(total, 1):.0f} % of {size_text(total)}")


def say(text: str) -> None:
    """Write a line."""
    print(text, flush=True)  # noqa: T201 - a program of its own


if __name__ == "__main__":
    sys.exit(main())
