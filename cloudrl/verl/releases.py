"""Which container image goes with which release of verl: the table in `releases.yml`, and the one way to ask it."""

from dataclasses import dataclass
from pathlib import Path

from cloudrl.errors import SpecError
from cloudrl.spec.yaml_core import load_value


@dataclass(frozen=True)
class Release:
    """A release of verl and where it runs.

    Attributes:
        verl: the release on PyPI.
        vendor: of the GPUs, "nvidia" or "amd".
        rollout: the rollout engine in the image, by its module and by verl's name for it.
        rollout_version: of the engine there; "" where the source names a commit alone.
        image: container image with all that verl needs.
        install: shell commands that put this release of verl into the image; none where it holds it.
        source: where the pairing comes from.
        confirmed: what cloudrl has seen working with this release on such GPUs, on which card and when, and what it has
            not; "" for nothing.
    """

    verl: str
    vendor: str
    rollout: str
    image: str
    install: tuple[str, ...]
    source: str
    rollout_version: str = ""
    confirmed: str = ""


_TABLE = Path(__file__).with_suffix(".yml")
RELEASES = tuple(
    Release(**{**row, "install": tuple(row["install"])})
    for row in load_value(_TABLE.read_text(encoding="utf-8"), _TABLE.name)
)

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
    pairs = dict.fromkeys(f"{each.verl} with {each.rollout} for {each.vendor}" for each in RELEASES)
    raise SpecError(
        f"no image is known for verl {wanted}{engine} on GPUs of {vendor!r}",
        hint=f"Known: verl {', '.join(pairs)}; or name an image yourself: image=...",
    )
