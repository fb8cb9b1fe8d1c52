"""What verl refuses of a configuration, and what its workers would find out minutes into a job; read in verl 0.9.1.

A rule looks at the composed configuration and at the GPUs of the cluster, and gives a `Problem` for each thing that
cannot work. Each names where verl checks it. A module lists its rules in `RULES`. A test holds those of verl's driver
against verl's own validation.

`what_verl_builds` follows verl's own code and goes with any release; all others were read in `READ_IN`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cloudrl.verl.keys import ACTOR, ROLLOUT
from cloudrl.verl.override_parsing import Problem
from cloudrl.verl.releases import RELEASE
from cloudrl.verl.rules import batches, megatron, names, parallelism, pools, servers, structure, texts, values
from cloudrl.verl.rules.built import what_verl_builds
from cloudrl.verl.rules.names import unknown_names
from cloudrl.verl.rules.structure import structure_notes, structure_problems
from cloudrl.verl.rules.values import flags_for_numbers
from cloudrl.verl.setting import Setting

READ_IN = (RELEASE.verl,)
"""Releases in whose source the rules were read."""
RULES: tuple[Callable[[Setting], Iterator[Problem]], ...] = (
    *structure.RULES,
    *values.RULES,
    *texts.RULES,
    *names.RULES,
    *batches.RULES,
    *parallelism.RULES,
    *pools.RULES,
    *megatron.RULES,
    *servers.RULES,
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
