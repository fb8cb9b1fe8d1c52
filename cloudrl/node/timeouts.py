"""How long each part of a start may take before it counts as hung: a node that waits for ever is paid for.

All of it follows from the times in `AgentOptions`, so that who gives one part more time need not think of the others.
"""

from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.phases import Phase

INSPECTION_S = 120.0
"""For inspecting a machine: `nvidia-smi` is given 60 s (`cloudrl.node.host_info`), and all else is done in moments."""
RAY_HEAD_S = 180.0
"""For Ray's head to count nodes that have joined, and to take jobs: that comes within seconds, or not at all."""


class PhaseTimeouts:
    """Seconds that a rank may take, as they follow from the times that were asked for.

    Attributes:
        head_ready_s: rank 0, from its first answer until it says its versions: its set-up and its preflight.
        gcs_s: Ray's control store on rank 0, until another node reaches it.
        ray_head_s: Ray's head, for what comes once all nodes have joined.
        fetch_s: all data sets, models and artifacts of one node.
        barrier_s: the slowest rank, until it is at the barrier.
        phases: each phase before "ready", as the other nodes count. Whoever is in it has a deadline of its own that
            comes first and says more; this one is for a node whose agent beats and does nothing else.
    """

    def __init__(self, options: AgentOptions) -> None:
        self._options = options
        setup_s, ray_s = options.setup_timeout_s, options.ray_timeout_s
        self.head_ready_s = setup_s + INSPECTION_S
        self.gcs_s = ray_s + options.lost_after_s  # rank 0 has less, and can say more when it does not come up
        self.ray_head_s = min(RAY_HEAD_S, ray_s)
        # they come side by side; the other nodes copy the data once rank 0 has it
        items = max(len(options.data), len(options.models), len(options.artifacts)) + bool(options.data)
        self.fetch_s = ray_s + items * options.fetch_timeout_s
        service_s = options.fetch_timeout_s if options.services else 0.0  # it may load what was fetched
        self.phases = {
            Phase.START: INSPECTION_S,
            Phase.SETUP: setup_s,
            Phase.PREFLIGHT: INSPECTION_S + self.head_ready_s,  # a worker is in it until it has met rank 0
            Phase.RAY: self.gcs_s + ray_s,  # first Ray of rank 0, then its own
            Phase.FETCH: self.fetch_s + ray_s + service_s,
        }
        self.barrier_s = options.join_timeout_s + sum(self.phases.values())
        self.phases[Phase.BARRIER] = self.barrier_s + 2 * RAY_HEAD_S

    def hang(self, phase: Phase, phase_s: float, detail: str = "") -> str:
        """What is wrong with a rank that is in a phase for so many seconds; "" while it may be.

        Raises:
            KeyError: the phase has no deadline: a rank that hangs in it would be paid for without end.
        """
        if phase is Phase.READY or phase.is_terminal or phase_s <= self.phases[phase] + self._options.lost_after_s:
            return ""
        where = f"{phase} ({detail})" if detail else phase
        return f"hangs in phase {where}: {phase_s:.0f} s, and the limit is {self.phases[phase]:g} s"
