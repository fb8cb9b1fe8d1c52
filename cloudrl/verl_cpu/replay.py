"""verl's replay buffer with a shorter pause between two looks at the queue.

verl's trainer waits for finished prompts by polling every 2 s (verl/trainer/ppo/v1/replay_buffer.py) and has no
option for it: with a tiny model that pause would be most of a step. verl's own option for a sampler of one's own
calls this:

    trainer.v1.sampler.custom_sampler.path=pkg://cloudrl.verl_cpu.replay
    trainer.v1.sampler.custom_sampler.name=FastReplayBuffer

verl gives a custom sampler no group filter: `algorithm.filter_groups` (DAPO) needs verl's own buffer.
"""

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer, ReplayBufferAsync

_POLL_INTERVAL_S = 0.05


def FastReplayBuffer(*, trainer_mode: str, **kwargs: Any) -> ReplayBuffer:  # noqa: N802  a class to verl
    """Make verl's own replay buffer of a trainer's mode, polled every 50 ms."""
    buffer = ReplayBuffer if trainer_mode == "sync" else ReplayBufferAsync
    return buffer(trainer_mode=trainer_mode, **{"poll_interval": _POLL_INTERVAL_S, **kwargs})
