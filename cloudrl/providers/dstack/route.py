"""The route to a node of a dstack run through SSH: hosts, user and key.

dstack's own attach writes into `~/.dstack/ssh/config`, keeps a control socket under the run's name and reuses the
ssh of a client that was killed; two clients get in each other's way there. So only the route is taken from dstack
(core/services/ssh/attach.py: SSHAttach); each connection is an ssh of our own (`cloudrl.transport.ssh`).
"""

from pathlib import Path
from typing import Any

from cloudrl.errors import ConnectionFailed, Unauthorized
from cloudrl.providers.dstack.runs import RunState
from cloudrl.providers.dstack.server import Server
from cloudrl.transport.ssh import Route


def route(server: Server, run: RunState, rank: int = 0) -> Route:
    """The route to a rank of a run.

    Raises:
        ConnectionFailed: the rank has no machine yet.
        Unauthorized: the user's key is not the one that the run was made with.
    """
    job = next(planned for planned in run.answer.jobs if planned.job_spec.job_num == rank)
    submission = job.job_submissions[-1]
    if submission.job_provisioning_data is None or not submission.job_provisioning_data.hostname:  # "" while it boots
        raise ConnectionFailed(
            f"rank {rank} of {run.name!r} has no machine yet: {submission.status.value}",
            hint=f"cloudrl status {run.name}",
        )
    return Route(run.name, _hosts(job, submission, identity=_identity(server, run), name=run.name))


def _hosts(job: Any, submission: Any, *, identity: Path, name: str) -> dict[str, dict[str, str]]:
    """What dstack's own attach would write into its file; here the object is only asked, never opened."""
    from cloudrl.providers.dstack.internals import DSTACK_RUNNER_SSH_PORT, PortsLock, SSHAttach, SSHProxyAttach

    common: dict[str, Any] = {"run_name": name, "identity_path": identity, "ports_lock": PortsLock()}
    info, machine = job.job_connection_info, submission.job_provisioning_data
    if info is not None and info.sshproxy_hostname is not None:
        attach: Any = SSHProxyAttach(
            hostname=info.sshproxy_hostname, port=info.sshproxy_port, upstream_id=info.sshproxy_upstream_id,
            **common,
        )  # fmt: skip
    else:
        ports = getattr(submission.job_runtime_data, "ports", None) or {}
        attach = SSHAttach(
            hostname=machine.hostname, ssh_port=machine.ssh_port, user=machine.username,
            container_ssh_port=ports.get(DSTACK_RUNNER_SSH_PORT, DSTACK_RUNNER_SSH_PORT),
            container_user=_container_user(job, submission), dockerized=machine.dockerized,
            ssh_proxy=machine.ssh_proxy, **common,
        )  # fmt: skip
    hosts = {  # dstack wraps paths in a class of its own
        host: {key: str(getattr(value, "path", value)) for key, value in options.items()}
        for host, options in attach.hosts.items()
    }
    # the node last: those before it are jumped through
    return {**{host: options for host, options in hosts.items() if host != name}, name: hosts[name]}


def _container_user(job: Any, submission: Any) -> str:
    """As in api/_public/runs.py: attach."""
    runtime, user = submission.job_runtime_data, job.job_spec.user
    if runtime is not None and runtime.username is not None:
        return str(runtime.username)
    return str(user.username) if user is not None and user.username is not None else "root"


def _identity(server: Server, run: RunState) -> Path:
    """The user's private key, fetched from the server if need be, or dstack's old one, as its own `attach` has it.

    Source: core/services/ssh/key_manager.py, api/_public/runs.py.
    """
    from cloudrl.providers.dstack.internals import ConfigManager, UserSSHKeyManager

    config = ConfigManager()
    key = server.call(UserSSHKeyManager(server.api, config.dstack_ssh_dir).get_user_key)
    if key.public_key.strip() != (run.answer.run_spec.ssh_key_pub or "").strip():
        if config.dstack_key_path.exists():
            return Path(config.dstack_key_path)
        raise Unauthorized(
            f"run {run.name!r} was started with another SSH key than that of user {run.answer.user!r} here",
            hint="Use the token of the user who started it: dstack project add --name NAME --url URL --token TOKEN",
        )
    return Path(key.private_key_path)
