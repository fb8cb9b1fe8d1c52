"""Data sets that a cluster prepares: by a name, or described in full."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated

from pydantic import PlainValidator, model_validator

from cloudrl.errors import SpecError, did_you_mean
from cloudrl.protocol.data_sets import BUILT_IN
from cloudrl.spec.base import Spec
from cloudrl.spec.fields import Positive, absolute_path, data_name, matching, one_line, optional, text, unique_list_of
from cloudrl.spec.quoting import quoted

if TYPE_CHECKING:
    from typing_extensions import Self

_HUB_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*")
_HUB_URL = re.compile(r"(?:https?://[^/]+/|hf://)?datasets/([^/]+/[^/?#]+).*")
_FILE = re.compile(r".*\.(jsonl|json|csv|parquet)")
_ANY_PLACE = "One of {}, owner/name on the Hugging Face Hub, or an absolute path of the nodes".format(
    ", ".join(BUILT_IN)
)


def data_place(value: object) -> str:
    """A data set by one text: a built-in name, `owner/name` on the Hub, or an absolute path of the nodes."""
    if isinstance(value, str) and value in BUILT_IN:
        return value
    if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][\w.-]*", value) and not _FILE.fullmatch(value):
        raise SpecError(f"there is no data set {quoted(value)}{did_you_mean(value, BUILT_IN)}", hint=_ANY_PLACE)
    return _source(value)


def _source(value: object) -> str:
    if isinstance(value, str) and value.startswith("/"):
        return absolute_path(value)
    if not isinstance(value, str) or not value.strip():
        raise SpecError(f"{quoted(value)} is not the name of a data set", hint=_ANY_PLACE)
    _refuse_address(value)
    if value.startswith(("./", "../", "~")) or _FILE.fullmatch(value):
        raise SpecError(f"{quoted(value)} is not an absolute path", hint="For example '/data/mine.jsonl'")
    if not _HUB_ID.fullmatch(value):
        raise SpecError(
            f"{quoted(value)} is not the name of a data set{did_you_mean(value, BUILT_IN)}", hint=_ANY_PLACE
        )
    return value


def _name(value: object) -> str:
    _refuse_address(value)
    return absolute_path(value) if isinstance(value, str) and value.startswith("/") else data_name(value)


def _refuse_address(value: object) -> None:
    url = _HUB_URL.fullmatch(value) if isinstance(value, str) else None
    if url:
        raise SpecError(f"{quoted(value)} is an address; did you mean {url[1]!r}?", hint=_ANY_PLACE)


_field = matching(r"[^.\x00-\x1f]+(\.[^.\x00-\x1f]+)*", "a field", "A column, or a path into one: 'answers.text.0'")
_split = matching(r"\w+(\.\w+)*", "the name of a split", "For example 'train'")  # datasets 5.2, splits.py: _split_re


def _system(value: object) -> str:
    if not text(value).strip():
        raise SpecError(f"{quoted(value)} is empty", hint="Leave system out for none")
    return text(value)


class DataSet(Spec):
    """One data set, with what has to be said of it beyond its name.

    Prompt and answer are found by their usual names where no fields are given (question, prompt, problem,
    instruction; answer, solution, response, ...). verl picks its reward function by `data_source`, and raises
    NotImplementedError for one that it does not know (verl 0.9.1, utils/reward_score/__init__.py:
    default_compute_score) unless the job has a reward function of its own, in
    `reward.custom_reward_function.path`.

        questions = cloudrl.DataSet(name="my-org/my-set", prompt_field="problem", answer_field="final")
        cloudrl.Cluster(name="mine", data=["gsm8k", questions])
    """

    name: Annotated[str, PlainValidator(_name)]
    """What jobs call it."""
    source: Annotated[str | None, PlainValidator(optional(_source))] = None
    """`owner/name` on the Hub, or an absolute path of the nodes: a file or folder of jsonl, json, csv or parquet.

    None means that the name is one of these, or built in. For a built-in one: where its raw rows are."""
    prompt_field: Annotated[str | None, PlainValidator(optional(_field))] = None
    """A column of texts or of chat messages; dots lead into nested ones."""
    answer_field: Annotated[str | None, PlainValidator(optional(_field))] = None
    """A column of texts or numbers: the ground truth."""
    system: Annotated[str | None, PlainValidator(optional(_system))] = None
    """A system message before every prompt."""
    config: Annotated[str | None, PlainValidator(optional(one_line))] = None
    """The Hub's configuration (subset), or the folder of its files."""
    split: Annotated[str | None, PlainValidator(optional(_split))] = None
    """The split to train on; None means `train`, or the only one."""
    test_split: Annotated[str | None, PlainValidator(optional(_split))] = None
    """The split to test on; None means `test`, `validation` or the like, and without one rows are held out."""
    test_rows: Positive | None = None
    """Hold out so many rows of `split`, always the same ones, instead of taking a split for testing."""
    data_source: Annotated[str | None, PlainValidator(optional(one_line))] = None
    """Decides verl's reward function; None means the Hub id, or the name (of a path, its stem)."""
    skip_bad: bool = False
    """Leave out rows with an empty prompt or answer, instead of refusing them."""

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.source is None:
            data_place(self.name)
        if self.name in BUILT_IN:
            self._check_built_in()
        if self.test_rows is not None and self.test_split is not None:
            raise SpecError(
                f"test_rows {self.test_rows} and test_split {quoted(self.test_split)} exclude each other",
                hint="test_rows= holds out rows of the training split; leave one of the two out",
            )
        if self.test_split is not None and self.test_split == (self.split or "train"):
            raise SpecError(
                f"test_split {quoted(self.test_split)} is the split that is trained on",
                hint="test_rows= holds out rows of it",
            )
        return self

    def _check_built_in(self) -> None:
        may = {"name"} if BUILT_IN[self.name].hub_id is None else {"name", "source"}
        wrong = [field for field in self._not_default() if field not in may]
        if wrong:
            raise SpecError(
                f"{quoted(self.name)} is built in and makes its own rows, so it has no {', '.join(wrong)}",
                hint=f"Ask for other rows under another name: name='my-{self.name}', source=...",
            )

    def _not_default(self) -> dict[str, object]:
        fields = type(self).model_fields
        return {name: getattr(self, name) for name in fields if getattr(self, name) != fields[name].default}

    def argument(self) -> str:
        """The `--data` argument of the node agent: the name alone, or JSON in one line when there is more to say."""
        fields = self._not_default()
        return self.name if list(fields) == ["name"] else json.dumps(fields, ensure_ascii=False)


def data_argument(value: str | DataSet) -> str:
    """The `--data` argument of one item of `Cluster.data`."""
    return value if isinstance(value, str) else value.argument()


def _data_set(value: object) -> str | DataSet:
    if isinstance(value, DataSet):
        return value
    return DataSet.load(value) if isinstance(value, Mapping) else data_place(value)


_data_sets = unique_list_of(
    _data_set,
    by=lambda item: item if isinstance(item, str) else item.name,
    hint="Give one another name: DataSet(name=..., source=...)",
)
DataSets = Annotated[Sequence[str | DataSet], PlainValidator(_data_sets)]
