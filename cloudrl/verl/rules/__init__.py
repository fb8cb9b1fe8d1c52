"""What verl refuses of a configuration, and what its workers would find out minutes into a job; read in verl 0.9.1.

A rule looks at the composed configuration and at the GPUs of the cluster, and gives a `Problem` for each thing that
cannot work. Each names where verl checks it. A test holds those of verl's driver against verl's own validation.

`what_verl_builds` follows verl's own code and goes with any release; all others were read in `READ_IN`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cloudrl.verl.composition import Problem
from cloudrl.verl.keys import ACTOR, ROLLOUT
from cloudrl.verl.releases import RELEASE
from cloudrl.verl.rules.batches import (
    batch_is_divided,
    dynamic_batches_agree,
    log_probs_are_divided,
    micro_batches_are_given,
    mini_batches_are_divided,
    mini_batches_fit,
)
from cloudrl.verl.rules.built import what_verl_builds
from cloudrl.verl.rules.megatron import megatron_features_fit, megatron_groups_fit
from cloudrl.verl.rules.names import estimators_have_what_they_ask, names_are_known, unknown_names
from cloudrl.verl.rules.parallelism import (
    engines_have_their_sections,
    replicas_fit,
    rollout_is_possible,
    sequences_are_split,
    shards_are_whole,
)
from cloudrl.verl.rules.pools import (
    async_steps_fit,
    filtering_is_possible,
    generated_batches_fit,
    pools_fit_the_cluster,
    resume_is_named,
    switches_are_possible,
)
from cloudrl.verl.rules.servers import (
    data_parallel_servers_fit,
    disaggregation_is_possible,
    distillation_is_possible,
    overlong_answers_have_limits,
    rewards_have_what_they_ask,
)
from cloudrl.verl.rules.structure import sections_are_given, structure_notes, structure_problems
from cloudrl.verl.rules.texts import texts_are_texts
from cloudrl.verl.rules.values import (
    files_are_read,
    flags_for_numbers,
    optimizers_know_their_options,
    values_are_possible,
)
from cloudrl.verl.setting import Setting

READ_IN = (RELEASE.verl,)
"""Releases in whose source the rules were read."""
RULES: tuple[Callable[[Setting], Iterator[Problem]], ...] = (
    sections_are_given,
    values_are_possible,
    texts_are_texts,
    files_are_read,
    optimizers_know_their_options,
    names_are_known,
    estimators_have_what_they_ask,
    batch_is_divided,
    micro_batches_are_given,
    mini_batches_fit,
    mini_batches_are_divided,
    log_probs_are_divided,
    dynamic_batches_agree,
    sequences_are_split,
    shards_are_whole,
    rollout_is_possible,
    replicas_fit,
    pools_fit_the_cluster,
    async_steps_fit,
    switches_are_possible,
    filtering_is_possible,
    resume_is_named,
    engines_have_their_sections,
    megatron_groups_fit,
    megatron_features_fit,
    generated_batches_fit,
    data_parallel_servers_fit,
    disaggregation_is_possible,
    rewards_have_what_they_ask,
    overlong_answers_have_limits,
    distillation_is_possible,
)


def problems(setting: Setting) -> tuple[Problem, ...]:
    """All that cannot work."""
    found = list(structure_problems(setting))
    if setting.is_read:
        found += [problem for rule in RULES for problem in rule(setting)]
    replaced = [f"{problem.key}." for problem in found if problem.key]  # sections: what is said of their keys follows
    found = [problem for problem in found if not any(section in problem.text for section in replaced)]
    return (*found, *what_verl_builds(setting, found))


def notes(setting: Setting) -> tuple[str, ...]:
    """What may end a job that begins well, and names that only code of the user's can know; a sentence each."""
    found = list(structure_notes(setting))
    if not setting.is_read:
        return tuple(found)
    found += [f"{key}={value}: verl has none of that name; does your code bring it?"
              for key, value in unknown_names(setting)]  # fmt: skip
    found += flags_for_numbers(setting)
    loop = f"{ROLLOUT}.agent.default_agent_loop"
    if setting.has(loop) and setting.get(loop) is None:  # trainer/ppo/v1/agent_loop_tq.py: generate_sequences
        found.append(f"{loop}=null: each row of the data has to name its agent loop, in a column `agent_name`")
    room = setting.whole(f"{ACTOR}.ppo_max_token_len_per_gpu")
    lengths = [setting.whole(f"data.max_{each}_length") for each in ("prompt", "response")]
    if setting.get(f"{ACTOR}.use_dynamic_bsz") and room is not None and None not in lengths:
        longest, together = sum(filter(None, lengths)), room * setting.sequence_parallel(ACTOR)[1]
        if together < longest:  # utils/seqlen_balancing.py: rearrange_micro_batches
            found.append(
                f"{ACTOR}.ppo_max_token_len_per_gpu={room} is less than a prompt and an answer may have ({longest} "
                "tokens): the first that is longer ends the job"
            )
    return tuple(found)
