"""GPUs that a node claims to have: device files that are /dev/null, and what Slurm says of them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpus:
    """The GPUs of one node.

    Args:
        count: how many.
        vendor: "nvidia" or "amd".
        kind: Slurm's type, as in `--gres=gpu:mi300x:8`.
        flagged: whether the site's gres.conf says whose GPUs they are. Where it does not, Slurm sets the variables of
            all vendors at once.
    """

    count: int = 8
    vendor: str = "nvidia"
    kind: str = "h100"
    flagged: bool = False

    @property
    def devices(self) -> list[str]:
        """Paths of all device files, those of each GPU last."""
        if not self.count:
            return []
        if self.vendor == "amd":
            return ["/dev/kfd", *(f"/dev/dri/renderD{128 + number}" for number in range(self.count))]
        return ["/dev/nvidiactl", "/dev/nvidia-uvm", *(f"/dev/nvidia{number}" for number in range(self.count))]

    @property
    def gres(self) -> str:
        """The value of Gres= in slurm.conf."""
        return f"gpu:{self.kind}:{self.count}" if self.count else ""

    def gres_conf(self, nodes: str) -> str:
        """The line of gres.conf for some nodes."""
        if not self.count:
            return ""
        files = (
            f"/dev/dri/renderD[128-{127 + self.count}]" if self.vendor == "amd" else f"/dev/nvidia[0-{self.count - 1}]"
        )
        flags = f" Flags={self.vendor}_gpu_env" if self.flagged else ""
        return f"NodeName={nodes} Name=gpu Type={self.kind} File={files}{flags}\n"
