"""The agent's side of the check that a node computes: its child, what that has found, and what is wrong with it.

One child imports what training imports. As soon as it has torch it forks a process a GPU (`compute_process`), which
computes by itself, and then with those of the other nodes. Rank 0 says when, and with whom (`gang`).
"""

import contextlib
import json
import shutil
import time
from typing import Callable, Dict, List, Mapping, Optional

from cloudrl.child_process import Child
from cloudrl.node.compute_process import ASK, BEAT_S, RENDEZVOUS, Ask, Found
from cloudrl.node.failure import NodeFailed
from cloudrl.node.identity import Identity
from cloudrl.node.node_state import NodeState
from cloudrl.node.subcommands import ChildResult, explain, explain_import
from cloudrl.private_files import make_folder, write_file
from cloudrl.protocol.compute import GPU_SWITCH, SWITCH, ComputeStep, NodeCheck
from cloudrl.protocol.failures import Failure, FailureKind
from cloudrl.protocol.options import AgentOptions
from cloudrl.protocol.wire import from_json, to_json

MOST_NODES = 64
"""Above that, it takes longer to connect all nodes than the check may add to a start."""
COMPUTES_WITHIN_S = 60.0
MODELS_WAIT_S = 5.0
"""So long a download waits for the check: a gang that cannot work is not worth it, and one that can shall not wait."""
_BROKEN = "the image is broken: "
_LOOK_S, _ENDS_S = 0.2, 2.0
_SILENT_S = 10 * BEAT_S


def gang_is_off(options: AgentOptions, identity: Identity, env: Mapping[str, str]) -> str:
    """Why the nodes are not tried together; "" where they are."""
    if identity.nodes == 1:
        return "there is one node"
    if options.is_one_machine:
        return "all nodes are on this machine"
    for switch in (SWITCH, GPU_SWITCH):
        if env.get(switch, "").lower() == "off":
            return f"{switch} is off"
    if identity.nodes > MOST_NODES:
        return f"more than {MOST_NODES} nodes take too long to connect"
    return "" if "torch" in options.import_check else "torch is not among the modules that are checked"


class ComputeWatch:
    """The check of one node.

    Args:
        options: of the agent.
        identity: which node it is.
        state: gets what is found.
        gpus: declared for each node.
        clock: seconds that never run backwards.
    """

    def __init__(
        self,
        options: AgentOptions,
        identity: Identity,
        state: NodeState,
        *,
        gpus: int,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._options, self._identity, self._state, self._clock = options, identity, state, clock
        self._folder = options.run_dir / "compute"
        self._result = options.run_dir / "imports.json"
        self._gpus = gpus
        self._ask: Optional[Ask] = None
        self._child: Optional[Child] = None
        self._began_at = clock()
        self._computing_since: Optional[float] = None
        self._look_at = clock()
        self._has_met = self._has_imported_all = self._was_over = False

    def start(
        self,
        start_child: Callable[..., Child],
        command: Callable[..., List[str]],
        env: Mapping[str, str],
        say: Callable[[str], object],
    ) -> None:
        """Start the child.

        Args:
            start_child: takes its command and the name of its log.
            command: the words that run this file, with some more.
            env: of the node.
            say: receives why the nodes are not tried together, on rank 0.
        """
        modules = self._options.import_check
        why_off = gang_is_off(self._options, self._identity, env)
        on_gpus = self._options.device == "gpu" and env.get(GPU_SWITCH, "").lower() != "off"
        processes = self._gpus if on_gpus else int(not why_off)
        if "torch" not in modules or not processes:
            self._state.update(check=NodeCheck(ComputeStep.READY))
        else:
            self._ask = Ask(
                self._identity.rank, self._identity.ip, self._options.device, processes, is_gang=not why_off
            )
            shutil.rmtree(self._folder, ignore_errors=True)
            make_folder(self._folder)
            write_file(self._folder / ASK, json.dumps(to_json(self._ask)))
        self._began_at = self._clock()
        if modules:
            self._result.unlink(missing_ok=True)
            folder = [f"--to={self._folder}"] if self._ask is not None else []
            self._child = start_child(command("imports", *modules, *folder, f"--result={self._result}"), "imports.log")
        if why_off and on_gpus and self._identity.is_head:
            say(f"the nodes are not tried together: {why_off}")

    def finish(self, wait_for: Callable[[Callable[[], bool], float], bool]) -> None:
        """Wait until all is imported; the other nodes are waited for at the barrier.

        Args:
            wait_for: polls a condition, for so many seconds; whether it has come true.

        Raises:
            NodeFailed: a module cannot be imported, or not in time. What else may go wrong, `look` and rank 0 raise.
        """
        modules, timeout_s = ", ".join(self._options.import_check), self._options.ray_timeout_s
        if self._child is not None:
            self._state.update(detail=f"importing {modules}")
            if not wait_for(self._has_imported, timeout_s):
                raise self._failed(f"{_BROKEN}{modules} cannot be imported within {timeout_s:g} s", modules, "timeout")
            self._refuse_broken_imports(self._child)
        self._has_imported_all = True

    def _refuse_broken_imports(self, child: Child) -> None:
        """Raise where the child has said that a module cannot be imported, or has ended without a word."""
        if child.poll() is None and not self._result.exists():
            return
        result = ChildResult.read(self._result, child)
        if not result.reason:
            return
        child.wait(_ENDS_S)  # the last lines of its log say more
        reason, code = explain_import(result, child.tail())
        raise self._failed(f"{_BROKEN}{reason}", ", ".join(self._options.import_check), code)

    def _has_imported(self) -> bool:
        """Whether all modules are imported, or the child has ended without."""
        return self._child is None or self._result.exists() or self._child.poll() is not None

    # -- computing ----------------------------------------------------------------------------------------------

    @property
    def is_over(self) -> bool:
        """Whether this node has done its part: alone, and with the others where it takes part."""
        check, rendezvous = self._state.own.check, self._state.published.rendezvous
        if self._was_over or check is None or not check.processes:
            return self._was_over or (check is not None and check.step.number >= ComputeStep.READY.number)
        takes_part = rendezvous is None or rendezvous.before(self._identity.rank) is not None
        return check.step is ComputeStep.DONE or (check.step is ComputeStep.READY and not takes_part)

    def hold_models(self) -> None:
        """Let a thread that is about to download models wait for the check, for some seconds at most.

        Raises:
            NodeFailed: this node, or another one, has failed meanwhile.
        """
        while not self.is_over and self._clock() - self._began_at < MODELS_WAIT_S:
            self._state.raise_failure()
            time.sleep(_LOOK_S)

    def look(self) -> None:
        """Read what the processes have found, and pass on with whom they are to compute.

        Raises:
            NodeFailed: a module cannot be imported, or a GPU of this node does not compute by itself.
        """
        self._pass_on_members()
        self._was_over = self.is_over
        if (self._has_imported_all and self._was_over) or self._clock() < self._look_at:
            return
        self._look_at = self._clock() + _LOOK_S
        if self._child is not None and not self._has_imported_all:
            self._refuse_broken_imports(self._child)
        if self._ask is None or self._was_over:
            return
        found = self._read(self._ask)
        check = self._judged(self._ask, found)
        if check != self._state.own.check:
            versions = {name: text for each in found.values() for name, text in each.versions.items()}
            self._state.update(check=check, gpu_software={**self._state.own.gpu_software, **versions})
        if check.step.number < ComputeStep.READY.number:
            self._refuse_broken_gpus(self._ask, found, check)

    def _pass_on_members(self) -> None:
        """Tell the processes with whom they compute; those of a node that takes no part end then."""
        check, rendezvous = self._state.own.check, self._state.published.rendezvous
        is_asked = check is not None and check.processes > 0 and check.step is ComputeStep.READY
        if rendezvous is not None and is_asked and not self._has_met:
            self._has_met = True
            write_file(self._folder / RENDEZVOUS, json.dumps(to_json(rendezvous)))

    def _read(self, ask: Ask) -> Dict[int, Found]:
        found = {}
        for index in range(ask.processes):
            with contextlib.suppress(OSError, ValueError):  # it has not begun
                found[index] = from_json(Found, json.loads((self._folder / f"{index}.json").read_text()))
        return found

    def _judged(self, ask: Ask, found: Mapping[int, Found]) -> NodeCheck:
        if len(found) < ask.processes:
            return NodeCheck(ComputeStep.COMPUTE if found else ComputeStep.IMPORT, ask.processes if ask.is_gang else 0)
        rates = [each.received_gb_per_s for each in found.values() if each.received_gb_per_s]
        return NodeCheck(
            min((each.step for each in found.values()), key=lambda step: step.number),
            ask.processes if ask.is_gang else 0,
            port=found[0].port,
            error=next((each.error for each in found.values() if each.error), ""),
            lost=tuple(index for index, each in found.items() if self._is_lost(index, each)),
            tflops=tuple(each.tflops for each in found.values()),
            received_gb_per_s=float(f"{sum(rates):.4g}") if rates else None,
            unreachable=found[0].unreachable,
        )

    def _is_lost(self, index: int, found: Found) -> bool:
        """Whether a process that has something to do gives no sign of life: it is stopped, or was killed."""
        if found.error or found.unreachable or found.step is ComputeStep.DONE:
            return False
        try:
            return time.time() - (self._folder / f"{index}.json").stat().st_mtime > _SILENT_S
        except OSError:
            return True

    def _refuse_broken_gpus(self, ask: Ask, found: Mapping[int, Found], check: NodeCheck) -> None:
        """Raise where a process has failed while it computed alone, or takes too long for it."""
        if check.step is ComputeStep.IMPORT:
            return
        if self._computing_since is None:
            self._computing_since = self._clock()
        broken = {index: each.error for index, each in found.items() if each.error}
        for index, error in broken.items():
            reason, code = explain(error, "error")
            raise self._failed(f"{self._name(index)} does not compute: {reason}", "gpus", code)
        if self._clock() - self._computing_since > COMPUTES_WITHIN_S:
            late = [index for index in range(ask.processes) if index not in found or found[index].step is check.step]
            which = ", ".join(map(self._name, late))
            reason = f"{which}: no matrix product and no copy within {COMPUTES_WITHIN_S:g} s"
            raise self._failed(reason, "gpus", "timeout")

    def _name(self, index: int) -> str:
        return f"GPU {index}" if self._options.device == "gpu" else "this node"

    def _failed(self, reason: str, subject: str, code: str) -> NodeFailed:
        tail = self._child.tail() if self._child is not None else ""
        versions = ", ".join(f"{name} {text}" for name, text in self._state.own.gpu_software.items())
        where = f" ({versions})" if versions and subject == "gpus" else ""
        failure = Failure(
            FailureKind.PREFLIGHT, self._identity.rank, f"{reason}{where}", tail, subject=subject, code=code
        )
        return NodeFailed(failure)
