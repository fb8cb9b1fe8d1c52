"""The release of verl that cloudrl is for, and the container image that goes with it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Release:
    """A release of verl and where it runs.

    Attributes:
        verl: the release on PyPI.
        image: container image with all that verl needs, without verl itself.
        install: shell commands that put verl into the image.
        rollout: the module of the rollout engine in the image.
        source: where the pairing comes from.
        confirmed: whether cloudrl has run this pairing on GPUs.
    """

    verl: str
    image: str
    install: tuple[str, ...]
    rollout: str
    source: str
    confirmed: bool


RELEASE = Release(
    verl="0.9.1",
    # verl v0.9.0, .github/workflows/vllm.yml (IMAGE) and docker/Dockerfile.stable.vllm ("Target"): CUDA
    # 13.0.2, torch 2.11.0, vLLM 0.24.0, Python 3.12, x86_64. The v0.9.0 release branch names no newer one.
    # Digest by others' reports: sha256:b867883b0dd011363e69ab2ab344922a28c5bd0409e2a324e3ee70fb27ca7543.
    image="verlai/verl:vllm024.dev2",
    # The image ends with `pip uninstall -y verl`; it has transformers 5.3.0 and TransferQueue 0.1.8. verl
    # 0.9.1 asks for transformers >= 5.5.3 (its CI, vllm.yml, adds 5.5.3 to this image with --no-deps) and,
    # in its extra verl-core, for TransferQueue >= 0.1.10. --no-deps leaves the image's torch as it is.
    install=("pip install --no-deps verl==0.9.1 transformers==5.5.3 TransferQueue==0.1.11",),
    rollout="vllm",
    source="verl v0.9.0: docker/Dockerfile.stable.vllm, .github/workflows/vllm.yml",
    confirmed=False,
)
