"""The search tool's client against a small server with the API of Search-R1's, without verl."""

import asyncio
import contextlib
import importlib.util
import json
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from aiohttp import web
from quiet_ports import free_ports

from cloudrl import tools

Answer = Callable[[dict[str, Any]], web.Response]
PASSAGES = ['"Ottawa"\nOttawa is the capital\nof Canada.', '"Canada"\nA country.']
SHOWN = 'Doc 1(Title: "Ottawa") Ottawa is the capital\nof Canada.\nDoc 2(Title: "Canada") A country.\n'


@pytest.fixture
def tool(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The file as verl executes it, with a stand-in for verl's decorator: importing verl takes seconds."""
    monkeypatch.setitem(sys.modules, "verl.tools.function_tool", SimpleNamespace(function_tool=lambda each: each))
    spec = importlib.util.spec_from_file_location("searching", f"{tools.__path__[0]}/search.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "searching", module)
    spec.loader.exec_module(module)
    return module


class Server:
    """Answers by a function, which can be changed; keeps what it was asked."""

    def __init__(self) -> None:
        self.answer: Answer = lambda _: found(PASSAGES)
        self.asked: list[dict[str, Any]] = []
        self.hangs, self.over = False, asyncio.Event()
        self.connections: set[Any] = set()
        self.authorized: set[str | None] = set()

    async def handle(self, request: web.Request) -> web.Response:
        self.connections.add(request.transport)
        self.authorized.add(request.headers.get("Authorization"))
        self.asked.append(await request.json())
        if self.hangs:
            await self.over.wait()
        return self.answer(self.asked[-1])

    @contextlib.asynccontextmanager
    async def listening(self, bound: socket.socket | None = None) -> AsyncIterator[int]:
        app = web.Application()
        app.router.add_post("/retrieve", self.handle)
        runner = web.AppRunner(app, shutdown_timeout=0)
        await runner.setup()
        site = web.SockSite(runner, bound) if bound else web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        try:
            yield runner.addresses[0][1]
        finally:
            self.over.set()
            await runner.cleanup()


def found(passages: list[str]) -> web.Response:
    return web.json_response(
        {"result": [[{"document": {"id": "1", "contents": each}, "score": 0.5} for each in passages]]}
    )


class Bench:
    """A client and its server in one event loop; time passes only where the client pauses."""

    def __init__(self, tool: ModuleType, loop: asyncio.AbstractEventLoop, server: Server, port: int) -> None:
        self._tool, self.loop, self.server, self.port, self.now = tool, loop, server, port, 0.0
        self.ends: list[str] = []
        self.pauses: list[float] = []
        self.at_pause: Callable[[], Coroutine[Any, Any, None]] | None = None
        self.set()

    def set(self, **settings: Any) -> None:
        """A client with other settings than the defaults."""
        defaults = self._tool.Settings.from_env({"CLOUDRL_SEARCH_URL": f"http://127.0.0.1:{self.port}/retrieve"})
        self.search = self._tool.Search(
            replace(defaults, **settings), end_run=self._end, clock=lambda: self.now, sleep=self._sleep
        )

    async def _end(self, reason: str) -> None:
        self.ends.append(reason)

    async def _sleep(self, seconds: float) -> None:
        self.now += seconds
        self.pauses.append(seconds)
        if self.at_pause is not None:
            await self.at_pause()

    def ask(self, query: Any = "capital of Canada") -> str | BaseException:
        """What comes of a query."""
        [outcome] = self.ask_all([query])
        return outcome

    def ask_all(self, queries: Iterable[Any]) -> list[str | BaseException]:
        """What comes of queries that are asked at once."""

        async def all_of_them() -> list[str | BaseException]:
            return await asyncio.gather(*map(self._outcome, queries))

        return self.loop.run_until_complete(all_of_them())

    async def _outcome(self, query: Any) -> str | BaseException:
        try:
            return str(await self.search.ask(query))
        except BaseException as error:  # noqa: BLE001 - RunEnded is one
            return error


@pytest.fixture
def bench(tool: ModuleType) -> Iterator[Bench]:
    server, loop = Server(), asyncio.new_event_loop()
    listening = server.listening()
    made = Bench(tool, loop, server, loop.run_until_complete(listening.__aenter__()))
    try:
        yield made
    finally:
        loop.run_until_complete(made.search.close())
        loop.run_until_complete(listening.__aexit__(None, None, None))
        loop.close()


pytestmark = pytest.mark.io


def test_the_model_reads_passages_as_search_r1_shows_them(bench: Bench) -> None:
    bench.set(topk=2)
    assert bench.ask("capital of Canada") == SHOWN
    assert bench.server.asked == [{"queries": ["capital of Canada"], "topk": 2, "return_scores": True}]
    bench.server.answer = lambda _: found([])
    assert bench.ask("x") == "Nothing was found."
    assert (bench.search.calls, bench.search.failures) == (2, 0)


def test_searches_share_a_limited_number_of_connections(bench: Bench) -> None:
    assert set(bench.ask_all(map(str, range(400)))) == {SHOWN}
    assert len({each["queries"][0] for each in bench.server.asked}) == 400
    assert len(bench.server.connections) == 128


@pytest.mark.parametrize("query", ["", "  ", None, ["a", "b"], 7])
def test_what_is_no_query_is_the_models_fault_and_asks_nobody(bench: Bench, query: Any) -> None:
    assert bench.ask(query) == "The query must be a text, and not empty."
    assert (bench.server.asked, bench.search.calls) == ([], 0)


@pytest.mark.parametrize("status", [502, 503, 504])
def test_a_server_that_is_full_or_late_is_asked_again(bench: Bench, status: int) -> None:
    bench.server.answer = lambda _: web.Response(status=status) if len(bench.server.asked) < 4 else found(PASSAGES)
    assert bench.ask() == SHOWN
    assert (len(bench.server.asked), bench.search.failures) == (4, 0)
    assert [round(each / 0.2 / 2**number, 2) for number, each in enumerate(bench.pauses)] == [
        pytest.approx(0.75, abs=0.25)
    ] * 3


def test_a_server_that_starts_again_is_waited_for(bench: Bench) -> None:
    """Its port refuses connections for a minute or two, in which a step's conversations would all fail."""
    bound = socket.socket()
    bound.bind(("127.0.0.1", 0))  # and refuses connections until somebody listens
    port = bound.getsockname()[1]
    bench.set(url=f"http://127.0.0.1:{port}/retrieve")
    again = bench.server.listening(bound)

    async def come_back() -> None:
        if bench.now > 60 and not bench.server.asked:
            bench.at_pause = None
            await again.__aenter__()

    bench.at_pause = come_back
    assert bench.ask() == SHOWN
    assert 60 < bench.now < 70
    bench.loop.run_until_complete(again.__aexit__(None, None, None))


def test_a_server_that_stays_away_is_a_failure_when_the_time_is_over(bench: Bench, tool: ModuleType) -> None:
    bench.set(url="http://127.0.0.1:9/retrieve")
    error = bench.ask()
    assert type(error) is tool.Unavailable
    assert "127.0.0.1:9" in str(error)
    assert 110 < bench.now <= 120
    assert max(bench.pauses) <= 5
    assert (bench.search.calls, bench.search.failures, bench.search.seconds) == (1, 1, pytest.approx(bench.now))


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        (lambda: web.Response(status=500, text="out of memory"), "HTTP 500: out of memory"),
        (lambda: web.Response(status=404, text="no such route"), "HTTP 404: no such route"),
        (lambda: web.Response(text="<html>"), "the answer is not that of a retrieval server: JSONDecodeError("),
        (lambda: web.json_response({"results": []}), "the answer is not that of a retrieval server: KeyError("),
        (lambda: web.json_response({"result": []}), "the answer is not that of a retrieval server: IndexError("),
        (lambda: web.json_response({"result": [["text"]]}), "the answer is not that of a retrieval server: TypeError("),
        (lambda: web.json_response({"result": [None]}), "the answer is not that of a retrieval server: TypeError("),
    ],
)
def test_another_answer_is_a_failure_at_once(
    bench: Bench, tool: ModuleType, answer: Callable[[], web.Response], said: str
) -> None:
    bench.server.answer = lambda _: answer()
    error = bench.ask()
    assert type(error) is tool.SearchError
    assert str(error).startswith(said)
    assert (len(bench.server.asked), bench.search.failures) == (1, 1)


def test_a_query_that_the_server_refuses_is_text_for_the_model(bench: Bench) -> None:
    bench.server.answer = lambda _: web.Response(status=422, text="too long")
    assert bench.ask() == "The query cannot be searched: too long"
    assert (bench.search.calls, bench.search.failures) == (1, 0)


@pytest.mark.parametrize(("token", "shown"), [("s3cret", "Bearer s3cret"), ("", None)])
def test_the_token_of_the_server(bench: Bench, token: str, shown: str | None) -> None:
    bench.set(token=token)
    assert bench.ask() == SHOWN
    assert bench.server.authorized == {shown}


def test_the_content_type_does_not_matter(bench: Bench) -> None:
    text = json.dumps(json.loads(found(PASSAGES).text or ""))
    bench.server.answer = lambda _: web.Response(text=text, content_type="text/plain")
    assert bench.ask() == SHOWN


class BrokenOff(web.Response):
    """The beginning of an answer."""

    async def prepare(self, request: web.BaseRequest) -> Any:
        assert request.transport is not None
        request.transport.write(b'HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{"result": [')
        request.transport.close()


@contextlib.contextmanager
def server_process(port: int) -> Iterator[subprocess.Popen[str]]:
    """The retrieval server with a stand-in for its index."""
    program = Path(__file__).parents[1] / "retriever/fake_retriever.py"
    with subprocess.Popen([sys.executable, program, str(port)], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


def test_a_server_that_is_killed_with_requests_in_it_and_started_again(tool: ModuleType) -> None:
    async def whole(port: int) -> None:
        search = tool.Search(tool.Settings.from_env({"CLOUDRL_SEARCH_URL": f"http://127.0.0.1:{port}/retrieve"}))

        async def one_after_another(client: int) -> None:
            for number in range(10):
                query = f"{client}-{number}"
                assert (await search.ask(query)).startswith(f'Doc 1(Title: "{query}") text 0\n')

        with server_process(port) as first:
            clients = [asyncio.create_task(one_after_another(client)) for client in range(8)]
            while search.calls < 16:  # noqa: ASYNC110 - it has no event
                await asyncio.sleep(0.01)
            first.kill()
        await asyncio.sleep(0.2)
        assert not any(each.done() for each in clients)
        with server_process(port):
            await asyncio.gather(*clients)
        assert (search.calls, search.failures) == (80, 0)
        await search.close()

    asyncio.run(whole(*free_ports(1)))


def test_an_answer_that_breaks_off_is_asked_for_again(bench: Bench) -> None:
    def break_off(_: dict[str, Any]) -> web.Response:
        bench.server.answer = lambda _: found(PASSAGES)
        return BrokenOff()

    bench.server.answer = break_off
    assert bench.ask() == SHOWN
    assert len(bench.server.asked) == 2


def test_a_server_that_hangs_is_given_up(bench: Bench, tool: ModuleType) -> None:
    bench.set(timeout_s=0.2)
    bench.server.hangs = True
    error = bench.ask()
    assert (type(error), str(error)) == (tool.SearchError, "no answer within 0.2 s")


def fail_for(queries: str) -> Answer:
    return lambda body: web.Response(status=500) if body["queries"][0] in queries else found(PASSAGES)


@pytest.mark.parametrize(
    ("outcomes", "ends"),
    [
        ("+" * 20, False),
        ("-" * 10 + "+" * 10, False),  # half is not more than half
        ("+" * 9 + "-" * 11, True),
        ("-" * 18, False),  # too few to judge
        ("-" * 20, True),
        ("-" * 10 + "+" * 30 + "-" * 9, False),  # ten of the last twenty, with the one that follows
        ("+" * 500 + "-" * 11, True),
    ],
)
def test_the_run_ends_when_most_of_the_last_searches_failed_and_one_that_has_begun_since(
    bench: Bench, tool: ModuleType, outcomes: str, ends: bool
) -> None:
    bench.server.answer = fail_for("-")
    assert tool.RunEnded not in map(type, map(bench.ask, outcomes))
    bench.now += 119.9
    assert type(bench.ask("-")) is tool.SearchError
    assert bench.ends == []
    bench.now += 0.1
    assert (type(bench.ask("-")) is tool.RunEnded) == ends
    assert len(bench.ends) == ends
    assert (bench.search.calls, bench.search.failures) == (len(outcomes) + 2, outcomes.count("-") + 2)


def test_a_server_that_stands_still_for_a_while_ends_no_run(bench: Bench, tool: ModuleType) -> None:
    """All searches that are under way fail with it, of hundreds of conversations in one step."""
    bench.server.answer = fail_for("-")
    for _ in range(3):
        assert {type(each) for each in bench.ask_all("-" * 200)} == {tool.SearchError}
        bench.now += 60
        assert set(bench.ask_all("+" * 20)) == {SHOWN}
        bench.now += 120
    assert bench.ends == []


def test_once_ended_no_conversation_goes_on_and_it_is_said_once(bench: Bench, tool: ModuleType) -> None:
    bench.server.answer = fail_for("-")
    assert {type(each) for each in bench.ask_all("-" * 60)} == {tool.SearchError}
    bench.now += 120
    assert {type(each) for each in bench.ask_all("-" * 60)} == {tool.RunEnded}
    [reason] = bench.ends
    bench.server.answer = fail_for("")
    later = bench.ask("+")
    assert isinstance(later, tool.RunEnded)
    assert str(later) == reason
    assert reason.startswith("20 of the last 20 searches on ")
    assert "the last with: HTTP 500" in reason
    assert reason.endswith(f"Is the retrieval server of that node well (http://127.0.0.1:{bench.port}/retrieve)?")


def test_a_window_of_zero_never_ends_it(bench: Bench, tool: ModuleType) -> None:
    bench.set(window=0)
    bench.server.answer = fail_for("-")
    for _ in range(50):
        assert type(bench.ask("-")) is tool.SearchError
        bench.now += 60
    assert bench.ends == []


def test_now_and_then_it_says_how_it_goes(bench: Bench, capfd: pytest.CaptureFixture[str]) -> None:
    for at in (0, 290, 301, 302, 650):
        bench.now = at
        bench.ask()
    assert capfd.readouterr().out.splitlines() == [
        "search: 3 calls, 0 failed, 0.00 s each",
        "search: 5 calls, 0 failed, 0.00 s each",
    ]


def test_variables_set_it(tool: ModuleType) -> None:
    assert tool.Settings.from_env({}) == tool.Settings("http://127.0.0.1:8000/retrieve", 3, 120.0, 20)
    of_the_node = {"CLOUDRL_SERVICE_SEARCH": "127.0.0.1:20123"}
    assert tool.Settings.from_env(of_the_node).url == "http://127.0.0.1:20123/retrieve"
    given = {"URL": "http://10.0.0.9:80/r", "TOPK": "5", "TIMEOUT_S": "9.5", "WINDOW": "0"}
    env = {**of_the_node, **{f"CLOUDRL_SEARCH_{name}": value for name, value in given.items()}}
    assert "s3cret" not in repr(tool.Settings.from_env({"CLOUDRL_RETRIEVER_TOKEN": "s3cret"}))
    assert tool.Settings.from_env(env) == tool.Settings("http://10.0.0.9:80/r", 5, 9.5, 0)
