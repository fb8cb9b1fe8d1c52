"""Which of the keys that cloudrl fills in a release of verl has, so that an old one gets none that it lacks.

Hydra refuses a key that is not in the configuration ("Could not override ..."). Read in verl's repository, tag by
tag: trainer/config/ppo_trainer.yaml.
"""

from __future__ import annotations

import re

_SINCE = {
    "trainer.resume_mode": (0, 2),  # not in v0.1, in v0.2
    "trainer.device": (0, 4),  # not in v0.3.0.post1, in v0.4.0
}
"""Key -> the first release that has it. Those that v0.1 has already, such as trainer.nnodes, are not listed."""


def has_key(verl: str | None, key: str) -> bool:
    """Whether a release of verl has a key that cloudrl fills in; one of unknown number counts as new."""
    return release_number(verl) >= _SINCE.get(key, (0, 0))


def release_number(verl: str | None) -> tuple[int, ...]:
    """The first two numbers of a release, `(0, 9)` of 0.9.1; what says none counts as newer than all.

    Holds for any package whose releases are numbers.
    """
    return tuple(int(part) for part in re.findall(r"\d+", verl or "")[:2]) or (9999,)
