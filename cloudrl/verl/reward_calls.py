"""How verl calls a reward function of the user's own, and what it takes for a score.

Source: verl 0.9.1, experimental/reward_loop/reward_manager (naive.py, dapo.py, gdpo.py, limited.py, remote.py), which
since verl 0.8 is what scores; before, workers/reward_manager, whose `batch` scores a list of answers at once. The
function's file and its `reward_kwargs` are read in trainer/ppo/reward.py: get_custom_reward_fn.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cloudrl.spec.hydra import integer
from cloudrl.verl.keys import OLD_REWARD_NAME, OLD_REWARD_PATH, REWARD_FUNCTION, REWARD_NAME, REWARD_PATH

_SECTIONS = (REWARD_PATH.removesuffix("path"), OLD_REWARD_PATH.removesuffix("path"))
MANAGER = "reward.reward_manager.name"
_OLD_MANAGER = "reward_model.reward_manager"
_SOURCE = "data.reward_fn_key"
_MANAGER_CODE = "reward.reward_manager.module.path"
_TURNS, _AGENT = "actor_rollout_ref.rollout.multi_turn.enable", "actor_rollout_ref.rollout.agent."
_WORKERS = f"{_AGENT}num_workers"
"""How many processes run the loop, whichever it is."""
_ROUTER = ("reward.reward_model.enable", "reward_model.enable")

ONE = ("data_source", "solution_str", "ground_truth", "extra_info")
"""What verl passes for one answer, by name."""
MANY = ("data_sources", "solution_strs", "ground_truths", "extra_infos")
"""What the manager `batch` passes: a list of each."""
OF_ROUTER = ("reward_router_address", "reward_model_tokenizer")
"""What verl passes besides where a reward model runs."""
BATCH, REMOTE = "batch", "remote"
_ADDED: Mapping[str, Mapping[str, Any]] = {
    "naive": {"num_turns": 2, "rollout_reward_scores": {}},
    REMOTE: {"num_turns": 2, "rollout_reward_scores": {}},
    "gdpo": {"experiment_name": "my-run"},
    "dapo": {},
    "rate_limited": {},
    BATCH: {},
}
"""Manager -> what it adds to `extra_info`, with the values of a conversation of one question and one answer."""


@dataclass(frozen=True)
class RewardCall:
    """How a job has its answers scored.

    Attributes:
        path: of the file with the function, as the job has it.
        function: its name.
        keywords: `reward_kwargs`, which win over what verl passes.
        manager: verl's reward manager.
        has_router: whether a reward model runs, whose address is passed.
        adds_fields: whether tools or an agent loop of the user's may add to `extra_info` what they return
            (`tool_extra_fields`, naive.py).
        has_own_manager: whether the manager is code of the user's, so that it is not known how it calls.
    """

    path: str
    function: str = REWARD_FUNCTION
    keywords: Mapping[str, Any] = field(default_factory=dict)
    manager: str = "naive"
    has_router: bool = False
    has_own_manager: bool = False
    source_column: str = "data_source"
    """Of the rows, with what is passed as `data_source`."""
    adds_fields: bool = False

    @property
    def is_known(self) -> bool:
        """Whether it is known how this manager calls the function."""
        return not self.has_own_manager and self.manager in _ADDED

    @property
    def is_batch(self) -> bool:
        """Whether the function gets lists, and returns one."""
        return self.manager == BATCH

    @property
    def passed(self) -> tuple[str, ...]:
        """Names of all that verl passes by name."""
        names = (*(MANY if self.is_batch else ONE), *(OF_ROUTER if self.has_router else ()))
        return (*names, *(name for name in self.keywords if name not in names))

    @property
    def added(self) -> Mapping[str, Any]:
        """What verl adds to the row's `extra_info`."""
        return _ADDED.get(self.manager, {})


def reward_call(values: Mapping[str, str]) -> RewardCall | None:
    """How a job calls its own reward function; None if it has none.

    Args:
        values: bare key -> value without quotes, of all overrides of the job.
    """
    path = values.get(REWARD_PATH) or values.get(OLD_REWARD_PATH)
    if not path or path == "null":
        return None
    name = values.get(REWARD_NAME) or values.get(OLD_REWARD_NAME) or REWARD_FUNCTION
    manager = values.get(MANAGER) or values.get(_OLD_MANAGER) or "naive"
    has_router = any(values.get(key, "").lower() == "true" for key in _ROUTER)
    has_loop = any(key.startswith(_AGENT) and key != _WORKERS for key in values)
    adds_fields = has_loop or values.get(_TURNS, "").lower() == "true"
    return RewardCall(
        path, name, _keywords(values), manager, has_router, _MANAGER_CODE in values, values.get(_SOURCE, "data_source"),
        adds_fields,
    )  # fmt: skip


def _keywords(values: Mapping[str, str]) -> dict[str, Any]:
    """`reward_kwargs`, given as keys below it or as one mapping."""
    keywords: dict[str, Any] = {}
    for section in _SECTIONS:
        start = f"{section}reward_kwargs"
        if start in values and isinstance(given := _value(values[start]), Mapping):
            keywords |= given
        below = {key.removeprefix(f"{start}."): text for key, text in values.items() if key.startswith(f"{start}.")}
        for key, text in below.items():
            place = keywords
            *parents, last = key.split(".")
            for parent in parents:
                place = place.setdefault(parent, {})
            place[last] = _value(text)
    return keywords


def _value(text: str) -> Any:
    """The Python value of a Hydra text."""
    if integer(text) is not None:
        return integer(text)
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import OverrideParseException

    try:
        return OverridesParser.create().parse_override(f"key={text}").value()
    except OverrideParseException:  # a quoted text has lost its quotes
        return text
