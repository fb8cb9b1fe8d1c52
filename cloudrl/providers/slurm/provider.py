"""Provider `slurm`: clusters are jobs of a Slurm cluster, whose commands are on this machine or on a login node."""

import re
import shlex
import time
from collections.abc import Callable, Generator
from contextlib import closing
from dataclasses import replace
from typing import final

from cloudrl.errors import CloudrlError, ClusterFailed, ConnectionFailed, InputError, Interrupted
from cloudrl.protocol.backoff import Backoff, retry
from cloudrl.providers.model import UP_TIMEOUT_S, WATCH_S, PartlyListed, Plan, Provider, Status
from cloudrl.providers.slurm import access, queue, state
from cloudrl.providers.slurm.login import CommandFailed, Login, is_here
from cloudrl.providers.slurm.plan import SlurmPlan, make_plan
from cloudrl.providers.slurm.queue import JobState, SlurmJob
from cloudrl.providers.slurm.run_folder import shell_word
from cloudrl.providers.slurm.script import COMMENT
from cloudrl.providers.slurm.state import SlurmState
from cloudrl.providers.slurm.watcher import JobWatcher, describe
from cloudrl.spec import Cluster
from cloudrl.transport import Connection, ssh
from cloudrl.units import duration_text

_POLL_S = 1.0
_BACK_S = 120.0
_GONE_S = 60.0
"""From scancel until nothing runs any more: sites give a job up to KillWait (30 s) to end."""
_UNREACHABLE_S = 600.0
"""Both ways to a job's first node have had their turn six times."""
_SBATCH = (
    'cd {folder} && script=$(mktemp ./job.XXXXXX) && {{ cat >"$script" && [ "$(wc -c <"$script")" -eq {size_bytes} ] '
    '&& sbatch --parsable "$script"; status=$?; rm "$script"; exit $status; }}'
)
"""sbatch would take what it has by then of a script whose sender is gone."""


@final
class SlurmProvider(Provider):
    """The verbs, where `sbatch` is: on this machine, or on the login node that the section names."""

    name = "slurm"
    default_cluster = "slurm-cluster"
    nodes_are_here = False
    has_gpus = True
    state_pattern = "slurm-clusters/*/"

    def is_configured(self) -> bool:
        """See `Provider`."""
        return bool(state.names()) or is_here()

    def plan(self, cluster: Cluster) -> SlurmPlan:
        """See `Provider`."""
        return make_plan(cluster)

    def up(
        self,
        plan: Plan,
        *,
        on_status: Callable[[Status], None] | None = None,
        timeout_s: float = UP_TIMEOUT_S,
        detach: bool = True,
    ) -> Connection:
        """Queue the job and return once the cluster is READY, however long it waits for nodes.

        Raises:
            InputError: a job of this name is queued, sbatch refuses it, or `detach` is False.
            CapacityError: no such nodes.
            ClusterFailed: it ended before it was ready; the message has the reason.
            Interrupted: Ctrl-C. A job that was queued stays so, and the message says it.
        """
        if not isinstance(plan, SlurmPlan):
            raise TypeError(f"a plan of another provider: {plan!r}")
        if not detach:
            raise InputError(
                "detach=False: a job of Slurm outlives this program, whatever happens to it",
                hint='End it with the block: with cluster.up(on="slurm") as ray: ...',
            )
        ssh.ensure_installed()
        try:
            priced = plan.priced() if plan.price is None else plan
            self._ensure_free(priced)
            _write_secrets(priced)
        except KeyboardInterrupt as error:
            raise Interrupted("interrupted; nothing was started") from error
        cluster: SlurmState | None = None
        try:
            cluster = _submit(priced)
            _await_ready(cluster, on_status, timeout_s)
            return self.attach(cluster.name, keep_open=True)
        except KeyboardInterrupt as error:
            raise _with_job(cluster, priced, Interrupted("interrupted")) from error
        except CloudrlError as error:
            raise _with_job(cluster, priced, error) from error

    def _ensure_free(self, plan: SlurmPlan) -> None:
        """Look where it shall be, and where a cluster of the name was started from here.

        Raises:
            InputError: a job of the name is queued or runs.
            ConnectionFailed: that cannot be told.
        """
        login, cluster = plan.login, state.read(plan.name)
        queued = [other for other in queue.jobs(login) if other.name == plan.name]
        job = next((other for other in queued if plan.may_be(other) or _is_cluster(login, other)), None)
        if job is None and cluster is not None and not cluster.is_over and cluster.login != login.host:
            login = Login(cluster.login)
            try:
                job = queue.job(login, cluster.job_id)
            except ConnectionFailed as error:
                job_there = f"job {cluster.job_id} of {login}"
                raise ConnectionFailed(
                    f"cannot tell whether cluster {plan.name!r} is up as {job_there}: {error.message}",
                    hint=f"Choose another name: --cluster {plan.name}-2\n"
                    f"Or forget this cluster: rm -r {shlex.quote(str(cluster.folder))}",
                ) from error
        if job is not None and not job.is_over:
            raise InputError(
                f"cluster {plan.name!r} is up already: job {job.id} of {login} is {job.state.value}",
                hint=f"Use it: cloudrl submit grpo --cluster {plan.name}   End it: cloudrl down {plan.name}",
            )

    def attach(self, name: str, *, keep_open: bool = False) -> Connection:
        """Connect to a running cluster, also one that a plain `sbatch` has started.

        Raises:
            InputError: no cluster has that name, or it has ended.
            ConnectionFailed: its first node cannot be reached.
        """
        cluster = _known(name)
        job = queue.job(Login(cluster.login), cluster.job_id)
        if job is None or job.is_over:
            over = "is over" if job is None else f"is over: {job.state.value}"
            raise InputError(f"cluster {name!r} {over}", hint=f"cloudrl up {name} --on {self.name}")
        if keep_open:
            access.keep_tunnel(cluster)
        return access.open_access(cluster).connection

    def detach(self, name: str) -> bool:
        """See `Provider`."""
        return access.close_tunnel(_known(name))

    def status(self, name: str) -> Status:
        """See `Provider`."""
        with closing(self.watch(name)) as statuses:
            return next(statuses)

    def watch(self, name: str) -> Generator[Status, None, None]:
        """See `Provider`."""
        with closing(JobWatcher(_known(name))) as watcher:
            while True:
                status = watcher.status()
                yield status
                if status.is_over:
                    return
                time.sleep(WATCH_S)

    def down(self, name: str) -> bool:
        """Cancel the job, and return when nothing of it runs; False when it was over. Logs and checkpoints stay.

        Raises:
            InputError: there is no cluster of that name.
            ConnectionFailed: Slurm does not answer, or the job does not end.
        """
        cluster = _known(name)
        login = Login(cluster.login)
        job = queue.job(login, cluster.job_id)
        try:
            if job is None or job.is_over:
                return False
            queue.cancel(login, cluster.job_id)  # first: its nodes are what counts
            deadline = time.monotonic() + _GONE_S
            while (job := queue.job(login, cluster.job_id)) is not None and not job.is_over:
                if time.monotonic() > deadline:
                    if job.state is JobState.COMPLETING:  # it has ended; the site's epilog runs
                        break
                    raise ConnectionFailed(
                        f"job {cluster.job_id} is cancelled and still {job.state.value} after {duration_text(_GONE_S)}",
                        hint=f"squeue --jobs={cluster.job_id}",
                    )
                time.sleep(_POLL_S)
            cluster.end()
            return True
        finally:
            access.close_tunnel(cluster)

    def list(self, name: str | None = None) -> tuple[Status, ...]:
        """Clusters of the present user that are queued or run, or the one of a name, over or not.

        Where there are several places to look, no password is asked for, and places that want one are left out.
        """
        if name is not None:
            try:
                cluster = _known(name)
            except InputError:
                return ()
            return (describe(cluster, queue.job(Login(cluster.login), cluster.job_id)),)
        clusters: list[Status] = []
        silent: dict[str, ConnectionFailed] = {}
        for login in _logins():
            try:
                clusters += [describe(_state_of(login, job), job) for job in _jobs(login) if not job.is_over]
            except ConnectionFailed as error:
                silent[f"{self.name} ({login})"] = error
        if silent:
            raise PartlyListed(clusters, silent)
        return tuple(clusters)


def _logins() -> list[Login]:
    """Where clusters may be: this machine, if it has Slurm, and login nodes of those that were not seen to end."""
    here = [""] if is_here() else []
    clusters = map(state.read, state.names())
    hosts = dict.fromkeys(
        [*here, *(cluster.login for cluster in clusters if cluster is not None and not cluster.is_over)]
    )
    return [Login(host, asks=len(hosts) == 1) for host in hosts]


def _jobs(login: Login) -> tuple[SlurmJob, ...]:
    """The clusters in a queue."""
    return tuple(job for job in queue.jobs(login) if _is_cluster(login, job))


def _is_cluster(login: Login, job: SlurmJob) -> bool:
    """Whether it has our comment, or this machine has started it with another one."""
    if job.comment.startswith(COMMENT):
        return True
    cluster = state.read(job.name)
    return cluster is not None and not cluster.is_over and (cluster.login, cluster.job_id) == (login.host, job.id)


def _known(name: str) -> SlurmState:
    """What is known of a cluster, from this machine's own file, or from the queue for one that sbatch has started.

    Raises:
        InputError: it does not exist.
    """
    cluster = state.read(name)
    here = Login()
    if (cluster is None or cluster.is_over) and is_here():
        queued = next((_state_of(here, job) for job in _jobs(here) if job.name == name), None)
        if queued is not None:
            queued.write()
        cluster = queued or cluster
    if cluster is None:
        raise InputError(f"no cluster {name!r} on Slurm", hint="See what there is: cloudrl status")
    return cluster


def _state_of(login: Login, job: SlurmJob) -> SlurmState:
    cluster = state.read(job.name)
    if cluster is not None and (cluster.login, cluster.job_id) == (login.host, job.id):
        return cluster
    run_dir = shell_word(job.comment[len(COMMENT) :])
    return SlurmState(job.name, login.host, job.id, run_dir, log=_log_of(login, job.id), checkpoint_dir="")


def _log_of(login: Login, job_id: int) -> str:
    """The file with the output of a job."""
    shown = login.run("scontrol", "show", "job", str(job_id))
    lines = (line.strip() for line in shown.splitlines())
    return next((line[len("StdOut=") :] for line in lines if line.startswith("StdOut=")), "")


def _write_secrets(plan: SlurmPlan) -> None:
    """Their values go through pipes into files that their owner alone can read."""
    folder = plan.secrets_folder
    plan.login.shell(f"umask 077 && mkdir -p {folder} && chmod 700 {plan.run_dir} {plan.run_dir}/secrets {folder}")
    for name, value in plan.secrets.items():
        plan.login.shell(f"umask 077 && cat >{folder}/{name}", value.encode())


def _submit(plan: SlurmPlan) -> SlurmState:
    """Queue the job."""
    folder, script = plan.run_dir, plan.script.encode()
    try:
        answer = plan.login.shell(_SBATCH.format(folder=folder, size_bytes=len(script)), script)
    except CommandFailed as error:
        raise plan.refused(error) from error
    number = re.search(r"^([0-9]{1,12})(;.*)?\Z", answer.strip(), re.MULTILINE)
    if number is None:
        raise ConnectionFailed(
            f"sbatch on {plan.login} has not said the number of the job",
            hint="It may have been queued: squeue --me, and end it with scancel NUMBER",
        )
    job_id = int(number[1])
    cluster = SlurmState(plan.name, plan.login.host, job_id, folder, "", plan.facts.checkpoint_dir)
    access.close_tunnel(cluster)  # to an earlier cluster of the name
    cluster.write()  # before Slurm is asked anything else: `down` has to find it
    cluster = replace(cluster, log=_log_of(plan.login, job_id))
    cluster.write()
    return cluster


def _await_ready(cluster: SlurmState, on_status: Callable[[Status], None] | None, timeout_s: float) -> None:
    deadline = time.monotonic() + timeout_s
    with closing(JobWatcher(cluster)) as watcher:
        while True:
            status = retry(watcher.status, Backoff(_POLL_S, _POLL_S, _BACK_S))
            if watcher.unreachable_s > _UNREACHABLE_S:
                minutes = duration_text(watcher.unreachable_s)
                raise ConnectionFailed(
                    f"no way to the head of {cluster.name!r} was found in {minutes}: {status.reason}",
                    hint="A job that brings its training along needs none: cloudrl slurm script --help",
                )
            if status.is_over:
                raise ClusterFailed(
                    f"cluster {cluster.name!r} ended before it was ready: {status.reason or status.phase}",
                    hint=f"Its log: {status.logs_command}",
                )
            if on_status is not None:
                on_status(status)
            if status.is_ready:
                return
            if time.monotonic() > deadline:
                raise ClusterFailed(
                    f"cluster {cluster.name!r} is not ready after {duration_text(timeout_s)}: {status.phase}"
                )
            time.sleep(_POLL_S)


def _with_job(cluster: SlurmState | None, plan: SlurmPlan, error: CloudrlError) -> CloudrlError:
    """An error after sbatch was asked, with whether the job goes on without whoever asked for it."""
    hints = [*(error.hint or "").splitlines()]
    try:
        if cluster is not None:
            job = queue.job(plan.login, cluster.job_id)
        elif (job := next(filter(plan.may_be, queue.jobs(plan.login)), None)) is not None:
            # sbatch has queued it, and its answer was lost
            made = _state_of(plan.login, job)
            replace(made, run_dir=plan.run_dir, checkpoint_dir=plan.facts.checkpoint_dir).write()
    except CloudrlError as unseen:
        squeue = shlex.join(["squeue", "--me", f"--name={plan.name}"])
        message = f"{error.message}; cannot tell whether cluster {plan.name} goes on: {unseen.message}"
        return type(error)(message, hint="\n".join([*hints, f"On {plan.login}: {squeue}"]))
    if job is None and cluster is None and isinstance(error, (Interrupted, ConnectionFailed)):
        hint = f"sbatch may still queue it; look on {plan.login}: squeue --me --name={plan.name}"
        return type(error)(f"{error.message}; no job {plan.name} is queued so far", hint="\n".join([*hints, hint]))
    if job is None or job.is_over:
        return error
    hints += [f"Look: cloudrl status {plan.name} --watch", f"End it: cloudrl down {plan.name}"]
    state_now = f"cluster {plan.name} goes on as job {job.id}, {job.state.value}"
    return type(error)(f"{error.message}; {state_now}", hint="\n".join(hints))
