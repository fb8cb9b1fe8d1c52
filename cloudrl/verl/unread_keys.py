"""Keys that verl has in its YAML and does not read, so that a job sets them in vain.

Read in verl 0.9.1, whose `trainer/main_ppo.py` and what it imports read none of these. Those of `MOVED` have a place
that is read: `migrate_legacy_reward_impl` (experimental/reward_loop/reward_loop.py) would move them there, and since
0.9.0 only `fully_async_main` calls it.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Iterator, Mapping

from cloudrl.spec import override_argument
from cloudrl.spec.hydra import split_key
from cloudrl.verl.keys import ACTOR, CRITIC, ROLLOUT
from cloudrl.verl.setting import Setting

_REWARD_MODEL = "reward.reward_model"
_MOVED: Mapping[str, str] = {
    "custom_reward_function": "reward.custom_reward_function",
    "sandbox_fusion": "reward.sandbox_fusion",
    "reward_model.num_workers": "reward.num_workers",
    "reward_model.reward_manager": "reward.reward_manager.name",
    "reward_model.reward_loop_source": "reward.reward_manager.source",
    "reward_model.reward_loop_module_path": "reward.reward_manager.module.path",
    "reward_model.reward_loop_class_name": "reward.reward_manager.name",
    "reward_model.reward_kwargs": "reward.reward_kwargs",
    "reward_model.model.path": f"{_REWARD_MODEL}.model_path",
    "reward_model.rollout": f"{_REWARD_MODEL}.rollout",
    **{f"reward_model.{name}": f"{_REWARD_MODEL}.{name}"
       for name in ("enable", "enable_resource_pool", "n_gpus_per_node", "nnodes")},
    f"{ACTOR}.grad_clip": f"{ACTOR}.optim.clip_grad",
    f"{CRITIC}.grad_clip": f"{CRITIC}.optim.clip_grad",
}  # fmt: skip
"""A key, or a section with all below it -> what verl reads in its place."""
_GONE = (
    "reward_model", f"{ACTOR}.freeze_vision_tower", "actor_rollout_ref.nccl_timeout", f"{CRITIC}.nccl_timeout",
    f"{ROLLOUT}.over_sample_rate", f"{ROLLOUT}.multi_turn.num_repeat_rollouts",
)  # fmt: skip
"""Keys, or sections, in whose place verl reads nothing."""
_TRUNCATION = "data.truncation"
"""The data set of verl keeps it and never uses it (utils/dataset/rl_dataset.py); a class of the user's may."""
_NOT_IN_V1 = ("algorithm.use_pf_ppo", "algorithm.pf_ppo", "trainer.esi_redundant_time")
"""Read by the older trainer alone (trainer/ppo/ray_trainer.py)."""


def unread_keys(arguments: Mapping[str, str], setting: Setting) -> Iterator[str]:
    """What a job sets in vain: a sentence for each kind, with the overrides that have the effect.

    Args:
        arguments: key, maybe with `+`, -> text, of all overrides of the job.
        setting: what they make of verl's configuration.
    """
    texts = {bare: text for (prefix, bare), text in _split(arguments) if prefix != "~"}
    given = {bare: text for bare, text in texts.items() if setting.get(bare) not in (None, "", setting.default(bare))}
    moved = {bare: new for bare in given if (new := _new_place(bare)) and new not in texts}
    if moved:
        places = {bare: new if setting.has(new) else f"+{new}" for bare, new in moved.items()}
        read = shlex.join(override_argument(new, given[bare]) for bare, new in places.items())
        yield f"{_have_no_effect(moved)}: verl 0.9.1 does not read {_it(moved)}. What it reads: {read}"
    sections = _GONE if setting.get("data.custom_cls.path") else (*_GONE, _TRUNCATION)
    if gone := [bare for bare in given if not _new_place(bare) and _is_below_any(bare, sections)]:
        yield f"{_have_no_effect(gone)}: verl 0.9.1 does not read {_it(gone)}"
    if older := [bare for bare in given if setting.is_v1 and _is_below_any(bare, _NOT_IN_V1)]:
        only = f"only verl's older trainer reads {_it(older)}. With that one: trainer.use_v1=False"
        yield f"{_have_no_effect(older)}: {only}"


def _split(arguments: Mapping[str, str]) -> Iterator[tuple[tuple[str, str], str]]:
    return ((split_key(key), text) for key, text in arguments.items())


def _new_place(key: str) -> str:
    return next((new + key[len(old) :] for old, new in _MOVED.items() if _is_below(key, old)), "")


def _is_below_any(key: str, sections: Iterable[str]) -> bool:
    return any(_is_below(key, section) for section in sections)


def _is_below(key: str, section: str) -> bool:
    return key == section or key.startswith(f"{section}.")


def _have_no_effect(keys: Collection[str]) -> str:
    return f"{', '.join(keys)} {'has' if len(keys) == 1 else 'have'} no effect"


def _it(keys: Collection[str]) -> str:
    return "it" if len(keys) == 1 else "them"
