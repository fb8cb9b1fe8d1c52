"""Which columns of a table are prompt and answer, and what stands in them. Standard library only."""

from typing import Any, List, Mapping, Optional, Tuple

from cloudrl.data.rows import BadRow
from cloudrl.errors import InputError, did_you_mean

PROMPTS = ("prompt", "question", "problem", "instruction", "query")
ANSWERS = ("answer", "final_answer", "solution", "response", "output", "ground_truth", "target", "label")
ROLES = ("system", "developer", "user", "assistant", "tool")


class UnknownFields(InputError):
    """The rows have no column for the prompt, the answer, or both.

    Attributes:
        columns: those that they have.
        prompt_field, answer_field: the column that would be taken; None for one that is not found.
    """

    def __init__(
        self, message: str, *, hint: str, columns: List[str], prompt_field: Optional[str], answer_field: Optional[str]
    ) -> None:
        super().__init__(message, hint=hint)
        self.columns, self.prompt_field, self.answer_field = columns, prompt_field, answer_field

    def guess(self) -> Tuple[str, str]:
        """A prompt and an answer field for an example: those that are found, else the first and the last column."""
        prompt = self.prompt_field or next((name for name in self.columns if name != self.answer_field), "FIELD")
        answer = self.answer_field or next((name for name in reversed(self.columns) if name != prompt), "FIELD")
        return prompt, answer


def find_fields(
    name: str, row: Mapping[str, Any], prompt_field: Optional[str], answer_field: Optional[str]
) -> Tuple[str, str]:
    """The fields that hold prompt and answer: those that were named, else those of the usual names.

    Args:
        name: The data set, for messages.
        row: The first row.
        prompt_field: A column, or a path with dots into it: `conversation.0.content`.
        answer_field: Likewise.

    Raises:
        UnknownFields: The rows have no such fields; the message names what is missing and lists the columns.
    """
    prompt, no_prompt = _find(row, "prompt_field", prompt_field, PROMPTS)
    answer, no_answer = _find(row, "answer_field", answer_field, ANSWERS)
    if prompt is not None and answer is not None:
        return prompt, answer
    missing = {"prompt_field": no_prompt, "answer_field": no_answer}
    named = " ".join(
        f"{option}=COLUMN (--{option.replace('_', '-')} COLUMN)" for option, text in missing.items() if text
    )
    raise UnknownFields(
        f"data set {name} has {_shown(row)}: {' and '.join(filter(None, missing.values()))}",
        hint=f"Say which one it is: {named}",
        columns=_leaves(row), prompt_field=prompt, answer_field=answer,
    )  # fmt: skip


def _find(
    row: Mapping[str, Any], option: str, wanted: Optional[str], usual: Tuple[str, ...]
) -> Tuple[Optional[str], str]:
    """The field, or what is wrong in words."""
    if wanted is None:
        by_lower = {column.lower(): column for column in reversed(list(row))}
        found = next((by_lower[field] for field in usual if field in by_lower), None)
        what = option.partition("_")[0]
        return found, "" if found else f"no column for the {what} ({', '.join(usual[:-1])} or {usual[-1]})"
    try:
        value_at(row, wanted)
    except BadRow:
        return None, f"{option} {wanted!r} is not a column{did_you_mean(wanted, _leaves(row))}"
    return wanted, ""


def value_at(row: Mapping[str, Any], field: str) -> Any:
    """The value of a column, or of a path with dots into it; numbers count the items of a list.

    Raises:
        BadRow: The row has no such thing.
    """
    if field in row:
        return row[field]
    value: Any = row
    for part in field.split("."):
        if isinstance(value, dict) and part in value:
            value = value[part]
        elif isinstance(value, list) and part.isdigit() and int(part) < len(value):
            value = value[int(part)]
        else:
            raise BadRow(f"it has no field {field!r}; it has {_shown(row)}")
    return value


def _shown(row: Mapping[str, Any]) -> str:
    return ", ".join(_leaves(row)) or "no columns"


def _leaves(row: Mapping[str, Any]) -> List[str]:
    """The columns, and instead of one that holds a mapping its parts: `answers.text`."""
    leaves: List[str] = []
    for column, value in row.items():
        leaves += [f"{column}.{part}" for part in value] if isinstance(value, dict) and value else [column]
    return leaves


def answer_text(value: Any) -> str:
    """The ground truth as a text.

    Raises:
        BadRow: It is neither a text nor a number, or empty.
    """
    if value is None or (isinstance(value, str) and not value.strip()) or value != value:  # noqa: PLR0124  NaN
        raise BadRow("its answer is empty")
    if isinstance(value, bool) or not isinstance(value, (str, int, float)):
        raise BadRow(f"its answer is neither a text nor a number, but {str(value)[:60]!r}")
    return _writable("answer", str(value))


def messages(value: Any, system: Optional[str]) -> List[Mapping[str, str]]:
    """A prompt as chat messages: a text becomes the user's message, a list of messages stays what it is.

    Args:
        value: What stands in the prompt's field.
        system: Comes before it as the system's message.

    Raises:
        BadRow: The conversation is empty, malformed, or has a system message of its own besides `system`.
    """
    chat = [_message(message) for message in value] if isinstance(value, list) else [_from_user(value)]
    if not chat:
        raise BadRow("its prompt is empty")
    if chat[-1]["role"] == "assistant":
        raise BadRow("its prompt ends with the assistant's message; the last one should be the user's")
    if system is None:
        return chat
    if chat[0]["role"] == "system":
        raise BadRow("its prompt has a system message already; leave `system` out")
    return [{"role": "system", "content": system}, *chat]


def _from_user(value: Any) -> Mapping[str, str]:
    if value is None or (isinstance(value, str) and not value.strip()):
        raise BadRow("its prompt is empty")
    if not isinstance(value, str):
        raise BadRow(f"its prompt is neither a text nor a list of messages, but {str(value)[:60]!r}")
    return {"role": "user", "content": _writable("prompt", value)}


def _message(value: Any) -> Mapping[str, str]:
    if not isinstance(value, dict) or "role" not in value or "content" not in value:
        keys = ", ".join(value) if isinstance(value, dict) else str(value)[:60]
        raise BadRow(f"a message of its prompt should have role and content, not {keys!r}")
    role, content = value["role"], value["content"]
    more = sorted(key for key, item in value.items() if key not in ("role", "content") and item is not None)
    if more:
        raise BadRow(f"a message of its prompt has {', '.join(more)} besides role and content")
    if role not in ROLES:
        raise BadRow(f"a message of its prompt has role {role!r}; verl's chat templates know {', '.join(ROLES)}")
    if not isinstance(content, str) or not content.strip():
        raise BadRow(f"the {role}'s message of its prompt is empty or no text")
    return {"role": role, "content": _writable("prompt", content)}


def _writable(what: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise BadRow(f"its {what} holds a lone surrogate, which cannot be written as UTF-8") from None
    return text
