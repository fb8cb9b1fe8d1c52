"""Keys that verl's dataclasses have no field for, and single values where verl has a section.

Of a section with `_target_` verl makes a dataclass, so that any other key ends the job, with `+` or without. Where it
does not (`data`, `trainer`, `*.custom`, the arguments of engines), keys of one's own are free.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from cloudrl.verl.composition import NOT_A_SECTION
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.rules.names import known_choices
from cloudrl.verl.setting import MODE, Setting

BUILT = (
    "actor_rollout_ref.actor", "actor_rollout_ref.ref", "actor_rollout_ref.rollout", "actor_rollout_ref.model",
    "critic", "distillation", "algorithm", "trainer.v1.separate_async.hybrid_rollout", "skip",
    "reward.reward_model.rollout",
)  # fmt: skip
"""Sections that become dataclasses: workers/engine_workers.py: init_model; trainer/ppo/v1/trainer_base.py: _setup;
trainer/ppo/v1/trainer_separate_async.py; utils/skip/skip_manager.py; workers/rollout/replica.py. `algorithm` is read
key by key, and only by verl itself where no code of the user's is loaded. `reward` as a whole is never one: its own
YAML has keys that RewardConfig has not."""
_ONLY_IF_USED = ("reward.reward_model.rollout", "trainer.v1.separate_async")
_SWITCHES = {
    "reward.reward_model": "reward.reward_model.enable",
    "distillation": "distillation.enabled",
    "algorithm.kl_ctrl": "algorithm.use_kl_in_reward",
    "algorithm.pf_ppo": "algorithm.use_pf_ppo",
}
"""Sections that are read only if a key is true."""
_ONLY_WITHOUT_CODE = ("algorithm",)
_OTHER_NAMES = {"log_prob_micro_batch_size", "log_prob_micro_batch_size_per_gpu", "log_prob_use_dynamic_bsz",
                "log_prob_max_token_len_per_gpu"}  # fmt: skip
"""Of a reference, which its worker renames first."""
_DEMANDED = (
    "apply_chat_template_kwargs", "mm_processor_kwargs", "engine_kwargs", "override_config", "reward_kwargs",
    "override_transformer_config", "override_ddp_config", "wrap_policy", "teacher_models",
)  # fmt: skip
"""Sections without keys of their own that are read as a mapping whenever they are read."""


@dataclass(frozen=True)
class _Place:
    """A section of the composed configuration, beside the same one without overrides."""

    path: str
    values: Mapping[str, Any]
    base: Any


def structure_problems(setting: Setting) -> Iterator[Problem]:
    """Added keys that are no fields, and values where verl's YAML has a section."""
    for place in _sections(setting):
        yield from _unknown_fields(setting, place)
        for key, value in place.values.items():
            theirs = place.base.get(key) if isinstance(place.base, Mapping) else None
            if not isinstance(theirs, Mapping) or isinstance(value, Mapping) or value is None:
                continue
            name = _joined(place.path, key)
            if (theirs or key in _DEMANDED) and _is_used(setting, name):
                text = f"{name}={_short(value)}{NOT_A_SECTION}"
                yield Problem(text, _inside(setting, name, theirs, value) or f"~{name}", name)


_READ = {
    "actor_rollout_ref.actor.optim": "workers/engine_workers.py: init_model",
    "actor_rollout_ref.actor.policy_loss": "workers/utils/losses.py: ppo_loss",
    "actor_rollout_ref.rollout.agent": "experimental/agent_loop/agent_loop.py: AgentLoopWorker",
    "actor_rollout_ref.rollout.multi_turn": "experimental/agent_loop/agent_loop.py: AgentLoopWorker",
    "actor_rollout_ref.rollout.trace": "experimental/agent_loop/agent_loop.py: AgentLoopWorker",
    "actor_rollout_ref.rollout.prometheus": "workers/rollout/llm_server.py: LLMServerManager",
    "actor_rollout_ref.rollout.checkpoint_engine": "workers/engine_workers.py: init_model",
    "data.apply_chat_template_kwargs": "experimental/agent_loop/agent_loop.py: apply_chat_template_kwargs",
    "reward.reward_manager": "trainer/ppo/reward.py: resolve_reward_manager_cls",
    "reward.reward_model": "trainer/ppo/utils.py: need_reward_model",
    "trainer.v1.sampler": "trainer/ppo/v1/trainer_base.py: _build_replay_buffer",
    "actor_rollout_ref.actor": "utils/config.py: validate_config",
    "actor_rollout_ref.rollout": "utils/config.py: validate_config",
    "actor_rollout_ref.rollout.val_kwargs": "utils/config.py: validate_config",
    "actor_rollout_ref.model": "utils/config.py: validate_config",
    "critic": "trainer/ppo/utils.py: need_critic",
    "algorithm": "trainer/ppo/utils.py: need_reference_policy",
}
"""Sections that verl 0.9.1 reads in every run, each with where it does."""


def sections_are_given(setting: Setting) -> Iterator[Problem]:
    """A section that is null has no keys to read; verl raises there."""
    for path, at in _READ.items():
        only_v1 = path.startswith("trainer.v1")
        if setting.has(path) and setting.get(path) is None and (setting.is_v1 or not only_v1):
            yield Problem(f"{path}=null: verl reads keys of this section ({at})", f"~{path}", path)
    if setting.is_v1 and setting.get("algorithm.use_kl_in_reward") and setting.get("algorithm.kl_ctrl") is None:
        yield Problem("algorithm.kl_ctrl=null: verl reads its keys (trainer/ppo/core_algos.py: get_kl_controller)")


def structure_notes(setting: Setting) -> Iterator[str]:
    """Added keys that nothing in verl reads, in places where any key may be added."""
    if setting.source is None or not setting.source.reads:
        return
    for place in _sections(setting):
        is_top = place.path.count(".") == 0 and place.path in ("data", "trainer", "reward", "actor_rollout_ref")
        if not is_top or not isinstance(place.base, Mapping):
            continue
        for key in place.values:
            is_misspelt = difflib.get_close_matches(key, place.base, 1, 0.85)  # `Composed.lookalikes` says so
            if key not in place.base and key not in setting.source.reads and not is_misspelt:
                yield (
                    f"{_joined(place.path, key)}: verl {setting.source.version} reads no key of that name; "
                    "does your code read it?"
                )


def _sections(setting: Setting) -> Iterator[_Place]:
    """Every section, outer ones first."""
    waiting = [_Place("", setting.values, setting.base)]
    while waiting:
        place = waiting.pop()
        yield place
        for key, value in place.values.items():
            base = place.base.get(key) if isinstance(place.base, Mapping) else None
            path = _joined(place.path, key)
            if isinstance(value, Mapping) and not setting.follows(path):  # the other one is looked at
                waiting.append(_Place(path, value, base))


def _unknown_fields(setting: Setting, place: _Place) -> Iterator[Problem]:
    shape = setting.source.shape(place.values.get("_target_")) if setting.source is not None else None
    if shape is None or not _is_built(setting, place.path):
        return
    known = place.base if isinstance(place.base, Mapping) else {}
    for key in place.values:
        is_renamed = place.path == "actor_rollout_ref.ref" and key in _OTHER_NAMES
        if key in shape.fields or key in known or is_renamed or key.startswith("_"):
            continue
        name = _joined(place.path, key)
        similar = difflib.get_close_matches(key, shape.fields, 1, 0.8)
        text = f"{name}: {shape.name.rpartition('.')[2]} of verl has no field {key!r} ({shape.at})"
        meant = "".join(f"{'' if each in known else '+'}{_joined(place.path, each)}" for each in similar)
        yield Problem(text, f"{meant}={_short(place.values[key])}" if meant else "")


def _is_built(setting: Setting, path: str) -> bool:
    def below(roots: tuple[str, ...]) -> bool:
        return any(path == root or path.startswith(f"{root}.") for root in roots)

    if path.startswith(_ONLY_IF_USED) and not _is_used(setting, path):
        return False
    return below(BUILT) and not (below(_ONLY_WITHOUT_CODE) and setting.brings_code)


def _is_used(setting: Setting, path: str) -> bool:
    """Whether this job reads a section that some jobs do not."""
    if path == "distillation":  # where the switch is
        return True
    if path.startswith("critic."):
        return setting.uses_critic
    if path.startswith("trainer.v1.separate_async"):
        return setting.is_v1 and setting.get(MODE) == "separate_async"
    switches = [key for section, key in _SWITCHES.items() if path == section or path.startswith(f"{section}.")]
    return all(setting.get(key) for key in switches) or path == "reward.reward_model"


def _inside(setting: Setting, name: str, theirs: Mapping[str, Any], value: Any) -> str:
    """The key of the section that takes such a value."""
    if isinstance(value, bool):
        switches = [key for key in ("enable", "enabled") if key in theirs]
        return f"{name}.{switches[0]}={value}" if switches else ""
    texts = [key for key in theirs if key.endswith(("mode", "name", "type")) and isinstance(value, str)]
    if len(texts) != 1:
        return ""
    key = f"{name}.{texts[0]}"
    choices = next((choice.names for choice in known_choices(setting) if choice.key == key), ())
    meant = difflib.get_close_matches(value, choices, 1)
    return f"{key}={meant[0]}" if meant else ""


def _joined(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


def _short(value: object) -> str:
    text = "null" if value is None else str(value)
    return text if len(text) < 60 else f"{text[:57]}..."


RULES = (sections_are_given,)
