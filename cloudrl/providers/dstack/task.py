"""A cluster as a dstack task. Facts about dstack are from 0.22.5, paths relative to `dstack/_internal`."""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cloudrl.errors import SpecError
from cloudrl.protocol.options import BudgetLimits
from cloudrl.protocol.outcome import FAILED
from cloudrl.providers.dstack.judge import check_with_dstack, refuse_rendered
from cloudrl.providers.dstack.yaml_text import Section, document, pick, plain
from cloudrl.render.agent import AGENT_FILE, CPU_AGENT_FILE
from cloudrl.render.agent_options import agent_options, image_release, refuse_secrets
from cloudrl.render.hub_cache import hub_cache
from cloudrl.render.search import file_names
from cloudrl.spec import Cluster
from cloudrl.spec.cluster import memory_for
from cloudrl.spec.gpu import Gpu
from cloudrl.spec.names import secret_in
from cloudrl.spec.ports import RAY_PORT
from cloudrl.spec.sizes import seconds_of
from cloudrl.spec.volume import NetworkMount, Volume
from cloudrl.verl.releases import Release

AGENT_FOLDER = "/opt/cloudrl"
AGENT_PATH = f"{AGENT_FOLDER}/{AGENT_FILE}"

_RENDERED = (
    "type", "name", "nodes", "groups", "image", "user", "working_dir", "env", "files", "commands", "entrypoint",
    "ports", "resources", "volumes",
)  # fmt: skip
"""Keys of a task that the cluster's own fields become, or that would take their place."""
_DEFAULTS: dict[str, Any] = {
    # server/background/pipeline_tasks/runs/active.py: the duration counts from the last time that a rank had a
    # machine; the machines of the other ranks are paid for meanwhile. Without it a lost node ends the run.
    "retry": {"on_events": ["no-capacity", "interruption", "error"], "duration": "1h"},
    "startup_order": "any",
    "stop_criteria": "master-done",
}
"""What makes our tasks right, unless the section `dstack` says otherwise."""

_ORDERS = {
    "startup_order": "All nodes set up and download at once; workers wait for the head by themselves.",
    "stop_criteria": "When the head ends, no other node may stay behind and cost money.",
}

# Where the section's keys stand in the file; all others come last.
_OF_THE_IMAGE = ("python", "nvcc", "registry_auth")
_OF_THE_CONTAINER = ("privileged", "shell")
_OF_MACHINES = (
    "fleets", "instances", "backends", "regions", "availability_zones", "instance_types", "reservation",
    "spot_policy", "max_price", "creation_policy", "idle_duration",
)  # fmt: skip
_OF_TIME = ("max_duration", "stop_duration", "utilization_policy", "schedule", "priority")

# Exit status 0: the image has none at the next start either, and dstack starts a run again that has failed.
_NEEDS_PYTHON = f'command -v python3 >/dev/null || {{ echo "{FAILED}no python3 in this image"; exit 0; }}'

_HEADER = """\
Ray cluster for verl, rendered by cloudrl. To start it, with {agent} beside this file:

  dstack apply -f {name}.dstack.yml

READY in its output means that Ray has all nodes, data and models. `cloudrl submit` then finds the run through your
dstack server, attached or not. While it is attached, Ray's dashboard is at {ray}."""


def release_of(cluster: Cluster) -> Release | None:
    """The release of verl whose image a task has; None where the user names the image, or a Python in its place.

    Raises:
        SpecError: no image is known for what the cluster asks for.
    """
    return None if cluster.dstack.get("python") is not None else image_release(cluster)


def to_dstack(cluster: Cluster) -> str:
    """Render the YAML of a dstack task that runs `cluster`: see `task_text`.

    Raises:
        SpecError: no image is known for its release of verl, vendor of GPUs and rollout engine, or as `task_text`.
    """
    return task_text(cluster, release_of(cluster))


def task_text(cluster: Cluster, release: Release | None) -> str:
    """Render the YAML of a dstack task that runs `cluster` in the image of a release of verl, or in one of its own.

    A raw `dstack apply` of it needs nothing but the node agent beside the file, and no variable in the user's
    environment: secrets are dstack's, or given when a job is submitted.

    Returns:
        The text of a `.dstack.yml` file, ending in a line break.

    Raises:
        SpecError: a secret would stand in the file, or dstack refuses what stands in the section `dstack`.
    """
    _refuse_secrets(cluster)
    refuse_rendered(cluster.dstack, _RENDERED)
    local = cluster.forwarded[0].local
    ray = f"localhost:{local}" if local else f"the local port that dstack prints for {RAY_PORT}"
    files = (CPU_AGENT_FILE if cluster.needs_cpu_parts else AGENT_FILE, *file_names(cluster))
    header = _HEADER.format(agent=" and ".join(files), name=cluster.name, ray=ray)
    sections = [*_container(cluster, release, files), *_resources(cluster, release), *_lifecycle(cluster.dstack)]
    text = document(header, sections)
    if cluster.dstack:  # without it nothing of dstack is imported
        check_with_dstack(text, cluster.dstack)
    return text


def _refuse_secrets(cluster: Cluster) -> None:
    refuse_secrets(cluster.env, "secrets: [{0}] takes it from dstack (dstack secret set {0} ...)")
    auth = cluster.dstack.get("registry_auth")
    if isinstance(auth, dict) and "password" in auth and secret_in(auth["password"]) is None:
        raise SpecError(  # it does not stand in the message either
            "dstack.registry_auth.password: the value of a secret would stand in the file",
            hint="dstack secret set REGISTRY_PASSWORD ..., and password: '${{ secrets.REGISTRY_PASSWORD }}'",
        )


def _container(cluster: Cluster, release: Release | None, files: tuple[str, ...]) -> list[Section]:
    env = {name: _env_value(value) for name, value in {**hub_cache(cluster), **cluster.env}.items()}
    secrets = {name: f"${{{{ secrets.{name} }}}}" for name in cluster.secrets}
    container = {
        "image": release.image if release else cluster.image,
        **pick(cluster.dstack, _OF_THE_IMAGE),
        "user": cluster.user or ("root" if release else None),  # else the server asks a registry, at each restart
        **pick(cluster.dstack, _OF_THE_CONTAINER),
        "working_dir": cluster.working_dir,
    }
    set_once = f"Secrets are dstack's own: `dstack secret set {next(iter(secrets), '')} ...`, once for the project."
    return [
        Section({"type": "task", "name": cluster.name}),
        Section({"nodes": cluster.nodes}),
        Section(container, comment=_image_comment(release)),
        Section({"env": {**env, **secrets} or None}, comment=set_once if secrets else ""),
        Section(
            # a relative path is taken from the folder of the YAML file
            {"files": [f"{file}:{AGENT_FOLDER}/{AGENT_FILE if file == CPU_AGENT_FILE else file}" for file in files]},
            comment="The node agent: it sets up each node, joins them, fetches data and models, and watches."
            + ("\nBeside it, what its search server runs and reads." if len(files) > 1 else ""),
        ),
        Section(
            # server/services/jobs/configurators/base.py: dstack runs `sh -i -c "..."`; a stop interrupts that
            # process only and kills it after 10 s.
            {"commands": [_NEEDS_PYTHON, _agent_command(cluster, release)]},
            comment="exec: a stop must reach the agent, not the shell around it.",
        ),
        Section(
            {"ports": [plain(str(port)) for port in cluster.forwarded]},
            comment="Ray's dashboard and jobs; the agent" + ("; yours" if len(cluster.forwarded) > 2 else ""),
        ),
    ]


def _image_comment(release: Release | None) -> str:
    if release is None:
        return ""
    seen = ". Unconfirmed: cloudrl has not run it on GPUs yet"
    if release.confirmed:
        seen = f".\nSeen on GPUs: {release.confirmed}"
    return f"The image for verl {release.verl}{seen}.\nSource: {release.source}"


def _resources(cluster: Cluster, release: Release | None) -> list[Section]:
    wanted = {
        "gpu": _gpu(cluster, release),
        "cpu": _cpu(cluster, release),
        "memory": cluster.memory or memory_for(cluster),
        "disk": cluster.disk,  # one's own hosts have the disks that they have; fleets for clouds ask for more
        "shm_size": cluster.shared_memory,
    }
    resources = {name: plain(value) for name, value in wanted.items() if value is not None}
    volumes = [_volume(mount) for mount in cluster.mounts]
    return [
        Section({"resources": resources or None}),
        Section(pick(cluster.dstack, _OF_MACHINES)),
        Section({"volumes": volumes or None}, comment=_volumes_comment(cluster)),
    ]


def _gpu(cluster: Cluster, release: Release | None) -> str | None:
    """With an image given and neither vendor nor name, dstack would take any vendor's GPUs.

    Source: server/services/resources.py, set_default_gpu_spec_vendor. The image runs on one vendor's only.
    """
    if cluster.gpu is None or release is None or cluster.device == "cpu":
        return cluster.gpu
    gpu = Gpu.parse(cluster.gpu)
    return cluster.gpu if gpu.vendor or gpu.name else f"{release.vendor}:{cluster.gpu}"


def _cpu(cluster: Cluster, release: Release | None) -> str | None:
    """With an image of unknown architecture the server would ask its registry, at each restart too.

    Source: server/services/jobs/configurators/base.py, _requirements. The images that we know are for x86.
    """
    if release is None or (cluster.cpu is not None and not cluster.cpu[0].isdigit()):
        return cluster.cpu
    return f"x86:{cluster.cpu or '2..'}"


def _volume(mount: Volume | NetworkMount) -> str | dict[str, Any]:
    """The short form where dstack has one."""
    if isinstance(mount, Volume) and mount.optional:
        return {"instance_path": mount.instance_path, "path": mount.path, "optional": True}
    if isinstance(mount, NetworkMount) and len(mount.name) > 1:
        return {"name": list(mount.name), "path": mount.path}
    return str(mount)


def _volumes_comment(cluster: Cluster) -> str:
    holder = next((mount for mount in cluster.mounts if mount.holds(cluster.checkpoints)), None)
    if isinstance(holder, NetworkMount):
        return "Checkpoints are on network volumes and outlive the instances."
    return "Checkpoints are on the instances and survive a restart of the run there." if holder else ""


def _lifecycle(section: Mapping[str, Any]) -> list[Section]:
    in_order = (*_OF_THE_IMAGE, *_OF_THE_CONTAINER, *_OF_MACHINES, *_OF_TIME, *_DEFAULTS)
    policy = {**_DEFAULTS, **section}
    return [
        Section({"retry": policy["retry"]}, comment=_retry_comment(policy["retry"])),
        Section(pick(section, _OF_TIME)),
        *(
            Section({name: policy[name]}, comment=comment if policy[name] == _DEFAULTS[name] else "")
            for name, comment in _ORDERS.items()
        ),
        Section(pick(section, (name for name in section if name not in in_order))),
    ]


def _retry_comment(retry: Mapping[str, Any] | bool) -> str:
    if retry is False:
        return "A lost node ends the run."
    events, duration = (retry.get(key) if isinstance(retry, dict) else None for key in ("on_events", "duration"))
    wait = "" if duration is None else f"; wait up to {'an hour' if duration == '1h' else duration} for a replacement"
    if events and "error" not in events:  # a lost on-demand machine is one (core/models/runs.py: to_retry_event)
        spot = f"A lost spot machine restarts the run on all nodes{wait}.\nAny error ends it."
        return spot if "interruption" in events else "A lost node ends the run."
    return f"A lost node restarts the run on all nodes{wait}."


def _agent_command(cluster: Cluster, release: Release | None) -> str:
    """`exec python3 ... run`, one option a line. The last command, for the reason in its comment."""
    options = agent_options(cluster, release)
    options = replace(options, limits=with_duration(options.limits, cluster.dstack))
    words = [_option(*word.split("=", 1)) for word in options.to_argv()]
    return " \\\n  ".join([f"exec python3 {AGENT_PATH} run", *words])


def with_duration(limits: BudgetLimits, section: Mapping[str, Any]) -> BudgetLimits:
    """With how long dstack lets the task run, and whether it starts it again after an error.

    Args:
        limits: from the portable fields.
        section: `dstack` of the cluster.
    """
    given = section.get("max_duration")
    if given in (None, False, True, "off", -1):  # off by default (core/models/profiles.py)
        return limits
    retry = {**_DEFAULTS, **section}["retry"]
    events = retry.get("on_events") if isinstance(retry, Mapping) else None
    is_started_again = retry is True or (isinstance(retry, Mapping) and (not events or "error" in events))
    try:
        return replace(limits, max_duration_s=float(seconds_of(given)), is_started_again=is_started_again)
    except SpecError:  # dstack says what is wrong with it
        return limits


def _option(name: str, value: str) -> str:
    # argparse takes a value with a leading dash only after `=`
    return f"{name}={_quoted(value)}" if value.startswith("-") else f"{name} {_quoted(value)}"


def _quoted(value: str) -> str:
    """Quote for sh, so that the word is `value` and dstack sees no `${{ ... }}` to fill in."""
    if "'" in value and not set('"$`!\\') & set(value):
        return f'"{value}"'  # easier to read than what shlex makes of a single quote
    # utils/nodes_interpolator.py looks for it in commands. Closing and opening the quotes adds no character.
    return shlex.quote(value).replace("${{", "$''{{")


def _env_value(value: str) -> str:
    """Escape for dstack, so that the variable is `value`."""
    # utils/interpolator.py: `$$` is a dollar and `${{ ... }}` is filled in; one dollar may hide the next.
    return value.replace("$", "$$")
