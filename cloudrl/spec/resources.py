"""What one node must have."""

from __future__ import annotations

from typing import Annotated, TypeVar

from pydantic import PlainValidator

from cloudrl.spec.base import Spec
from cloudrl.spec.gpu import Cpu, Gpu
from cloudrl.spec.sizes import Size, SizeRange

T = TypeVar("T", Gpu, Cpu, Size, SizeRange)


def _parsed(kind: type[T]) -> PlainValidator:
    return PlainValidator(
        lambda value: value if value is None or isinstance(value, kind) else kind.parse(value)
    )


class Resources(Spec):
    """dstack's `resources`, parsed. A field that is None leaves the choice to dstack.

    Each field takes dstack's own spelling too: `Resources(gpu="80GB:8", shm_size="128GB")`.
    """

    gpu: Annotated[Gpu | None, _parsed(Gpu)] = None
    cpu: Annotated[Cpu | None, _parsed(Cpu)] = None
    memory: Annotated[SizeRange | None, _parsed(SizeRange)] = None
    disk: Annotated[SizeRange | None, _parsed(SizeRange)] = None
    shm_size: Annotated[Size | None, _parsed(Size)] = None
