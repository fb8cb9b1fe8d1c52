"""A real Slurm on nodes that are namespaces of this machine: `SlurmNodes` makes them, `README.md` says what they are.

with SlurmNodes(2) as slurm:
    job = slurm.sbatch("--nodes=2", script=path)
    slurm.nodes[1].power_off()
"""

from .cluster import SlurmNodes, SlurmUnavailable
from .gpus import Gpus

__all__ = ["Gpus", "SlurmNodes", "SlurmUnavailable"]
