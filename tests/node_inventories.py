"""What nodes say of their checkpoints, made up: answers as `cloudrl.node.checkpoint_store` gives them."""

from typing import Any

from cloudrl.protocol.report import NodeReport

KINDS = ("model", "optim", "extra_state")


def files(
    ranks: Any, world_size: int, *, kinds: tuple[str, ...] = KINDS, extra: tuple[str, ...] = (), at: float = 100.0
) -> list[dict[str, Any]]:
    names = [f"{kind}_world_size_{world_size}_rank_{rank}.pt" for rank in ranks for kind in kinds]
    return [{"path": name, "size_bytes": 10, "modified_at": at} for name in (*names, *extra)]


def step(
    number: int,
    ranks: Any = (0, 1),
    world_size: int = 2,
    *,
    role: str = "actor",
    config: bool = True,
    data: bool = True,
    at: float | None = None,
    kinds: tuple[str, ...] = KINDS,
    saves: Any = (),
) -> dict[str, Any]:
    extra = ("huggingface/config.json",) if config else ()
    when = float(number) if at is None else at
    return {
        "step": number,
        "files": [{"path": "data.pt", "size_bytes": 1, "modified_at": when}] if data else [],
        "roles": [
            {"role": role, "files": files(ranks, world_size, kinds=kinds, extra=extra, at=when), "saves": list(saves)}
        ],
    }


def run(name: str, *steps: dict[str, Any], tracker: str | None = None, at: float = 50.0) -> dict[str, Any]:
    said = None if tracker is None else {"text": tracker, "modified_at": at}
    return {"run": name, "tracker": said, "steps": list(steps)}


def node(
    rank: int, *runs: dict[str, Any], identity: str | None = None, marker: str = "", markers: tuple[str, ...] = ()
) -> tuple[NodeReport, dict[str, Any]]:
    """A node with these runs in its checkpoint folder, and nothing left behind."""
    place = {
        "root": "checkpoints", "folder": "/checkpoints", "runs": list(runs), "marker": marker, "markers": list(markers),
        "identity": f"boot-{rank}:1:2" if identity is None else identity,
    }  # fmt: skip
    return NodeReport(rank, f"10.0.0.{rank + 1}"), {"locations": [place]}
