"""What verl's supervised fine-tuning refuses; read in verl 0.9.1, trainer/sft_trainer.py and sft_trainer_ray.py.

Its sections are built by the same dataclasses as those of `main_ppo`, so that verl's own checks of them are followed
with any release. Nothing else that `verl.rules` knows of `main_ppo` goes for it.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Mapping, Sequence

from cloudrl.verl import keys
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.rules.built import build_section, what_is_refused
from cloudrl.verl.rules.names import RESUME_MODES, Choice, loggers_are_known, unknown_choices
from cloudrl.verl.rules.texts import COPIED, Text, wrong_texts
from cloudrl.verl.rules.values import Row, wrong_values
from cloudrl.verl.setting import Setting

_SECTIONS = ("model", "engine", "optim", "checkpoint", "profiler")
"""Sections that become dataclasses: sft_trainer.py, _build_config."""
_TRAINER, _DATASET = "trainer/sft_trainer.py", "utils/dataset/multiturn_sft_dataset.py: MultiTurnSFTDataset"
_EPOCH = "after_each_epoch"
_FSDP = ("fsdp", "fsdp2", "fsdp_turbo")

_LENGTH = "data.max_length"
_TEMPLATE_TOKENS, _BLOCK = 64, 256
"""What a chat template may add to a conversation, and the steps in which a limit is suggested."""


def fine_tuning_problems(setting: Setting, *, gpus: int | None, on_ray: bool) -> tuple[Problem, ...]:
    """All that cannot work; nothing is known of verl 0.7's `fsdp_sft_trainer`, which has no engine and no dataclasses.

    Args:
        setting: the configuration.
        gpus: processes of training; None if the command does not tell.
        on_ray: whether `sft_trainer_ray` starts them.
    """
    if not isinstance(setting.get("engine"), Mapping):
        return ()
    found: list[Problem] = []
    if setting.is_read:
        found += wrong_values(setting, _rows(setting, on_ray=on_ray))
        found += wrong_texts(setting, _texts(setting))
        found += unknown_choices(setting, _choices(setting))
        found += loggers_are_known(setting)
        found += _profiled_steps(setting)
        found += _frequencies(setting)
        found += _parallelism(setting, gpus)
        if gpus:
            found += _batches(setting, gpus, on_ray=on_ray)
    builds = [functools.partial(build_section, values, path) for path in _SECTIONS
              if isinstance(values := setting.get(path), Mapping)]  # fmt: skip
    return (*found, *what_is_refused(setting, builds, [problem.text for problem in found]))


def overlong_rows(setting: Setting, name: str, tokens: Sequence[int]) -> Iterator[str]:
    """What ends the job at a row that is too long (utils/dataset/multiturn_sft_dataset.py: MultiTurnSFTDataset).

    Args:
        setting: the configuration.
        name: the file, as the user calls it.
        tokens: of each of its first conversations, without a chat template; empty if they were not counted.
    """
    limit = setting.whole(_LENGTH)
    if limit is None or setting.get("data.truncation") != "error":
        return
    if over := sum(count > limit for count in tokens):
        longest = max(tokens)
        enough = math.ceil((longest + _TEMPLATE_TOKENS) / _BLOCK) * _BLOCK
        yield (
            f"{over} of the first {len(tokens)} conversations of {name} have more tokens than {_LENGTH}={limit}, the "
            f"longest {longest} and a chat template: the first of them ends the job. data.truncation=right cuts them, "
            f"{_LENGTH}={enough} takes them"
        )


def _rows(setting: Setting, *, on_ray: bool) -> Iterator[Row]:
    yield Row("data.train_batch_size", f"{_TRAINER}: _build_dataloader", low=1)
    if not on_ray:  # the other one has 8, whatever is set
        yield Row("data.num_workers", f"{_TRAINER}: _build_dataloader", low=0)
    micro = "workers/engine/utils.py: prepare_micro_batches"
    if setting.get("data.use_dynamic_bsz"):
        yield Row("data.max_token_len_per_gpu", micro, is_whole=False, low=0, above=True)
    else:
        yield Row("data.micro_batch_size_per_gpu", micro, low=1)
    if not setting.get("data.custom_cls.path"):
        yield Row("data.max_length", _DATASET, low=1)
    yield Row(keys.EPOCHS, f"{_TRAINER}: fit")
    yield Row(keys.STEPS, f"{_TRAINER}: fit", is_whole=False, null=True)
    if on_ray:
        for key in (keys.NODES, keys.GPUS):
            yield Row(key, "trainer/sft_trainer_ray.py: _build_engine", low=1)
    if _is_fsdp(setting):
        if setting.get("optim.optimizer_impl") == "torch.optim":
            for name in ("lr", "weight_decay"):
                yield Row(f"optim.{name}", "workers/config/optimizer.py: build_optimizer", is_whole=False, low=0)
        engine = "workers/engine/fsdp/transformer_impl.py: _init_device_mesh"
        yield Row("engine.ulysses_sequence_parallel_size", engine, low=1)


def _texts(setting: Setting) -> Iterator[Text]:
    yield Text(keys.FINE_TUNED, COPIED, null=False)
    for name in ("hf_config_path", "tokenizer_path"):
        yield Text(f"model.{name}", COPIED)
    yield Text(keys.LOCAL_DIR, "utils/checkpoint/checkpoint_handler.py: CheckpointHandler", null=False)
    if not setting.get("data.custom_cls.path"):
        yield Text(keys.TRAIN_FILES, COPIED, null=False, several=True)
        yield Text(keys.VAL_FILES, COPIED, several=True)
        yield Text("data.messages_key", _DATASET, null=False)


def _choices(setting: Setting) -> Iterator[Choice]:
    yield Choice(keys.RESUME_MODE, RESUME_MODES, "utils/checkpoint/checkpoint_handler.py: CheckpointHandler")
    engines = setting.names("EngineRegistry.register/language_model")
    yield Choice("engine.strategy", engines, "workers/engine/base.py: get_engine_cls", is_open=True)
    if not setting.get("data.custom_cls.path"):
        yield Choice("data.pad_mode", ("right", "no_padding"), _DATASET)
        yield Choice("data.truncation", ("error", "left", "right"), _DATASET)


def _profiled_steps(setting: Setting) -> Iterator[Problem]:
    """sft_trainer.py: _validate_profiler_interval."""
    key, value = "trainer.profile_interval", setting.get("trainer.profile_interval")
    is_pair = isinstance(value, list) and len(value) == 2 and all(type(each) in (int, float) for each in value)
    if not is_pair or value[1] < value[0] or value[0] < 0 <= value[1]:
        yield Problem(f"{key}={value}: verl needs a first and a last step, or [-1,-1]", f"{key}=[-1,-1]")


def _frequencies(setting: Setting) -> Iterator[Problem]:
    """sft_trainer.py: fit divides by both in each step."""
    for key in (keys.SAVE_FREQ, keys.TEST_FREQ):
        value = setting.get(key)
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if value != _EPOCH and not (is_number and value):
            yield Problem(f"{key}={value}: verl needs a number of steps, -1 for never, or {_EPOCH} ({_TRAINER}: fit)",
                          f"{key}=-1")  # fmt: skip


def _is_fsdp(setting: Setting) -> bool:
    return setting.get("engine.strategy") in _FSDP


def _shared(setting: Setting) -> int | None:
    """GPUs that share one sequence and one copy of what is computed; None where this is not known."""
    if _is_fsdp(setting):
        return setting.whole("engine.ulysses_sequence_parallel_size")
    if setting.get("engine.strategy") != "megatron":
        return None
    sizes = ("tensor_model", "pipeline_model", "context")
    return math.prod(setting.whole(f"engine.{size}_parallel_size") or 1 for size in sizes)


def _parallelism(setting: Setting, gpus: int | None) -> Iterator[Problem]:
    """workers/engine/fsdp/transformer_impl.py: __init__, _init_device_mesh; fsdp/utils.py: create_device_mesh."""
    shared, key = _shared(setting), "engine.ulysses_sequence_parallel_size"
    if _is_fsdp(setting) and (shared or 1) > 1 and not setting.get("model.use_remove_padding"):
        yield Problem(f"{key}={shared} needs model.use_remove_padding", "model.use_remove_padding=True")
    if gpus and shared and gpus % shared:
        what = f"{key}={shared}" if _is_fsdp(setting) else f"tensor, pipeline and context parallelism ({shared})"
        yield Problem(f"{gpus} GPUs cannot be divided by {what}")
    size = setting.whole("engine.fsdp_size")
    if gpus and _is_fsdp(setting) and size and 0 < size < gpus and gpus % size:
        yield Problem(f"{gpus} GPUs cannot be divided by engine.fsdp_size={size}", "engine.fsdp_size=-1")


def _batches(setting: Setting, gpus: int, *, on_ray: bool) -> Iterator[Problem]:
    """sft_trainer.py: _build_dataloader; sft_trainer_ray.py: fit; workers/engine/utils.py: prepare_micro_batches."""
    key, shared = "data.train_batch_size", _shared(setting)
    batch, micro = setting.whole(key), setting.whole("data.micro_batch_size_per_gpu")
    if batch is None or batch < 1 or not shared or shared < 1 or gpus % shared:
        return
    ranks = gpus // shared
    if batch < ranks or (on_ray and setting.get("trainer.balance_batch") and batch % ranks):
        fits = max(ranks, batch - batch % ranks)
        yield Problem(f"{key}={batch} cannot be divided over {ranks} data-parallel ranks", f"{key}={fits}")
    elif not setting.get("data.use_dynamic_bsz") and micro and micro > 0 and batch // ranks % micro:
        each = batch // ranks
        yield Problem(
            f"data.micro_batch_size_per_gpu={micro} does not divide the {each} rows of {key}={batch} on each of "
            f"{ranks} data-parallel ranks",
            f"data.micro_batch_size_per_gpu={math.gcd(each, micro)}",
        )
