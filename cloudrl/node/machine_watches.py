"""What each node watches of its own machine from the first moment on, each in a thread of its own."""

from typing import Callable, Mapping

from cloudrl.node.cloud_notices import start_asking
from cloudrl.node.node_state import NodeState
from cloudrl.node.oom_kills import start_watching
from cloudrl.node.usage import start_sampling
from cloudrl.protocol.options import AgentOptions


def watch_machine(
    state: NodeState, options: AgentOptions, gpus: int, env: Mapping[str, str], say: Callable[[str], object]
) -> None:
    """Keep the node's report up to date: kills for lack of memory, how busy it is, notices of its cloud.

    Args:
        state: of the node.
        options: of its agent.
        gpus: how many it has.
        env: of the agent.
        say: prints a line.
    """
    has_gpus = options.device == "gpu" and gpus > 0
    start_watching(state, say)
    start_sampling(state, options, has_gpus=has_gpus)
    start_asking(state, say, env, has_gpus=has_gpus)
