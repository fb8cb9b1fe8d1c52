"""Two real agents whose disks hold the checkpoints of two machines; the client reaches the head over a link."""

from pathlib import Path

from cut_link import CutLink
from node.node_harness import KEY, Nodes
from spread_checkpoint import spread

from cloudrl.checkpoints.handle import Checkpoints
from cloudrl.checkpoints.sources import ClusterSource
from cloudrl.protocol.backoff import Backoff
from cloudrl.protocol.tokens import derive
from cloudrl.transport import Connection


class Lab:
    """Each of the runs is spread over the disks; of a shared one there is a single folder."""

    def __init__(self, cluster: Nodes, *runs: Path, shared: bool = False) -> None:
        self.folders = [cluster.folder / f"disk-{0 if shared else rank}" for rank in range(2)]
        for folder in self.folders:
            folder.mkdir(exist_ok=True)
        for run in runs:
            spread(run, self.folders, driver=1)
        for rank in range(2):
            cluster.start_one(rank, f"--checkpoints={self.folders[rank]}")
        self.cluster = cluster.ready()
        self.link = CutLink(cluster.agent_ports[0])
        self.said: list[str] = []

    def checkpoints(self) -> Checkpoints:
        connection = Connection(
            name="test", ray_url="http://127.0.0.1:9", agent_url=self.link.url, agent_token=derive(KEY).agent
        )
        backoff = Backoff(first_s=0.05, longest_s=0.2, give_up_s=30.0)
        return Checkpoints(ClusterSource(connection, backoff, self.said.append))
