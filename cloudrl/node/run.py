"""One node's agent, from its first line to its last."""

from __future__ import annotations

import dataclasses
import errno
import functools
import time
from typing import Callable, List, Mapping, Optional, Sequence

from cloudrl.child_process import adopt_orphans, end_descendants
from cloudrl.data.request import parse_request
from cloudrl.errors import CloudrlError, InputError
from cloudrl.node import guard
from cloudrl.node.agent import Agent
from cloudrl.node.archiver import LAST_S, Archiver
from cloudrl.node.background import within
from cloudrl.node.failure import NodeFailed, error_code, unforeseen
from cloudrl.node.guard import Guard
from cloudrl.node.head import Head
from cloudrl.node.identity import Identity, read_identity
from cloudrl.node.log import Log
from cloudrl.node.masking import node_secrets
from cloudrl.node.server import AgentServer
from cloudrl.node.shutdown import Shutdown
from cloudrl.node.tokens import node_key
from cloudrl.node.worker import Worker
from cloudrl.private_files import write_file
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.outcome import FAILED, FAILED_STATUS, RETRY_STATUS, STARTED, Outcome
from cloudrl.protocol.outcome import FILE as OUTCOME_FILE
from cloudrl.protocol.phases import Phase
from cloudrl.protocol.tokens import Tokens, derive


def run(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Be this node's agent until it ends.

    Returns:
        0 after a final failure (a retry would cost money and change nothing), wrong arguments included, 1 after one
        that a retry may cure, 128 + the signal's number when ended by a signal. Where RETRY_STATUS is set, whoever has
        started it reads the status: that one after the loss of a cluster that was READY, `FAILED_STATUS` after all
        other failures, 0 after the end on purpose of a cluster without a job. With a job, its exit code.
    """
    try:
        options = AgentOptions.from_argv(argv).resolved
        for request in options.data:
            parse_request(request)
        identity = read_identity(env)
        log = _open_log(options, identity)
        tokens = _tokens(options, identity)
        adopt_orphans()
        agent = (Head if identity.is_head else Worker)(options, identity, tokens, env, log)
    except CloudrlError as error:
        return _refuse(error, env)
    agent.shutdown.listen(options.lease_fd)
    log.line(f"{STARTED}{identity.name}, rank {identity.rank} of {identity.nodes}, {identity.ip}")
    return _serve_and_run(agent)


def _refuse(error: CloudrlError, env: Mapping[str, str]) -> int:
    """Say what is wrong before there is an agent. It is final: each retry of a rented cluster would meet it again."""
    print(f"{FAILED}{error}", flush=True)
    print(Outcome(Phase.FAILED, error.message, final=True, at=time.time()).to_line(), flush=True)
    return FAILED_STATUS if env.get(RETRY_STATUS) else 0


def _open_log(options: AgentOptions, identity: Identity) -> Log:
    try:
        return Log(options.run_dir / "agent.log", identity.rank)
    except OSError as error:
        raise InputError(f"the folder {options.run_dir} cannot be written: {error.strerror}") from error


def _tokens(options: AgentOptions, identity: Identity) -> Tokens:
    try:
        return derive(node_key(identity.nodes, options.run_dir, options.key_file))
    except OSError as error:
        raise InputError(f"the key {error.filename} cannot be read: {error.strerror}") from error


def _serve_and_run(agent: Agent) -> int:
    server: Optional[AgentServer] = None
    watch: Optional[Guard] = None
    archiver = _archiver(agent)
    try:
        watch = _guard(agent)
        server = _serve(agent, archiver)
        archiver.start()
        agent.run_phases()
    except Shutdown as ended:
        agent.log.line(str(ended))
        _write_outcome(agent, Outcome(Phase.ENDED, str(ended), final=False, at=time.time()))
        is_retry = str(ended.exit_code) == agent.env.get(RETRY_STATUS)  # a training's own: it would fail again
        return 1 if is_retry else ended.exit_code
    except Exception as error:  # noqa: BLE001  unjudged, it would be retried for ever at the user's cost
        if isinstance(error, NodeFailed):
            failure = error.failure
        else:
            failure = unforeseen(FailureKind.AGENT, agent.identity.rank, error)
            failure = dataclasses.replace(failure, reason=f"the agent itself failed: {failure.reason}")
        return _conclude(agent, agent.agree_on_outcome(agent.state.fail(failure)))
    finally:
        _clean_up(agent, archiver, server, watch)
    return 0


def _guard(agent: Agent) -> Guard:
    options = agent.options
    try:
        return Guard(
            agent.env[guard.VARIABLE], ray_temp_dir=options.ray_temp_dir, secrets=agent.replication.secrets.folder,
            env=agent.env, log=options.run_dir / "guard.log",
        )  # fmt: skip
    except OSError as error:
        reason = f"a process to clean up behind the agent cannot be started: {error}"
        raise agent.failed(FailureKind.PREFLIGHT, reason, subject="guard", code=error_code(error)) from error


def _archiver(agent: Agent) -> Archiver:
    own, options, tokens = agent.state.own, agent.options, agent.tokens
    facts = {
        "rank": own.rank, "ip": own.ip, "hostname": own.hostname, "utc_offset_s": time.localtime().tm_gmtoff,
        "cluster": agent.identity.name,
    }  # fmt: skip

    def secrets() -> List[str]:
        return [*node_secrets(tokens, agent.env, agent.replication.secrets.values())]

    return Archiver(
        options.checkpoints, agent.identity.run_id, facts, own_logs=options.run_dir, ray_logs=agent.ray_logs,
        secrets=secrets, dashboard=agent.dashboard if isinstance(agent, Head) else None,
        say=agent.log.line,
    )  # fmt: skip


def _clean_up(agent: Agent, archiver: Archiver, server: Optional[AgentServer], watch: Optional[Guard]) -> None:
    """Leave nothing; what one step cannot do keeps no other from its part."""
    agent.state.update(phase=Phase.ENDED)
    steps: List[Callable[[], object]] = [archiver.before_ray_ends, agent.end_children]
    if watch is not None:
        steps.append(watch.release)
    steps.append(end_descendants)
    if server is not None:
        steps.append(server.close)
    steps.append(agent.replication.secrets.forget)
    # what is on the volume comes last, and has its time: it may hang, and dstack kills 10 s after its signal
    on_volume = (agent.checkpoint_store.close, agent.cost_record.write)
    steps += [functools.partial(within, LAST_S, functools.partial(_try, agent, *on_volume)), archiver.finish]
    if agent.options.ray_temp_dir is not None:
        steps.append(functools.partial(guard.remove_folder, agent.options.ray_temp_dir))
    _try(agent, *steps)


def _try(agent: Agent, *steps: Callable[[], object]) -> None:
    for step in steps:
        try:
            step()
        except OSError as error:
            agent.log.line(f"warning: while cleaning up: {error}")


def _serve(agent: Agent, archiver: Archiver) -> AgentServer:
    ip, port = agent.identity.ip, agent.options.ports.agent
    try:
        history = agent.history if isinstance(agent, Head) else None
        durable_jobs = agent.durable_jobs if isinstance(agent, Head) else None
        server = AgentServer(["127.0.0.1", ip], port, agent, archiver, history=history, durable_jobs=durable_jobs)
    except OSError as error:
        reason, code = _cannot_listen(error, ip, port), error_code(error)
        raise agent.failed(FailureKind.PREFLIGHT, reason, subject=f"port {port}", code=code) from error
    agent.serving = True
    return server


def _cannot_listen(error: OSError, ip: str, port: int) -> str:
    if error.errno == errno.EADDRNOTAVAIL:
        advice = "export CLOUDRL_NODE_IP=<its IPv4 address in the cluster's network>"
        return f"no interface of this node has {ip}, where its agent should listen -> {advice}"
    state = "is in use" if error.errno == errno.EADDRINUSE else "cannot be opened"
    return f"port {port} of the agent {state}: {error.strerror or error}"


def _conclude(agent: Agent, failure: Failure) -> int:
    """Print why, leave it on disk for whoever started this node, and choose the exit code."""
    if failure.tail:
        agent.log.line(f"the last lines of its log:\n{failure.tail}")
    if failure.kind is FailureKind.DOWN:
        agent.log.verdict(f"CLOUDRL DOWN: {failure.reason}")
    elif failure.final:
        agent.log.verdict(f"{FAILED}{failure.text}")
    else:
        agent.log.line(f"failed: {failure.text}")
    phase = Phase.DOWN if failure.kind is FailureKind.DOWN else Phase.FAILED
    outcome = Outcome(phase, failure.text, failure.final, time.time(), failure)
    agent.log.verdict(outcome.to_line())
    _write_outcome(agent, outcome)
    retry_status = agent.env.get(RETRY_STATUS)
    if phase is Phase.DOWN and agent.options.job is None:  # which would not have got to its end
        return 0
    if retry_status is not None:
        return int(retry_status) if agent.was_ready and not failure.final else FAILED_STATUS
    return 0 if failure.final else 1


def _write_outcome(agent: Agent, outcome: Outcome) -> None:
    path = agent.options.run_dir / OUTCOME_FILE
    try:
        write_file(path, outcome.to_text())
    except OSError as error:  # a full disk; the exit code counts for more
        agent.log.line(f"warning: {path} cannot be written: {error}")
