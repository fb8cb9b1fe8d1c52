"""A cluster as a dstack task. Facts about dstack are from 0.22.5, paths relative to `dstack/_internal`."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Any

from cloudrl.render.agent import AGENT_FILE
from cloudrl.render.yaml_text import Section, document
from cloudrl.verl import RELEASE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from cloudrl.spec import Cluster

AGENT_PATH = f"/opt/cloudrl/{AGENT_FILE}"
RAY_PORT = 8265
AGENT_PORT = 8266

_HEADER = """\
Ray cluster for verl, rendered by cloudrl. To start it, with {agent} beside this file:

  dstack apply -f {name}.dstack.yml

READY in its output means that Ray has all nodes, data and models. As long as it is attached, `cloudrl submit`
finds Ray at localhost:{ray}."""


def to_dstack(cluster: Cluster) -> str:
    """Render the YAML of a dstack task that runs `cluster`.

    A raw `dstack apply` of it needs nothing but the node agent beside the file, and no variable in the user's
    environment: secrets are given when a job is submitted.

    Returns:
        The text of a `.dstack.yml` file, ending in a line break.
    """
    header = _HEADER.format(agent=AGENT_FILE, name=cluster.name, ray=RAY_PORT)
    return document(header, [*_what(cluster), *_how(cluster), *_where(cluster)])


def _what(cluster: Cluster) -> list[Section]:
    return [
        Section({"type": "task", "name": cluster.name}),
        Section({"nodes": cluster.nodes}),
        Section(_image(cluster), comment=_image_comment(cluster)),
        Section({"env": {name: _env_value(value) for name, value in cluster.env.items()}}),
    ]


def _image(cluster: Cluster) -> dict[str, Any]:
    if cluster.python is not None:
        return {"python": cluster.python, "user": cluster.user}
    return {"image": cluster.image or RELEASE.image, "user": cluster.user}


def _image_comment(cluster: Cluster) -> str:
    if not _is_release_image(cluster):
        return ""
    state = "" if RELEASE.confirmed else ". Unconfirmed: cloudrl has not run it on GPUs yet"
    return f"The image for verl {RELEASE.verl}{state}.\nSource: {RELEASE.source}"


def _is_release_image(cluster: Cluster) -> bool:
    return cluster.image is None and cluster.python is None


def _how(cluster: Cluster) -> list[Section]:
    return [
        Section(
            # a relative path is taken from the folder of the YAML file
            {"files": [f"{AGENT_FILE}:{AGENT_PATH}"]},
            comment="The node agent: it sets up each node, joins them, fetches data and models, and watches.",
        ),
        Section(
            # server/services/jobs/configurators/base.py: dstack runs `sh -i -c "..."`; a stop interrupts that
            # process only and kills it after 10 s.
            {"commands": [_agent_command(cluster)]},
            comment="exec: a stop must reach the agent, not the shell around it.",
        ),
        Section({"ports": [RAY_PORT, AGENT_PORT]}, comment="Ray's dashboard and jobs; the agent"),
    ]


def _where(cluster: Cluster) -> list[Section]:
    resources = {name: getattr(cluster, name) for name in ("gpu", "cpu", "memory", "disk", "shm_size")}
    return [
        Section(
            {"resources": {name: _plain(value) for name, value in resources.items() if value is not None}}
        ),
        Section({"volumes": list(cluster.volumes)}, comment=_volumes_comment(cluster)),
        Section(
            # server/background/pipeline_tasks/runs/active.py: the duration counts from the last time that the
            # run had nodes, for `no-capacity` too; without it a run that finds no replacement is over.
            {"retry": {"on_events": ["no-capacity", "interruption", "error"], "duration": "1d"}},
            comment="A lost node restarts the run on all nodes; wait up to a day for a replacement.",
        ),
        Section(
            {"startup_order": "any"},
            comment="All nodes set up and download at once; workers wait for the head by themselves.",
        ),
        Section(
            {"stop_criteria": "master-done"},
            comment="When the head ends, no other node may stay behind and cost money.",
        ),
    ]


def _volumes_comment(cluster: Cluster) -> str:
    on_host = any(mount.holds(cluster.checkpoints) for mount in cluster.mounts)
    return "Checkpoints lie on the instances and survive a restart of the run there." if on_host else ""


def _agent_command(cluster: Cluster) -> str:
    """`exec python3 ... run`, one option a line. The last command, for the reason in its comment."""
    setup = (*(RELEASE.install if _is_release_image(cluster) else ()), *cluster.setup)
    options: list[tuple[str, Sequence[str]]] = [
        ("--device", [cluster.device]),
        # A range is left to dstack, which tells each node its number in DSTACK_GPUS_PER_NODE.
        ("--gpus-per-node", [] if cluster.gpus_per_node is None else [str(cluster.gpus_per_node)]),
        ("--setup", setup),
        ("--import-check", [_import_check(cluster)] if _import_check(cluster) else []),
        ("--data", cluster.data),
        ("--model", cluster.models),
        ("--checkpoints", [cluster.checkpoints]),
    ]
    words = [_option(name, value) for name, values in options for value in values]
    return " \\\n  ".join([f"exec python3 {AGENT_PATH} run", *words])


def _import_check(cluster: Cluster) -> str:
    """What training imports into one process; of another image we do not know the rollout engine."""
    if cluster.device == "cpu":
        return ""
    return f"numpy,torch,{RELEASE.rollout}" if _is_release_image(cluster) else "numpy,torch"


def _option(name: str, value: str) -> str:
    # argparse takes a value with a leading dash only after `=`
    return f"{name}={_word(value)}" if value.startswith("-") else f"{name} {_word(value)}"


def _word(value: str) -> str:
    """Quote for sh, so that the word is `value` and dstack sees no `${{ ... }}` to fill in."""
    if "'" in value and not set('"$`!\\') & set(value):
        return f'"{value}"'  # easier to read than what shlex makes of a single quote
    # utils/nodes_interpolator.py looks for it in commands. Closing and opening the quotes adds no character.
    return shlex.quote(value).replace("${{", "$''{{")


def _env_value(value: str) -> str:
    """Escape for dstack, so that the variable is `value`."""
    # utils/interpolator.py: `$$` is a dollar and `${{ ... }}` is filled in; one dollar may hide the next.
    return value.replace("$", "$$")


def _plain(value: str) -> str | int:
    return int(value) if value.isdigit() else value
