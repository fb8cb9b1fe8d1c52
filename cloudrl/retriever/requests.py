"""What a request may say: word for word as Search-R1's server reads it (search_r1/search/retrieval_server.py, a14dc3a).

Limits keep a single client from stopping the server.
"""

from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from cloudrl.errors import CloudrlError

MAX_TOPK = 1000
MAX_PASSAGES = 1 << 16
"""Of an answer: queries times `topk`; some 50 MB."""
MAX_CHARACTERS = 1 << 16
"""Of a query; an encoder reads some 1,000 of them."""


class InvalidRequest(CloudrlError):
    """What the caller wrote cannot be answered.

    Attributes:
        detail: why, in FastAPI's form.
    """

    def __init__(self, detail: list[dict[str, Any]]) -> None:
        super().__init__("; ".join(str(problem["msg"]) for problem in detail))
        self.detail = detail


class RetrieveRequest(BaseModel):
    """The body of `POST /retrieve`. A `topk` of null or 0 is the server's own."""

    queries: list[Annotated[str, Field(max_length=MAX_CHARACTERS)]]
    topk: Annotated[int, Field(ge=0, le=MAX_TOPK)] | None = None
    return_scores: bool = False


def parse_request(body: bytes) -> RetrieveRequest:
    """Read a body.

    Raises:
        InvalidRequest: it is not JSON, or not in the form.
    """
    try:
        return RetrieveRequest.model_validate_json(body)
    except ValidationError as error:
        raise InvalidRequest(
            [
                {"type": problem["type"], "loc": ["body", *problem["loc"]], "msg": problem["msg"]}
                for problem in error.errors()
            ]
        ) from error
