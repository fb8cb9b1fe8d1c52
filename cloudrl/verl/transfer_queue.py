"""verl's TransferQueue: a Ray cluster has room for one, so a second job would stop the first.

TransferQueue 0.1.11 gives its controller a fixed name and namespace (interface.py: init), so that a second job takes
the first one's, and verl's default trainer closes it at the end, whoever made it (verl 0.9.1, trainer/main_ppo.py:
TaskRunnerV1.run). The other job then waits for ever, without an error.
"""

import re

from cloudrl.verl.keys import USE_V1, has_key

CONTROLLER = "TransferQueueController"
"""Name of the actor that a cluster has one of."""
_MAIN_WORD = re.compile(
    r"(?:(?<![\w.])|(?<=\s-m)|(?<=\s-[A-Za-z]m))(?:\S*/)?verl[./]trainer[./]main_ppo(?:\.py)?(?![\w.])"
)
"""As a word of its own, or behind Python's `-m`."""
_USE_V1 = re.compile(rf"(?<![\w.])\+{{0,2}}{re.escape(USE_V1)}=['\"]?(\w+)")


def uses_transfer_queue(command: str, verl_version: str | None) -> bool:
    """Whether a command starts verl's default trainer, and that a TransferQueue.

    Args:
        command: Shell text, or the words of a command with spaces between them. A script that starts verl in turn
            is not read.
        verl_version: The release that it runs; None, which is unknown, counts as new.
    """
    if _MAIN_WORD.search(command) is None or not has_key(verl_version, USE_V1):
        return False
    settings = _USE_V1.findall(command)
    return not settings or settings[-1].lower() not in ("false", "0", "no", "off")
