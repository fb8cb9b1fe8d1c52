"""Which container image goes with which release of verl: a table, and the one way to ask it.

Sources, read in verl's repository and on PyPI: the Dockerfile and the CI workflow of a release name its image
and what CI installs into it; the wheel names what it asks for. `pip install --no-deps` leaves an image's torch
and rollout engine as they are. A digest is not pinned: verl publishes none.
"""

from __future__ import annotations

from dataclasses import dataclass

from cloudrl.errors import SpecError


@dataclass(frozen=True)
class Release:
    """A release of verl and where it runs. A version that no source names is an empty text.

    Attributes:
        verl: the release on PyPI.
        vendor: of the GPUs, "nvidia" or "amd".
        image: container image with all that verl needs.
        install: shell commands that put this release of verl into the image; none where it holds it.
        rollout: the rollout engine in the image, by its module and by verl's name for it.
        ray, python, torch, engine_version: what is in the image.
        source: where the pairing comes from.
        confirmed: whether cloudrl has run this pairing on GPUs.
    """

    verl: str
    vendor: str
    image: str
    install: tuple[str, ...]
    rollout: str
    source: str
    ray: str = ""
    python: str = ""
    torch: str = ""
    engine_version: str = ""
    confirmed: bool = False


RELEASES = (
    Release(
        verl="0.9.1",
        vendor="nvidia",
        # CUDA 13.0.2, x86_64. Others report this digest:
        # verlai/verl@sha256:b867883b0dd011363e69ab2ab344922a28c5bd0409e2a324e3ee70fb27ca7543
        image="verlai/verl:vllm024.dev2",
        # The image ends with `pip uninstall -y verl`; it has transformers 5.3.0 and TransferQueue 0.1.8. verl
        # 0.9.1 asks for transformers >= 5.5.3 (CI adds 5.5.3 to this image with --no-deps) and, in its extra
        # verl-core, for TransferQueue >= 0.1.10.
        install=("pip install --no-deps verl==0.9.1 transformers==5.5.3 TransferQueue==0.1.11",),
        rollout="vllm",
        python="3.12",
        torch="2.11.0",
        engine_version="0.24.0",
        source="verl v0.9.0: docker/Dockerfile.stable.vllm, .github/workflows/vllm.yml",
    ),
    Release(
        verl="0.9.1",
        vendor="nvidia",
        image="verlai/verl:sgl0512.dev4",
        # SGLang 0.5.12 brings transformers 5.6.0, whose flash attention is broken for Qwen2 and which verl
        # therefore excludes; with SGLang 0.5.12 and torch 2.11.0, verl 0.9.1 pairs transformers 5.9.0.
        install=("pip install --no-deps verl==0.9.1 transformers==5.9.0 TransferQueue==0.1.11",),
        rollout="sglang",
        torch="2.11.0",
        engine_version="0.5.12",
        source="verl v0.9.0: docker/Dockerfile.stable.sglang, .github/workflows/sgl.yml; "
        "verl 0.9.1 on PyPI: extra sglang",
    ),
    Release(
        verl="0.9.1",
        vendor="amd",
        # ROCm 7.0.2, gfx942 (MI300X, MI325X) and gfx950 (MI350X, MI355X); vLLM from source at 1ff9d3353. CI
        # runs PPO with FSDP in it on eight MI300 and takes the image's transformers.
        image="verlai/verl:rocm702-vllm020-te210-20260518",
        install=("pip install --no-deps verl==0.9.1 TransferQueue==0.1.11",),
        rollout="vllm",
        python="3.12",
        torch="2.9.1",
        source="verl v0.9.0: .github/workflows/e2e_ppo_trainer_megatron_vllm_rocm.yml, "
        "docker/rocm/Dockerfile.rocm702",
    ),
    Release(
        verl="0.9.1",
        vendor="amd",
        # ROCm 7.14; SGLang from source at 0801cc05ed. verl must be told
        # +actor_rollout_ref.rollout.engine_kwargs.sglang.attention_backend=triton
        image="amdagi/verl-dev:rocm7.14_torch2.12_release_0724",
        install=("pip install --no-deps verl==0.9.1 TransferQueue==0.1.11",),
        rollout="sglang",
        python="3.12",
        torch="2.12.0",
        engine_version="0.5.15",
        source="verl v0.9.0: docs/amd_tutorial/amd_quick_start.rst, docker/rocm/README.md",
    ),
    Release(
        verl="0.9.0",
        vendor="nvidia",
        image="verlai/verl:vllm024.dev2",
        install=("pip install --no-deps verl==0.9.0 transformers==5.5.3",),
        rollout="vllm",
        python="3.12",
        torch="2.11.0",
        engine_version="0.24.0",
        source="verl v0.9.0: docker/Dockerfile.stable.vllm, .github/workflows/vllm.yml",
    ),
    Release(
        verl="0.9.0",
        vendor="nvidia",
        image="verlai/verl:sgl0512.dev4",
        install=("pip install --no-deps verl==0.9.0 transformers==5.3.0",),  # as CI does
        rollout="sglang",
        torch="2.11.0",
        engine_version="0.5.12",
        source="verl v0.9.0: docker/Dockerfile.stable.sglang, .github/workflows/sgl.yml",
    ),
    Release(
        verl="0.8.0",
        vendor="nvidia",
        image="verlai/verl:vllm020.dev1",
        install=("pip install --no-deps verl==0.8.0",),
        rollout="vllm",
        python="3.12",
        torch="2.11.0",
        engine_version="0.20.2",
        source="verl v0.8.0: docker/Dockerfile.stable.vllm, .github/workflows/vllm.yml",
    ),
    Release(
        verl="0.8.0",
        vendor="nvidia",
        image="verlai/verl:sgl0512.dev1",
        install=("pip install --no-deps verl==0.8.0",),
        rollout="sglang",
        torch="2.11.0",
        engine_version="0.5.12",
        source="verl v0.8.0: docker/Dockerfile.stable.sglang, .github/workflows/sgl.yml",
    ),
    Release(
        verl="0.7.1",
        vendor="amd",
        image="rocm/verl:verl-0.7.1.amd0_rocm7.0.2_ubuntu22.04_py3.12_vllm0.20.2",
        install=(),  # AMD's image holds its verl
        rollout="vllm",
        python="3.12",
        torch="2.9.1",
        engine_version="0.20.2",
        source="AMD: rocm.docs.amd.com/projects/verl/en/docs-26.06/install/verl-install.html",
    ),
)
"""The newest release first, and for each the rollout engine that is taken when nobody says.

Not here: ROCm 10.0 with verl 0.9.0, vLLM 0.27 and SGLang 0.5.19, for which AMD publishes a Dockerfile and no
image (docs-26.09); verl 0.7 on CUDA, whose CI installs unpinned packages.
"""

RELEASE = RELEASES[0]
"""The one that cloudrl and its recipes are for."""


def release(verl: str | None = None, *, vendor: str = "nvidia", rollout: str | None = None) -> Release:
    """The row of the table for a release of verl, a vendor of GPUs and a rollout engine.

    Args:
        verl: as on PyPI; None means the release that cloudrl is for.
        vendor: of the GPUs.
        rollout: "vllm" or "sglang"; None means the one that verl is mostly used with.

    Raises:
        SpecError: no image is known for that combination; the hint names what there is.
    """
    wanted = verl or RELEASE.verl
    for each in RELEASES:
        if (each.verl, each.vendor) == (wanted, vendor) and rollout in (None, each.rollout):
            return each
    engine = "" if rollout is None else f" with rollout engine {rollout!r}"
    known = dict.fromkeys(f"{each.verl} with {each.rollout} for {each.vendor}" for each in RELEASES)
    raise SpecError(
        f"no image is known for verl {wanted}{engine} on GPUs of {vendor!r}",
        hint=f"Known: verl {', '.join(known)}; or name an image yourself: image=...",
    )
