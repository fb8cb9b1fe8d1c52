"""Secrets of a job: which are taken from the user's shell, and how they reach its processes.

What stands in `runtime_env.env_vars` is not a secret any more: Ray writes it to logs/runtime_env_agent.log on every
node, answers it to whoever lists jobs, and passes it to each starting worker in its argument list (measured with Ray
2.60). So where agents run, they keep the values in memory on every node, and the runtime environment names the file
only (`cloudrl.node.job_secrets`). Secrets that the cluster itself was given, dstack's `secrets` for example, are in
the nodes' environment already and need nothing here.
"""

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from cloudrl.errors import InputError, Refusals
from cloudrl.jobs.defaults import is_offline
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.tracking import loggers_of
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.secret_names import is_secret
from cloudrl.spec.hydra import split_key
from cloudrl.verl.keys import LOGGER, PY_EXECUTABLE, release_number
from cloudrl.verl.loggers import KEY_OR_MODE, SECRETS_OF

_OF_THE_HUB = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
"""huggingface_hub/constants.py and utils/_auth.py."""
_OWN_PYTHON = ("pip", "uv", "conda", "container", "image_uri", "nsight", "rocprof-sys", "_nsight")
"""Fields with which Ray chooses the Python of a worker itself, in place of `py_executable` (Ray 2.60, _private/
runtime_env: pip.py, uv.py, conda.py, image_uri.py, nsight.py)."""
_VERL_TAKES_A_PYTHON = (0, 6)
"""Before that release `ray.init` gets no runtime environment from verl's configuration, and none is in the way."""
_PY_EXECUTABLE_SINCE = (2, 43)  # https://github.com/ray-project/ray/pull/50160


def collect_secrets(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: take secrets that the job is going to need from the user's shell, and say which.

    What the job is given already is never replaced. Where Ray would write them to its logs, they stay here.
    """
    shell, variables = snapshot.shell, draft.variables
    loggers = set(loggers_of(draft))
    needed = {name: f"{LOGGER} has {logger}" for logger in sorted(loggers) for name in SECRETS_OF.get(logger, ())}
    if not is_offline(draft):
        needed = {**dict.fromkeys(_OF_THE_HUB, "a model is read from the Hub"), **needed}
    from_shell = {name: shell[name] for name in needed if shell.get(name) and name not in variables}
    refused = Refusals()
    notes, blocker = [], delivery_blocker(draft.runtime_env, draft.cluster)
    listed = ", ".join(f"{name} ({needed[name]})" for name in from_shell)
    if from_shell and blocker is None:
        notes.append(f"passed on from this shell: {listed}; --env {next(iter(from_shell))}= keeps it here")
    elif from_shell:
        notes.append(
            f"not passed on from this shell: {listed}; {blocker}; --env {next(iter(from_shell))} does it anyway"
        )
        from_shell = {}
    there = {**dict.fromkeys(draft.cluster.variables, "set"), **variables}
    for logger, (key, mode) in KEY_OR_MODE.items():
        if logger not in loggers or {**shell, **there}.get(key) or there.get(mode):
            continue
        if logger in draft.options.track and not snapshot.nodes_are_here:  # where one may be logged in
            missing = f"--track {logger} needs {key}: neither this shell nor the cluster has it"
            refused.append(InputError(missing, hint=f"export {key}=...\nOr, without an account: --env {mode}=offline"))
        else:
            notes.append(f"{LOGGER} has {logger}, and no {key} goes with the job: the nodes need one")
    return draft.noting(*notes, variables={**from_shell, **variables}).refused(*refused)


def deliver_secrets(draft: JobDraft, _snapshot: Snapshot) -> JobDraft:
    """Pass: take the secrets out of the runtime environment and say how they get to the job instead.

    verl sets `py_executable` in its own `ray.init`, to null unless told otherwise, and Ray refuses a field that both
    the job's environment and that of `ray.init` have. So verl gets them by its own key (verl 0.9.1,
    trainer/config/ppo_trainer.yaml: ray_kwargs; "inherited by the TaskRunner and every worker actor").
    """
    draft = _with_the_clusters_own(draft) if draft.may_be_durable else draft
    variables, cluster = draft.variables, draft.cluster
    secrets = {name: value for name, value in variables.items() if is_secret(name) and value}
    blocker = delivery_blocker(draft.runtime_env, cluster)
    if not secrets:
        return draft
    if blocker is not None:
        return draft.noting(f"passed on by Ray: {', '.join(secrets)}; {blocker}")
    wrapper = ("/bin/sh", f"{cluster.secrets_dir}/{draft.submission_id}")
    configured = draft.values.get(PY_EXECUTABLE, "null")
    python = (configured if configured != "null" else None) or draft.runtime_env.get("py_executable") or "python3"
    started = f"{shlex.join(wrapper)} {python}"
    remaining = {name: value for name, value in variables.items() if name not in secrets}
    rest = {key: value for key, value in draft.runtime_env.items() if key != "py_executable"}
    if release_number(cluster.verl_version) < _VERL_TAKES_A_PYTHON:
        rest["py_executable"] = started
    else:
        overrides = {key: value for key, value in draft.overrides.items() if split_key(key)[1] != PY_EXECUTABLE}
        draft = replace(draft.without(PY_EXECUTABLE), overrides={**overrides, f"++{PY_EXECUTABLE}": started})
    job = draft.job.replace(entrypoint=(*wrapper, *draft.job.entrypoint))
    return replace(draft, job=job, runtime_env=rest, variables=remaining, secrets=secrets)


def _with_the_clusters_own(draft: JobDraft) -> JobDraft:
    """The cluster's own secrets come back with it after a restart, and those that the agents keep in memory do not."""
    own = [name for name in draft.variables if is_secret(name) and name in draft.cluster.variables]
    if not own:
        return draft
    rest = {name: value for name, value in draft.variables.items() if name not in own}
    found = f"the job finds the cluster's own {', '.join(own)}, also after a restart"
    return draft.noting(found, variables=rest)


def delivery_blocker(runtime_env: Mapping[str, Any], cluster: ClusterFacts) -> str | None:
    """Why the secrets of this job would have to go through Ray; None if the agents can deliver them."""
    shown = "Ray writes it to a log on every node and shows it in its list of jobs"
    if cluster.secrets_dir is None:
        return f"{shown}, and cluster {cluster.name!r} has no agents that could pass it otherwise"
    fields = [field for field in _OWN_PYTHON if runtime_env.get(field)]
    if fields:
        return f"{shown}, and with {fields[0]!r} in the runtime environment it starts its workers in its own way"
    if release_number(cluster.ray_version) < _PY_EXECUTABLE_SINCE:
        return f"{shown}, and only Ray 2.43 and later can be told otherwise (this is {cluster.ray_version})"
    return None
