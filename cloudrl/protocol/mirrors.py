"""Mirrors: places that outlive a cluster's machines, in which durable jobs keep copies of their steps.

Below the mirror, for the step 10 that an attempt of the run `night` has saved::

    night/ATTEMPT/global_step_10/actor/...        its files
    night/.cloudrl/ATTEMPT.global_step_10.json    its manifest, written last: without it the step does not count
    .cloudrl/jobs/ID.json                         the record of a job
    .cloudrl/files/ADDRESS/...                    what it was sent with

While a step is uploaded, its manifest is called `....coming.json`, and while it is removed `....gone.json`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Optional, Tuple
from urllib.parse import SplitResult, parse_qsl, urlsplit

from cloudrl.errors import InputError, without_login
from cloudrl.protocol.step_copies import WantedFile

MIRROR_RANK = -1
"""Stands for a mirror where a node of a copy is named."""
MIRROR_VARIABLE = "CLOUDRL_MIRROR"
"""In the environment of a cluster: a mirror whose jobs the agents take up after the loss of all disks."""
MIRROR_FORMS = "a folder that all nodes mount, /mnt/volume/runs, or a bucket: s3://BUCKET/PREFIX, gs://BUCKET/PREFIX"
S3_KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
_BUCKET = re.compile(r"[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]")
_STYLES = ("path", "virtual")
_GCS_BUCKET = re.compile(r"[a-z0-9][a-z0-9._-]{1,220}[a-z0-9]")


@dataclass(frozen=True)
class MirrorUrl:
    """A mirror's address, taken apart.

    Attributes:
        bucket: of S3 or Google; "" for a folder.
        prefix: of the keys in the bucket, or the absolute path of the folder.
        style: how the bucket is named to an endpoint, "path" or "virtual"; "" where the endpoint decides.
        scheme: `gs`, for which pyarrow is needed; "" for a folder and S3.
    """

    bucket: str
    prefix: str
    style: str = ""
    scheme: str = ""

    @property
    def is_s3(self) -> bool:
        """Whether it is S3-compatible storage."""
        return bool(self.bucket) and not self.scheme


def parse_mirror(text: str) -> MirrorUrl:
    """Take a mirror's address apart.

    Raises:
        InputError: it is neither a folder nor a bucket, or holds a secret.
    """
    hint = f"A mirror is {MIRROR_FORMS}"
    if text.startswith("/"):
        if any(part in ("", ".", "..") for part in text.strip("/").split("/")) or "\0" in text:
            raise InputError(f"--mirror {text!r} is not the path of a folder", hint=hint)
        return MirrorUrl("", "/" + text.strip("/"))
    place = urlsplit(text)
    if place.scheme == "gs":
        return _of_google(place, hint)
    if place.scheme != "s3":
        shown = without_login(text)
        raise InputError(
            f"--mirror {shown!r} is neither an absolute path nor s3://BUCKET/PREFIX or gs://BUCKET/PREFIX", hint=hint
        )
    if "@" in place.netloc:
        raise InputError(
            "--mirror holds a login; keys come from AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY", hint=hint
        )
    options = dict(parse_qsl(place.query, keep_blank_values=True))
    style, parts = options.pop("style", ""), place.path.strip("/").split("/")
    is_plain = not any(part in ("", ".", "..") for part in parts) or not place.path.strip("/")
    if not _BUCKET.fullmatch(place.netloc) or not is_plain or options or style not in ("", *_STYLES):
        raise InputError(f"--mirror {text!r} is not s3://BUCKET/PREFIX, with ?style=path or ?style=virtual", hint=hint)
    return MirrorUrl(place.netloc, place.path.strip("/"), style)


def _of_google(place: SplitResult, hint: str) -> MirrorUrl:
    parts, prefix = place.path.strip("/").split("/"), place.path.strip("/")
    is_plain = not prefix or not any(part in ("", ".", "..") for part in parts)
    if not _GCS_BUCKET.fullmatch(place.netloc) or not is_plain or place.query or place.fragment:
        raise InputError("--mirror is not gs://BUCKET/PREFIX; a login or a key is no part of it", hint=hint)
    return MirrorUrl(place.netloc, prefix, scheme="gs")


@dataclass(frozen=True)
class UploadOrder:
    """Have a node copy files of one step to a mirror.

    Attributes:
        rank: of the node that has them.
        mirror: its address.
        folder: `RUN/global_step_10`, below the folder of checkpoints.
        attempt: names the save in the mirror.
        files: to copy.
        bytes_per_s: the most that the node may send; 0 for half of its time.
        is_urgent: whether the node may be gone soon, so that it takes all of the network.
        began_at: when this upload of the step began, seconds since the epoch: what an earlier one has copied may have
            been removed since.
    """

    rank: int
    mirror: str
    folder: str
    attempt: str
    files: Tuple[WantedFile, ...]
    bytes_per_s: int = 0
    is_urgent: bool = False
    began_at: float = 0.0


@dataclass(frozen=True)
class UploadState:
    """How far an upload is.

    Attributes:
        sums: path -> CRC-32 of what the mirror has, once all files of the order are there.
        copied_bytes: of the order that is under way.
        seconds: that the order has taken.
        error: why the last order for this step has failed; "" if it has not.
        files: of the order that are in the mirror, or were when it failed.
        work_s: of `seconds`, without the rests that leave the network to training; once all files are there.
    """

    sums: Dict[str, int]
    copied_bytes: int = 0
    seconds: float = 0.0
    error: str = ""
    files: int = 0
    work_s: float = 0.0


@dataclass(frozen=True)
class MirroredFile:
    """A file of a save in a mirror.

    Attributes:
        path: below the folder of checkpoints, `RUN/global_step_10/data.pt`.
        modified_at: of the original, seconds since the epoch.
    """

    path: str
    size_bytes: int
    modified_at: float
    crc32: int


@dataclass(frozen=True)
class MirroredSave:
    """A step in a mirror: its manifest.

    Attributes:
        attempt: who has saved it: `SUBMISSION_ID.CLUSTER`.
        mirrored_at: when the last file had arrived, seconds since the epoch.
        seconds: that the copy took.
        work_s: of these, without rests: so long it takes with all of the network.
    """

    run: str
    step: int
    attempt: str
    files: Tuple[MirroredFile, ...]
    mirrored_at: float = 0.0
    seconds: float = 0.0
    work_s: float = 0.0

    @property
    def size_bytes(self) -> int:
        """Of all files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True)
class MirrorCheck:
    """What a node finds of a mirror.

    Attributes:
        error: why it cannot be used; "" if it can.
        hint: what one can do about it.
        warning: what may make it useless after a loss.
        is_seen: whether it has what rank 0 has just put there.
        may_pass: whether the error is an outage, not a mistake of the user.
    """

    error: str = ""
    hint: str = ""
    warning: str = ""
    is_seen: bool = True
    may_pass: bool = False


@dataclass(frozen=True)
class MirroredStep:
    """A step in a mirror, for a list."""

    run: str
    step: int
    mirror: str
    size_bytes: int
    seconds: float
    mirrored_at: float


@dataclass(frozen=True)
class MirrorStatus:
    """How far the mirror of a run is.

    Attributes:
        step: the newest that it has; None without one.
        mirrored_at: when all of that had arrived, seconds since the epoch.
        coming: the step that is on its way; None without one.
        size_bytes, sent_bytes: of that step, all nodes together.
        bytes_per_s: with which it is sent, likewise; 0 before that is known.
        error: what holds it up; "" for nothing.
    """

    run: str
    mirror: str
    step: Optional[int] = None
    mirrored_at: float = 0.0
    coming: Optional[int] = None
    size_bytes: int = 0
    sent_bytes: int = 0
    bytes_per_s: int = 0
    error: str = ""


def file_key(save: str, path: str, folder: str) -> str:
    """Where a mirror has a file of a step: `RUN/ATTEMPT/global_step_10/data.pt`.

    Args:
        save: the attempt.
        path: of the file, below the folder of checkpoints.
        folder: of the step, `RUN/global_step_10`.
    """
    run, _, step = folder.rpartition("/")
    below = path[len(folder) + 1 :]
    return "/".join(part for part in (run, save, step, below) if part)


def manifest_key(save: str, folder: str, state: str = "") -> str:
    """Where a mirror has the manifest of a step; `state` is "", "coming" or "gone"."""
    run, _, step = folder.rpartition("/")
    name = ".".join(part for part in (save, step, state, "json") if part)
    return "/".join(part for part in (run, ".cloudrl", name) if part)


def manifests_prefix(run: str) -> str:
    """Where the manifests of a run are."""
    return ".cloudrl/" if run == "." else f"{run}/.cloudrl/"


_MANIFEST = re.compile(r"(?P<attempt>.+)\.(?P<step>global_step_[0-9]{1,18})(?:\.(?P<state>coming|gone))?\.json")


def parse_manifest_name(name: str) -> Optional[Tuple[str, str, str]]:
    """(attempt, `global_step_10`, state) of the name of a manifest; None for another file."""
    match = _MANIFEST.fullmatch(name)
    return None if match is None else (match["attempt"], match["step"], match["state"] or "")
