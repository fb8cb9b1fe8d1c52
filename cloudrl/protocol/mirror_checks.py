"""What the nodes of a cluster find of a mirror, as one verdict."""

from __future__ import annotations

from typing import Mapping, Optional

from cloudrl.errors import InputError
from cloudrl.protocol.mirrors import MirrorCheck


def refusal(mirror: str, checks: Mapping[int, MirrorCheck]) -> Optional[InputError]:
    """Why the nodes cannot keep copies there; None if they can.

    Args:
        mirror: its address.
        checks: rank -> what this node has found, rank 0 first: the others look for what it has put there.
    """
    first = next(iter(checks))
    for rank, check in checks.items():
        if check.error:
            return InputError(f"--mirror {mirror}: node {rank} cannot use it: {check.error}", hint=check.hint)
        if not check.is_seen:
            return InputError(
                f"--mirror {mirror}: node {rank} has another folder there than node {first}",
                hint="Mount one network volume on every node: --set volumes=[NAME:/mnt/volume]\nOr a bucket: s3://BUCKET/PREFIX",
            )
    return None
