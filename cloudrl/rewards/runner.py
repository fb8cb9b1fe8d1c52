"""The child that loads a file and calls its reward function as verl does. Started by `cloudrl.rewards.trial`.

verl executes the file by its path (verl 0.9.1, utils/import_utils.py: load_module), awaits a coroutine function in its
event loop, and calls any other in a thread of a pool, where `signal.alarm` raises; the manager `remote` calls it in the
main thread of an actor (experimental/reward_loop/reward_manager/naive.py and remote.py).

Each event is one file of JSON in the folder of records, so that what was recorded stays readable when the function
ends the process. Standard library only, and no import from cloudrl.
"""

import asyncio
import concurrent.futures
import contextlib
import copy
import faulthandler
import importlib.machinery
import importlib.util
import inspect
import json
import math
import os
import re
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

_TEXT_CHARACTERS = 300
_CALLS_AT_ONCE = 1


class _Records:
    """Writes events; the names of their files sort in the order of time."""

    def __init__(self, folder: str) -> None:
        self._folder, self._count = folder, 0

    def write(self, event: str, **fields: Any) -> None:
        self._count += 1
        descriptor = os.open(f"{self._folder}/{self._count:06d}.0", os.O_WRONLY | os.O_CREAT, 0o644)
        os.write(descriptor, json.dumps({"event": event, **fields}).encode())
        os.close(descriptor)


def main(request_file: str) -> None:
    """Do what the request says: paths, the function, rows, and answers to them."""
    request = json.loads(Path(request_file).read_bytes())
    sys.path[:] = request["sys_path"]
    stop_at = time.monotonic() + request["calls_seconds"]
    with Path(request["records"], "999999.0").open("w") as stacks:
        faulthandler.dump_traceback_later(request["stacks_after_seconds"], file=stacks)
        _run(request, _Records(request["records"]), stop_at)
        faulthandler.cancel_dump_traceback_later()
    with contextlib.suppress(Exception):  # the file may have closed or replaced them
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(0)  # threads of the function's own do not keep it


def _run(request: dict[str, Any], records: _Records, stop_at: float) -> None:
    asked_network: list[bool] = []
    sys.addaudithook(lambda event, arguments: _note_network(event, arguments, asked_network, records))
    _note_variables()
    records.write("loading")
    try:
        function = _load(request["file"], request["function"])
    except BaseException as error:  # noqa: BLE001  whatever the file raises, SystemExit among it
        records.write("not_loaded", network=bool(asked_network), **_failure(error, request["file"]))
        return
    call = _caller(function, in_main_thread=request["in_main_thread"])
    records.write("loaded", is_async=inspect.iscoroutinefunction(function))
    for number, asked in enumerate(request["calls"]):
        if time.monotonic() > stop_at:
            return
        _call(request, records, call, function, number, asked, asked_network)
    records.write("done")


_ASKED_IN_VAIN: list[str] = []
"""Variables that were asked for and are not there, in this order."""


def _note_variables() -> None:
    """Remember them: what a file raises without one is often an exception of its own, or of a library."""
    kind = type(os.environ)
    found = kind.__getitem__

    def noting(self: Any, name: Any) -> Any:
        try:
            return found(self, name)
        except KeyError:
            if name not in _ASKED_IN_VAIN:
                _ASKED_IN_VAIN.append(name)
            raise

    kind.__getitem__ = noting  # type: ignore[method-assign]


def _load(path: str, name: str) -> Callable[..., Any]:
    name_of_module = f"custom_module_{hash(path)}"
    loader = importlib.machinery.SourceFileLoader(name_of_module, path)
    module = importlib.util.module_from_spec(importlib.machinery.ModuleSpec(name_of_module, loader, origin=path))
    module.__file__ = path
    loader.exec_module(module)
    function: Callable[..., Any] = getattr(module, name)
    return function


def _note_network(event: str, arguments: tuple[Any, ...], asked: list[bool], records: _Records) -> None:
    """A name is looked up, or an address of the network is called; a socket of this machine has a path."""
    if event in ("socket.getaddrinfo", "socket.gethostbyname") or (
        event == "socket.connect" and isinstance(arguments[1], tuple)
    ):
        if not asked:
            records.write("network")
        asked.append(True)


def _caller(function: Callable[..., Any], *, in_main_thread: bool) -> Callable[[dict[str, Any], Any], Any]:
    """Calls the function where verl would; the second argument is a profiler for its thread, or None."""
    if inspect.iscoroutinefunction(function):
        loop = asyncio.new_event_loop()
        asyncio.set_event_loop(loop)

        async def awaited(keywords: dict[str, Any], profiler: Any) -> Any:
            sys.setprofile(profiler)
            try:
                return await function(**keywords)
            finally:
                sys.setprofile(None)

        return lambda keywords, profiler: loop.run_until_complete(awaited(keywords, profiler))

    def called(keywords: dict[str, Any], profiler: Any) -> Any:
        sys.setprofile(profiler)
        try:
            return function(**keywords)
        finally:
            sys.setprofile(None)

    if in_main_thread:
        return called
    pool = concurrent.futures.ThreadPoolExecutor(_CALLS_AT_ONCE)
    return lambda keywords, profiler: pool.submit(called, keywords, profiler).result()


def _call(
    request: dict[str, Any],
    records: _Records,
    call: Callable[[dict[str, Any], Any], Any],
    function: Callable[..., Any],
    number: int,
    asked: dict[str, Any],
    asked_network: list[bool],
) -> None:
    keywords = _keywords(request, asked)
    asked_network.clear()
    records.write("calling", call=number)
    started = time.perf_counter()
    try:
        value = call(copy.deepcopy(keywords), None)
        seconds = time.perf_counter() - started
        read = _score(value, is_batch=request["is_batch"])
    except BaseException as error:  # noqa: BLE001  whatever the function raises, SystemExit among it
        failure = _failure(error, request["file"])
        records.write("raised", call=number, network=bool(asked_network), **failure)
        return
    line = _line_of_return(call, keywords, function) if "problem" in read else None
    records.write("returned", call=number, seconds=seconds, line=line, network=bool(asked_network), **read)


def _keywords(request: dict[str, Any], asked: dict[str, Any]) -> dict[str, Any]:
    """All that verl passes; `reward_kwargs` win (verl 0.9.1, trainer/ppo/reward.py: _call_with_kwargs)."""
    row = request["rows"][asked["row"]]
    values = (row["data_source"], asked["answer"], row["ground_truth"], {**row["extra_info"], **request["added"]})
    if request["is_batch"]:
        values = tuple([value] for value in values)  # type: ignore[assignment]
    return {**dict(zip(request["passed"], values, strict=False)), **request["keywords"]}


def _score(value: Any, *, is_batch: bool) -> dict[str, Any]:
    """What verl reads in the value: a number, or `score` of a dict (naive.py: run_single)."""
    if is_batch:
        if not isinstance(value, (list, tuple)) or len(value) != 1:
            return {"problem": "no_list", "type": type(value).__name__, "text": _text(value)}
        value = value[0]
    more = {}
    if isinstance(value, dict):
        if "score" not in value:
            return {"problem": "no_score", "type": "dict", "text": _text(sorted(map(str, value)))}
        more = {str(key): _text(each) for key, each in list(value.items())[:20] if key != "score"}
        value = value["score"]
    number = _number(value)
    if number is None:
        if inspect.iscoroutine(value):
            value.close()
        return {"problem": "no_number", "type": type(value).__name__, "text": _text(value), "more": more}
    if not math.isfinite(number):
        return {"problem": "not_finite", "type": type(value).__name__, "text": str(number), "more": more}
    return {"score": number, "more": more}


def _number(value: Any) -> float | None:
    """The number that `tensor[-1] = value` takes: also a scalar of numpy, and a tensor of one element."""
    if isinstance(value, (int, float)):
        return float(value)
    module = type(value).__module__.partition(".")[0]
    is_scalar = (module == "numpy" and not hasattr(value, "__len__")) or (
        module == "torch" and getattr(value, "numel", lambda: 0)() == 1
    )
    if not is_scalar:
        return None
    try:
        return float(value)
    except (TypeError, ValueError):
        return None


def _line_of_return(
    call: Callable[[dict[str, Any], Any], Any], keywords: dict[str, Any], function: Callable[..., Any]
) -> int | None:
    """The line that the function was at when it returned, found by a second call; None if that call differs."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    lines: list[int] = []

    def profiler(frame: Any, event: str, _argument: Any) -> None:
        if event == "return" and frame.f_code is code:
            lines.append(frame.f_lineno)

    try:
        call(copy.deepcopy(keywords), profiler)
    except BaseException:  # noqa: BLE001
        return None
    return lines[-1] if lines else None


def _failure(error: BaseException, path: str) -> dict[str, Any]:
    """An exception: where it was raised, as far down as the file goes, and what tells its kind."""
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if frame.filename == path]
    last = frames[-1] if frames else None
    is_variable = isinstance(error, KeyError) and last is not None and last.filename in (os.__file__, "<frozen os>")
    variable = str(error.args[0]) if is_variable and error.args else None
    words = set(re.findall(r"[A-Z][A-Z0-9_]+", _text(error)))
    return {
        "type": type(error).__name__,
        "text": _text(error),
        "line": lines[-1] if lines else None,
        "module": error.name if isinstance(error, ModuleNotFoundError) else None,
        "variable": variable or next((name for name in _ASKED_IN_VAIN if name in words), None),
        "missing_file": str(error.filename) if isinstance(error, FileNotFoundError) and error.filename else None,
        "is_program": last is not None and Path(last.filename).name == "subprocess.py",
        "is_memory": isinstance(error, MemoryError),
    }


def _text(value: Any) -> str:
    """A short text of any value, also of one whose `repr` raises."""
    try:
        text = str(value) if isinstance(value, BaseException) else repr(value)
    except BaseException as error:  # noqa: BLE001
        text = f"a {type(value).__name__} whose repr raises {type(error).__name__}"
    return text[:_TEXT_CHARACTERS]


if __name__ == "__main__":
    main(sys.argv[1])
