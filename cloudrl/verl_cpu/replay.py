"""verl's replay buffer with a shorter pause between two looks at the queue.

verl's trainer waits for finished prompts by polling every 2 s (verl/trainer/ppo/v1/replay_buffer.py) and has no
option for it: with a tiny model that pause would be most of a step. verl's own option for a sampler of one's own
selects this class:

    trainer.v1.sampler.custom_sampler.path=pkg://cloudrl.verl_cpu.replay
    trainer.v1.sampler.custom_sampler.name=FastReplayBuffer

verl gives a custom sampler no group filter: `algorithm.filter_groups` (DAPO) needs verl's own buffer.
"""

from typing import Any

from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer

_POLL_INTERVAL_S = 0.05


class FastReplayBuffer(ReplayBuffer):
    """verl's synchronous replay buffer, polled every 50 ms."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **{"poll_interval": _POLL_INTERVAL_S, **kwargs})
