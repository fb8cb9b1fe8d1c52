"""The parts of a model that see or hear: whether all of their layers are there, each like the others.

Their parameters are not in the tables of `cloudrl.shards.parameters`. But in every tower that transformers has for the
covered families, the layers are alike, and the config says how many there are.
"""

import re
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from cloudrl.errors import CheckpointError
from cloudrl.shards.family import number
from cloudrl.shards.way_out import CONFIG_OF_THE_RUN

SEES = (
    "visual.", "model.visual.", "vision_tower.", "model.vision_tower.", "vision_model.", "multi_modal_projector.",
    "model.embed_vision.", "model.audio_tower.", "model.embed_audio.",
)  # fmt: skip
"""What names of parts that see or hear begin with, on disk."""
_LAYER = re.compile(r"(.*?\.(?:blocks|layers?))\.(\d{1,6})\.(.+)")
_COUNTS = ("depth", "num_hidden_layers")


def check_towers(config: Mapping[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Compare the layers of each tower with each other, and their number with the config.

    Raises:
        CheckpointError: A parameter is missing, or of another shape than in other layers.
    """
    towers: dict[str, dict[int, dict[str, tuple[int, ...]]]] = defaultdict(lambda: defaultdict(dict))
    for name, shape in shapes.items():
        if name.startswith(SEES) and (match := _LAYER.fullmatch(name)):
            towers[match[1]][int(match[2])][match[3]] = shape
    for tower, layers in towers.items():
        every = {name: shape for layer in layers.values() for name, shape in layer.items()}
        for at in range(len(layers)):
            for name, shape in every.items():
                if (here := layers.get(at, {}).get(name)) != shape:
                    what = f"is {list(here)}" if here is not None else "is missing"
                    raise CheckpointError(
                        f"{tower}.{at}.{name} {what}, and in another layer it is {list(shape)}", hint=CONFIG_OF_THE_RUN
                    )
    vision = config.get("vision_config")
    expected = [number(vision, key) for key in _COUNTS] if isinstance(vision, dict) else []
    wanted = next((each for each in expected if each is not None), None)
    seen = [len(layers) for tower, layers in towers.items() if "audio" not in tower]
    if wanted is not None and shapes and wanted not in (seen or [0]):
        raise CheckpointError(
            f"the part that sees has {seen[0] if seen else 0} layers, and config.json says {wanted}",
            hint=CONFIG_OF_THE_RUN,
        )
