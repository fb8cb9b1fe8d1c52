"""Paths and names that verl 0.9.1 reads as text; a list, a mapping or a number there ends the job.

A row says when a text is read, so that what is never read is never refused.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from cloudrl.spec.hydra import hydra_text
from cloudrl.verl import keys
from cloudrl.verl.keys import CRITIC, MODEL, ROLLOUT
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.setting import SAMPLER, Setting

COPIED = "utils/fs.py: copy_to_local"
_IMPORTED = "utils/import_utils.py: load_module"


@dataclass(frozen=True)
class Text:
    """A key whose value is text.

    Attributes:
        key: dotted.
        at: where verl reads it.
        null: whether it may be left out; an empty value then counts as none.
        several: whether a list of texts will do.
    """

    key: str
    at: str
    null: bool = True
    several: bool = False

    def allows(self, value: Any) -> bool:
        """Whether a value will do."""
        if value is None:
            return self.null
        if self.several and isinstance(value, list):
            return all(isinstance(each, str) for each in value)
        return isinstance(value, str) or (self.null and not value)


def texts_are_texts(setting: Setting) -> Iterator[Problem]:
    """Lists, mappings and numbers in place of a path or a name; folders that end in a slash."""
    yield from wrong_texts(setting, _texts(setting))


def wrong_texts(setting: Setting, texts: Iterator[Text]) -> Iterator[Problem]:
    """What rows do not allow; a key that is not there, or follows another one, is left out."""
    for text in texts:
        if not setting.has(text.key) or setting.follows(text.key):
            continue
        value, default = setting.get(text.key), setting.default(text.key)
        if not text.allows(value):
            shown, kind = "null" if value is None else str(value)[:60], "a path" if _is_path(text) else "a name"
            hint = f"{text.key}={default}" if isinstance(default, str) and not _is_path(text) else ""
            if isinstance(value, list) and len(value) == 1 and isinstance(value[0], str):
                hint = f"{text.key}={value[0]}"
            elif text.null and not hint:
                hint = f"{text.key}=null"
            yield Problem(f"{text.key}={shown}: verl needs {kind} here ({text.at})", hint)
        elif text.at == COPIED and (with_slash := [each for each in _each(value) if each.endswith("/")]):
            bare = [each.rstrip("/") for each in _each(value)]
            meant = hydra_text(bare if isinstance(value, list) else bare[0])
            hint = shlex.quote(f"{text.key}={meant}") if all(bare) else ""
            yield Problem(f"{text.key}={with_slash[0]}: verl refuses a path that ends in a slash ({text.at})", hint)


def _each(value: Any) -> list[str]:
    """The paths that a value names: itself, or each of a list."""
    return [each for each in (value if isinstance(value, list) else [value]) if isinstance(each, str)]


def _is_path(text: Text) -> bool:
    return keys.kind_of(text.key) is not None or text.key.endswith("_dir")


def _texts(setting: Setting) -> Iterator[Text]:
    yield from _of_models(setting)
    yield from _of_code(setting)
    yield from _of_agents(setting)
    base = "trainer/ppo/v1/trainer_base.py"
    saves = (setting.whole(keys.SAVE_FREQ) or 0) > 0 and setting.trains
    if setting.is_v1 and (setting.get(keys.RESUME_MODE) == "auto" or saves):
        yield Text(keys.LOCAL_DIR, f"{base}: _load_checkpoint", null=False)
    if setting.is_v1 and setting.trains:
        yield Text(keys.ROLLOUT_DIR, f"{base}: _log_rollout_data")
    if not setting.get("data.custom_cls.path"):
        yield Text("data.prompt_key", "utils/dataset/rl_dataset.py: RLHFDataset", null=False)


def _of_models(setting: Setting) -> Iterator[Text]:
    """workers/config/model.py: HFModelConfig; workers/engine/fsdp/transformer_impl.py: _build_lora_module."""
    for section in (MODEL, f"{CRITIC}.model") if setting.uses_critic else (MODEL,):
        yield Text(f"{section}.path", COPIED, null=False)
        for name in ("hf_config_path", "tokenizer_path"):
            yield Text(f"{section}.{name}", COPIED)
        yield Text(f"{section}.external_lib", "utils/import_utils.py: import_external_libs", several=True)
    if setting.lora_rank and setting.is_fsdp(keys.ACTOR):
        yield Text(f"{MODEL}.lora_adapter_path", COPIED)
    if setting.get("reward.reward_model.enable"):
        yield Text("reward.reward_model.model_path", COPIED)


def _of_code(setting: Setting) -> Iterator[Text]:
    parts = ["reward.custom_reward_function", "data.custom_cls"]
    if setting.get("reward.reward_manager.source") == "importlib":
        parts.append("reward.reward_manager.module")
    if setting.is_v1 and setting.get(SAMPLER.replace(".path", ".name")):
        parts.append(SAMPLER.removesuffix(".path"))
    for part in parts:
        yield Text(f"{part}.path", _IMPORTED)
        if setting.get(f"{part}.path"):  # a reward function without a name has a rule of its own
            yield Text(f"{part}.name", _IMPORTED, null=part.endswith("reward_function"))


def _of_agents(setting: Setting) -> Iterator[Text]:
    """experimental/agent_loop/agent_loop.py: AgentLoopWorker, which resolves each path that is not empty."""
    if setting.get(f"{ROLLOUT}.agent.agent_loop_manager_class"):
        return
    worker = "experimental/agent_loop/agent_loop.py: AgentLoopWorker"
    for name in ("multi_turn.tool_config_path", "multi_turn.function_tool_path", "agent.agent_loop_config_path"):
        yield Text(f"{ROLLOUT}.{name}", worker)
    yield Text(f"{ROLLOUT}.agent.default_agent_loop", worker)  # rows of data may name their own loops


RULES = (texts_are_texts,)
