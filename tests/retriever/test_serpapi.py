"""The web as an engine: SerpAPI's answers in Search-R1's form, and what its failures are to others in the batch."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from fake_retriever import Session, post, serving
from fake_serpapi import KEY, FakeSerpApi, fake_serpapi, page

from cloudrl.errors import InputError
from cloudrl.retriever.batching import Unavailable
from cloudrl.retriever.opening import Source, open_searches
from cloudrl.retriever.serpapi import SerpApi, open_serpapi

pytestmark = pytest.mark.io

QUIET: dict[str, Any] = {"on_progress": print, "say": print}


@pytest.fixture
def web(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeSerpApi]:
    monkeypatch.setenv("NO_PROXY", "*")
    with fake_serpapi() as server:
        yield server


@pytest.fixture
def engine(web: FakeSerpApi) -> SerpApi:
    return SerpApi(KEY, web.url)


def documents(found: object) -> list[Any]:
    assert isinstance(found, list), found
    return [json.loads(document) for document, _ in found]


def test_pages_in_their_order(engine: SerpApi) -> None:
    [found] = engine.search(["who wrote Faust?"], 2)
    assert documents(found) == [
        {"id": f"https://example.org/{rank}", "contents": f'"who wrote Faust? {rank}"\ntext {rank}'} for rank in (1, 2)
    ]
    assert [score for _, score in found] == [1, 0.5]


@pytest.mark.parametrize(
    ("said", "contents"),
    [
        ({"answer_box": {"title": "Faust", "snippet": "by Goethe"}, "organic_results": [page("a", 1)]},
         ['"Faust"\nby Goethe', '"a 1"\ntext 1']),
        ({"answer_box": {"type": "calculator_result", "result": "4"}}, ['"No title."\n4']),
        ({"answer_box": {"title": "Faust", "answer": "1808"}, "organic_results": []}, ['"Faust"\n1808']),
        ({"organic_results": [{"link": "https://example.org"}]}, ['"No title."\nNo snippet available.']),
        ({"error": "Google hasn't returned any results for this query."}, []),
    ],
)  # fmt: skip
def test_what_google_finds(engine: SerpApi, web: FakeSerpApi, said: dict[str, Any], contents: list[str]) -> None:
    web.says["a"] = (200, said)
    [found] = engine.search(["a"], 3)
    assert [each["contents"] for each in documents(found)] == contents


def test_a_query_is_paid_for_once(engine: SerpApi, web: FakeSerpApi) -> None:
    engine.search(["a", "b"], 1)
    [found] = engine.search(["a"], 3)
    assert len(documents(found)) == 3
    assert sorted(web.asked) == ["a", "b"]


@pytest.mark.parametrize(
    ("status", "said", "message"),
    [
        (429, {"error": "Your account has run out of searches."}, 'SerpAPI answers 429: {"error": "Your account'),
        (200, b"<html>", "SerpAPI's answer cannot be read: it is not JSON"),
        (200, [], "SerpAPI's answer cannot be read: it is a list"),
        (200, {"organic_results": None}, "SerpAPI's answer cannot be read: TypeError"),
        (200, {"answer_box": ["1808"]}, "SerpAPI's answer cannot be read: AttributeError"),
    ],
)  # fmt: skip
def test_a_failure_is_its_querys_alone_and_is_not_kept(
    engine: SerpApi, web: FakeSerpApi, status: int, said: object, message: str
) -> None:
    web.says["a"] = (status, said)
    failed, found = engine.search(["a", "b"], 1)
    assert isinstance(failed, Exception)
    assert str(failed).startswith(message)
    assert KEY not in str(failed)
    assert len(documents(found)) == 1
    del web.says["a"]
    assert len(documents(engine.search(["a"], 1)[0])) == 1
    assert sorted(web.asked) == ["a", "a", "b"], "and no other was asked again"


def test_the_server_answers_as_with_an_index(engine: SerpApi, web: FakeSerpApi) -> None:
    web.says |= {"busy": (503, {"error": "sorry"}), "odd": (200, [])}

    async def test(session: Session) -> None:
        wanted = {"id": "https://example.org/1", "contents": '"a 1"\ntext 1'}
        assert await post(session, queries=["a"], topk=1) == (200, {"result": [[wanted]]})
        for _ in range(6):
            status, said = await post(session, queries=["busy"], topk=1)
            assert (status, said["detail"]) == (503, 'SerpAPI answers 503: {"error": "sorry"}')
            status, said = await post(session, queries=["odd"], topk=1)
            assert (status, said["detail"]) == (500, "QueryFailed: SerpAPI's answer cannot be read: it is a list")
        async with session.get("/health") as answer:
            health = await answer.json()
            assert (health["engine"], health["ready"]) == ("serpapi", True), "none of it is a fault of the server"

    serving(test, engine)


def test_what_the_account_has_is_said(web: FakeSerpApi) -> None:
    said: list[str] = []
    open_serpapi({"SERPAPI_API_KEY": KEY}, say=said.append, url=web.url)
    assert said == ["SerpAPI has 4900 searches left for this key, at most 1000 in an hour"]


@pytest.mark.parametrize(
    ("env", "message", "hint"),
    [
        ({}, "SERPAPI_API_KEY is not set", "--secret SERPAPI_API_KEY"),
        ({"SERPAPI_API_KEY": "wrong"}, "SerpAPI answers 401: ", "https://serpapi.com/manage-api-key"),
    ],
)
def test_a_key_that_is_missing_or_wrong(web: FakeSerpApi, env: dict[str, str], message: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        open_serpapi(env, say=print, url=web.url)
    assert message in caught.value.message
    assert hint in str(caught.value.hint)


def test_a_start_without_access_warns_and_goes_on() -> None:
    said: list[str] = []
    engine = open_serpapi({"SERPAPI_API_KEY": KEY}, say=said.append, url="http://127.0.0.1:9")
    assert said[0].startswith("warning: SerpAPI does not answer: ")
    assert said[0].endswith("Can this machine reach https://serpapi.com?")
    assert isinstance(engine.search(["a"], 1)[0], Unavailable)


def test_nothing_of_an_index_applies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SERPAPI_API_KEY", raising=False)
    with pytest.raises(InputError, match="SERPAPI_API_KEY is not set"):
        open_searches(Source(None, engine="serpapi"), **QUIET)
    with pytest.raises(InputError, match="no index, corpus, encoder or device applies"):
        open_searches(Source(None, engine="serpapi", encoder="e5"), **QUIET)
