"""Searches the web through SerpAPI, as Search-R1's serp_search_server.py does (search_r1/search, a14dc3a).

SerpAPI asks Google. Google's own JSON API is closed to new customers, and ends on 1 January 2027
(developers.google.com/custom-search/v1/overview).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from http.client import HTTPException
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode
from urllib.request import urlopen

from cloudrl.errors import CloudrlError, InputError
from cloudrl.foreign import Malformed, parse_json, read_all
from cloudrl.retriever.batching import QueryFailed, Unavailable
from cloudrl.retriever.engine import Found

NAME = "serpapi"
KEY_VARIABLE = "SERPAPI_API_KEY"
_URL = "https://serpapi.com"
_TIMEOUT_S = 30.0
_RETRY_S = 5
_AT_ONCE = 32
_KEPT = 1 << 14


class KeyRefused(CloudrlError):
    """SerpAPI does not take the key."""


class SerpApi:
    """What Google finds for a query: its answer box, if there is one, then pages, each with title and snippet.

    A page has no score; here it is one by its rank: 1, 1/2, 1/3. Answers are kept while the server runs, because each
    costs money, and conversations about one question often ask the same. Failures are not kept.

    Args:
        key: of an account.
        url: of SerpAPI.

    Attributes:
        identity: what is served.
    """

    def __init__(self, key: str, url: str = _URL) -> None:
        self._key, self._url = key, url
        self.identity: dict[str, Any] = {"engine": NAME}
        self._threads = ThreadPoolExecutor(_AT_ONCE, NAME)
        self._found = lru_cache(_KEPT)(self._find)

    def account(self) -> dict[str, Any]:
        """What SerpAPI says of the account. It costs nothing.

        Raises:
            KeyRefused: it does not take the key.
            Unavailable: it does not answer at the moment.
            QueryFailed: what it answers cannot be read.
        """
        return self._get("account.json", {})

    def search(self, queries: Sequence[str], k: int) -> list[list[Found] | Exception]:
        """For each query at most `k` pages, the best first, or the reason for an empty answer."""
        return [pages[:k] if isinstance(pages, list) else pages for pages in self._threads.map(self._try, queries)]

    def _try(self, query: str) -> list[Found] | Exception:
        try:
            return self._found(query)
        except CloudrlError as error:
            return error
        except (TypeError, AttributeError, ValueError) as error:  # an odd answer, or a query that is not text
            return QueryFailed(f"SerpAPI's answer cannot be read: {error!r}")

    def _find(self, query: str) -> list[Found]:
        pages = list(_pages(self._get("search.json", {"engine": "google", "q": query})))
        return [Found(json.dumps(page).encode(), 1 / rank) for rank, page in enumerate(pages, start=1)]

    def _get(self, path: str, parameters: Mapping[str, str]) -> dict[str, Any]:
        asked = urlencode({**parameters, "api_key": self._key})
        try:
            with urlopen(f"{self._url}/{path}?{asked}", timeout=_TIMEOUT_S) as answer:  # noqa: S310 - https, above
                page = parse_json(read_all(answer))
        except HTTPError as error:
            raise _refusal(error) from None
        except (OSError, HTTPException) as error:
            raise Unavailable(f"SerpAPI does not answer: {type(error).__name__}: {error}", _RETRY_S) from None
        except Malformed as error:
            raise QueryFailed(f"SerpAPI's answer cannot be read: {error}") from None
        if not isinstance(page, dict):
            raise QueryFailed(f"SerpAPI's answer cannot be read: it is a {type(page).__name__}")
        return page


def _refusal(error: HTTPError) -> CloudrlError:
    with error:
        text = f"SerpAPI answers {error.code}: {_start(error)}"
    if error.code == 429 or error.code >= 500:
        return Unavailable(text, _RETRY_S)
    return KeyRefused(text) if error.code in (401, 403) else QueryFailed(text)


def _start(error: HTTPError) -> str:
    try:
        return error.read(500).decode(errors="replace")
    except (OSError, HTTPException) as broken:
        return type(broken).__name__


def _pages(answer: Mapping[str, Any]) -> Iterator[dict[str, str]]:
    """As the documents of Search-R1's server; none where SerpAPI has found none."""
    for page in (answer.get("answer_box"), *answer.get("organic_results", ())):
        if page:
            title = page.get("title") or "No title."
            text = page.get("snippet") or page.get("answer") or page.get("result") or "No snippet available."
            yield {"id": page.get("link", ""), "contents": f'"{title}"\n{text}'}


def open_serpapi(env: Mapping[str, str], *, say: Callable[[str], object], url: str = _URL) -> SerpApi:
    """A SerpAPI whose key is good.

    Args:
        env: has the key.
        say: gets a line with the number of searches that are left.
        url: of SerpAPI.

    Raises:
        InputError: the key is missing, or SerpAPI refuses it.
    """
    key = env.get(KEY_VARIABLE)
    if not key:
        raise InputError(
            f"the engine {NAME} needs a key, and {KEY_VARIABLE} is not set",
            hint=f"Of a cluster: --secret {KEY_VARIABLE}; on this machine: export {KEY_VARIABLE}=...",
        )
    serpapi = SerpApi(key, url)
    try:
        account = serpapi.account()
    except KeyRefused as error:
        raise InputError(error.message, hint=f"Is {KEY_VARIABLE} the key of {_URL}/manage-api-key?") from None
    except (Unavailable, QueryFailed) as error:
        say(f"warning: {error.message}; searches fail until it does. Can this machine reach {_URL}?")
        return serpapi
    left, hourly = account.get("total_searches_left"), account.get("account_rate_limit_per_hour")
    say(f"SerpAPI has {left} searches left for this key, at most {hourly} in an hour")
    return serpapi
