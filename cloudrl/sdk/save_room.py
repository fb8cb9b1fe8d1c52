"""Whether the saves of a cluster's largest model have room where its jobs save. Pure."""

from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.progress import Notice
from cloudrl.spec.cluster import SAVE_BYTES, billions
from cloudrl.units import size_text
from cloudrl.verl.kept_saves import ROTATION
from cloudrl.verl.model_config import known_model


def save_room(facts: ClusterFacts) -> Notice | None:
    """That the disk is too small for one save, or for two, with both numbers and what to do; None where it has room.

    The optimizer's state is counted, a critic is not: the cluster does not know which jobs come. `submit` does.
    None, too, where the free bytes, or the size of every model, are unknown.
    """
    sizes = {model: size for model in facts.models if (size := parameters_of(model))}
    if facts.device != "gpu" or not facts.disk_bytes or not sizes:
        return None
    model = max(sizes, key=lambda name: sizes[name])
    nodes = 1 if facts.shared_checkpoints else max(1, facts.gpu_nodes)
    one, two = (int(count * SAVE_BYTES * sizes[model] / nodes) for count in (1, ROTATION))
    if two <= facts.disk_bytes:
        return None
    each = "" if nodes == 1 else " on each node"
    what = f"one save of {model} with its optimizer takes {size_text(one)}{each}"
    room = f"{facts.checkpoint_dir} has room for {size_text(facts.disk_bytes)}"
    rotates = f", two take {size_text(two)}, and verl removes none before it writes the second; {room}"
    text = f"{what}{rotates}" if one <= facts.disk_bytes else f"{what}, and {room}"
    return Notice(
        text,
        f"Before a job is submitted, start it with a larger disk: --volume /DISK:{facts.checkpoint_dir}\n"
        "On a cloud: --set disk=SIZE",
    )


def parameters_of(model: str) -> float | None:
    """How many, by the table of models, else by the name; None if unknown."""
    known = known_model(model)
    if known is not None:
        return float(known.counts.total)
    size = billions(model)
    return None if size is None else size * 1e9
