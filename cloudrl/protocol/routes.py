"""The calls of the agent's HTTP, once for both sides: the server matches paths by them, a client makes paths of them.

A client needs to reach rank 0 alone: it passes calls that name another rank on to that node's agent.
"""

import os
import re
from typing import Dict, Mapping, NamedTuple, Optional, Union
from urllib.parse import quote, urlencode

CHECKPOINTS, RAY_TMP = "checkpoints", "ray_tmp"
"""Roots of files of checkpoints: the folder that jobs write to, and Ray's own, of which only what jobs with a relative
`trainer.default_local_dir` have left there is shown."""

_KINDS = {
    "rank": r"[0-9]{1,4}",
    "root": f"{CHECKPOINTS}|{RAY_TMP}",
    "port": r"[0-9]{1,5}",
    "job": r"[A-Za-z0-9][A-Za-z0-9._-]{0,200}",
    "address": r"[0-9a-f]{32}",
    "name": r"[^/]+",
    "file": r"[^/]+",
    "path": r".+",
}


class Route(NamedTuple):
    """One call; `{kind}` in its path is what varies.

    Attributes:
        is_transfer: whether it moves a user's files, so that the cluster is not idle meanwhile.
    """

    name: str
    method: str
    template: str
    is_transfer: bool = False

    def match(self, method: str, path: str) -> Optional[Dict[str, str]]:
        """What varies in a decoded path, None where it is another call's."""
        match = _pattern(self.template).fullmatch(path) if method == self.method else None
        return match.groupdict() if match else None

    def url(self, query: Optional[Mapping[str, object]] = None, **values: Union[str, int]) -> str:
        """The path for a request, encoded; only a `path` keeps its slashes."""
        texts = {
            kind: quote(os.fsencode(str(value)), safe="/" if kind == "path" else "") for kind, value in values.items()
        }
        return self.template.format(**texts) + (f"?{urlencode(query, safe=',')}" if query else "")


def _pattern(template: str) -> re.Pattern[str]:
    text = re.sub(r"\{(\w+)\}", lambda kind: f"(?P<{kind[1]}>{_KINDS[kind[1]]})", template)
    return re.compile(text, re.DOTALL)


_FILES, _SECRETS = "/v1/files/{address}", "/v1/jobs/{job}/secrets"
_CHECKPOINT = "/v1/nodes/{rank}/{root}/{path}"

STATUS = Route("status", "GET", "/v1/status")
"""`ClusterStatus`."""
USAGE = Route("usage", "GET", "/v1/usage")
"""{"nodes": {rank: rows}}: how busy all nodes were in the last `span`, "hour" or "day", oldest first, as
`cloudrl.protocol.usage_rows` has it; at most about 700 kB, so fewer rows where there are many nodes. Of rank 0."""
HEARTBEAT = Route("heartbeat", "POST", "/v1/heartbeat")
"""A worker's `NodeReport`, answered with `HeartbeatReply`."""
TRANSFER = Route("transfer", "POST", "/v1/transfers", is_transfer=True)
"""A client says that it sends something to Ray, which the agent does not see."""
JOB_LOG = Route("job_log", "GET", "/v1/jobs/{job}/log")
"""A job's driver log from byte `offset`, its size in `SIZE_HEADER`."""
ARCHIVE = Route("archive", "GET", "/v1/nodes/{rank}/archive")
"""{"run", "pieces", "problem"}: what a node has on its volume of the logs of a run, see `cloudrl.saves.archive`. Of the
present run the node adds what is new first; `run` names another one. With `own` only the pieces of this rank."""
ARCHIVE_PIECE = Route("archive_piece", "GET", "/v1/nodes/{rank}/archive/{path}")
"""A piece, as it is stored."""
INVENTORY = Route("inventory", "GET", "/v1/nodes/{rank}/inventory")
"""Runs, steps and files of checkpoints on a node. With `once=RANKS` a folder that a node of lower rank shares, none of
these, is not listed: {"same_as": {"rank", "marker"}} names that node, which lists it."""
CHECKPOINT_FILE = Route("checkpoint_file", "GET", _CHECKPOINT, is_transfer=True)
"""A file, with `Range: bytes=a-b`; `cast=F32,BF16`: its values in fewer bits, the range counts stored bytes;
`crc32=START`: {"size_bytes", "crc32"} of the range, calculated there, with `sync=1` after it is on the disk."""
CHECKPOINT_RANGES = Route("checkpoint_ranges", "POST", _CHECKPOINT, is_transfer=True)
"""{"ranges": [[offset, length], ...]} of a file, one after the other."""
REMOVE_CHECKPOINT = Route("remove_checkpoint", "DELETE", _CHECKPOINT)
"""Remove one step, `RUN/global_step_10`."""
DATA_FILE = Route("data_file", "GET", "/v1/data/{name}/{file}", is_transfer=True)
"""Prepared data, for the other nodes."""
ANNOUNCE_FILES = Route("announce_files", "PUT", _FILES, is_transfer=True)
"""Announce a user's file or folder, with its manifest."""
FILES_STATE = Route("files_state", "GET", _FILES)
"""{"files": bytes of each part on rank 0, "nodes": rank -> `Replica`}."""
MANIFEST = Route("manifest", "GET", _FILES + "/manifest")
"""For the other nodes, once it is complete."""
TAKE_FILE = Route("take_file", "PUT", _FILES + "/content/{path}", is_transfer=True)
"""Bytes of an announced file, from byte `offset`."""
GIVE_FILE = Route("give_file", "GET", _FILES + "/content/{path}", is_transfer=True)
"""For the other nodes."""
TAKE_SECRETS = Route("take_secrets", "PUT", _SECRETS, is_transfer=True)
"""{name: value} for a job that is going to be submitted."""
SECRETS_STATE = Route("secrets_state", "GET", _SECRETS)
"""{"nodes": rank -> `Replica`}; never the secrets."""
GIVE_SECRETS = Route("give_secrets", "GET", _SECRETS + "/script")
"""For the other nodes."""
SUBMIT_JOB = Route("submit_job", "PUT", "/v1/jobs/{job}", is_transfer=True)
"""A `DurableJob` for rank 0, answered with it as recorded. The same call once more changes nothing."""
JOBS = Route("jobs", "GET", "/v1/jobs")
"""{"jobs": [`DurableJob`, ...]}: those of this cluster, in the order of the queue; of rank 0."""
STOP_JOB = Route("stop_job", "DELETE", "/v1/jobs/{job}")
"""Have a job of those end for good, by its id or that of an attempt: {"stopped": true}."""
JOURNAL = Route("journal", "GET", "/v1/nodes/{rank}/journal")
"""{"jobs": [`DurableJob`, ...]}: what a node's volume remembers, of other clusters, too."""
RECORD_JOB = Route("record_job", "PUT", "/v1/nodes/{rank}/journal/{job}")
"""A `DurableJob` for the volume of a node; of rank 0."""
SET_ASIDE = Route("set_aside", "POST", "/v1/nodes/{rank}/aside/{path}")
"""Rename a step, `RUN/global_step_10`, so that it no longer counts as a checkpoint; of rank 0."""
COPY_STEP = Route("copy_step", "POST", "/v1/nodes/{rank}/copies/{path}")
"""A `CopyOrder` for a node, answered with `CopyState`: it copies in the background; of rank 0."""
CLEAR_COPIES = Route("clear_copies", "POST", "/v1/nodes/{rank}/cleared/{path}")
"""A `ClearOrder` for a node, answered with {"freed_bytes"}: it removes copies that it has made itself; of rank 0."""
UPLOAD_STEP = Route("upload_step", "POST", "/v1/nodes/{rank}/uploads/{path}")
"""An `UploadOrder` for a node, answered with `UploadState`: it copies to a mirror in the background; of rank 0."""
CHECK_MIRROR = Route("check_mirror", "POST", "/v1/nodes/{rank}/mirror")
"""{"mirror", "token"}, answered with `MirrorCheck`: whether a node can use a mirror."""
JOBS_IN_MIRROR = Route("jobs_in_mirror", "POST", "/v1/mirrored-jobs")
"""{"mirror"}, answered with {"jobs": [`DurableJob`, ...]}: those that a mirror remembers; of rank 0."""
MIRRORED = Route("mirrored", "GET", "/v1/mirrored")
"""{"steps": [`MirroredStep`, ...]}: what the mirrors of the cluster's jobs have; of rank 0."""
STOPS = Route("stops", "GET", "/v1/nodes/{rank}/stops")
"""{"stops": [`Stop`, ...]}: the processes of a node that wait for a debugger."""
LOOK = Route("look", "GET", "/v1/nodes/{rank}/look")
"""{"processes": [`LookedAt`, ...]}: the processes of jobs on a node with the stacks of their threads, masked. It takes
a fifth of a second of CPU time for each."""
RELAY = Route("relay", "POST", "/v1/nodes/{rank}/tcp/{port}")
"""With the headers `UPGRADE`: answered 101, then bytes both ways between the client and the debugger that listens at
this port of the node's loopback. Only ports that a stop names are reached."""

ROUTES = tuple(value for value in list(globals().values()) if isinstance(value, Route))
UPGRADE: Mapping[str, str] = {"Connection": "Upgrade", "Upgrade": "tcp"}
SIZE_HEADER = "X-Cloudrl-Size"
CAST_HEADER = "X-Cloudrl-Cast"
"""In the answer, when the values were cast."""
