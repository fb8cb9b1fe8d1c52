"""Variables that cloudrl itself gives to the processes of a cluster, and that users may not set for them."""

import re

from cloudrl.errors import SpecError

_OF_NODES = (
    r"CLOUDRL_(RUN_ID|NODE_RANK|NODES_NUM|HEAD_IP|NODE_IP|GPUS_PER_NODE|PROVIDER|CLUSTER|RETRY_STATUS|FILES|ARTIFACTS"
    r"|STOPS_DIR|TRAINING_NODES|PEER_TOKEN_FILE|RETRIEVER_PEERS|RETRIEVER_SHARD|RETRIEVER_PEER_TOKEN_FILE)"
)
"""By these a node knows who it is, a job finds what is there, and `down` finds the processes of a cluster."""
_OF_THE_DEBUGGER = r"CLOUDRL_DEBUGGER\w*"
_OF_RAY = r"RAY_(AUTH_MODE|AUTH_TOKEN|AUTH_TOKEN_PATH|ADDRESS)"
"""With others than those of the cluster, a job could not talk to its own Ray."""
_OWN = re.compile(f"{_OF_NODES}|{_OF_THE_DEBUGGER}|{_OF_RAY}")


def refuse_own_variable(name: str) -> None:
    """Refuse a name that the user may not set.

    Raises:
        SpecError: It is one of cloudrl's own.
    """
    if _OWN.fullmatch(name):
        hint = "Debug a job with: cloudrl submit NAME --debug" if re.fullmatch(_OF_THE_DEBUGGER, name) else None
        raise SpecError(
            f"{name} is set by cloudrl for every process of a cluster", hint=hint or f"Leave {name} out of env"
        )
