"""In each Python process of a job that is debugged: debuggers listen on loopback alone, and a stop leaves a note.

It imports nothing of ours: the agent lays it as `cloudrl_stop_hook` into a folder beside a `sitecustomize` that calls
`install`, and `submit --debug` puts that folder on the job's PYTHONPATH. So it is there before the driver's first line,
in Ray's workers, and in the processes that they start, such as a rollout engine.

Ray 2.60 itself lets debugpy listen on the cluster address, without a password (util/debugpy.py). Its functions are
replaced when its modules are imported. RAY_DEBUG=0 turns them into nothing where this did not happen (util/rpdb.py).

    stop_notes  the files that say which thread stands where
    stop_dap    debugpy
    stop_pdb    pdb, Ray's legacy debugger
    stop_peer   who may connect
"""

import functools
import sys
from datetime import timedelta
from typing import Any, Callable, Mapping, Optional, Sequence

from . import stop_dap, stop_pdb
from .stop_notes import STATE, never_raising, take_breakpoints
from .stop_peer import guard_debugpy

_COLLECTIVE_TIMEOUT = timedelta(days=7)
"""In place of 10 minutes (NCCL) and 30 (gloo), torch 2.13: constants.py. The other ranks wait while one is stopped.
verl 0.9.1 names none (workers/engine_workers.py), and reads its own key `nccl_timeout` nowhere."""


def install(environ: Mapping[str, str]) -> None:
    """Make this process ready, if its job is debugged; called once, before anything else is imported."""
    debugger, folder = environ.get("CLOUDRL_DEBUGGER"), environ.get("CLOUDRL_STOPS_DIR")
    if debugger not in ("debugpy", "pdb") or not folder:
        return
    stop = never_raising(stop_pdb.stop if debugger == "pdb" else stop_dap.stop)
    post_mortem = never_raising(stop_pdb.post_mortem if debugger == "pdb" else stop_dap.post_mortem)
    wanted = environ.get("CLOUDRL_DEBUGGER_POST_MORTEM") == "1"
    STATE.update(folder=folder, job=environ.get("CLOUDRL_DEBUGGER_JOB", ""), debugger=debugger, breakpoint=stop)
    take_breakpoints()

    def patch_rpdb(module: Any) -> None:
        module.set_trace = module._driver_set_trace = stop
        module._post_mortem = post_mortem if wanted else lambda: None
        module._is_ray_debugger_post_mortem_enabled = lambda: wanted
        if hasattr(module, "_RemotePdb"):
            module._RemotePdb = stop_pdb.remote_pdb(module)

    def patch_debugpy(module: Any) -> None:
        module.set_trace = stop

    patches = {
        "ray.util.rpdb": patch_rpdb,
        "ray.util.debugpy": patch_debugpy,
        "debugpy.common.sockets": guard_debugpy,
        "torch.distributed.distributed_c10d": raise_timeouts,
    }
    sys.meta_path.insert(0, _AfterImport(patches))


class _AfterImport:
    """Changes modules as soon as they have been imported."""

    def __init__(self, patches: Mapping[str, Callable[[Any], None]]) -> None:
        self._patches = patches

    def find_spec(self, name: str, path: Optional[Sequence[str]] = None, target: Any = None) -> Any:
        """What the next finder says, its loader followed by the patch."""
        if name not in self._patches:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        specs = (other.find_spec(name, path, target) for other in others if hasattr(other, "find_spec"))
        spec = next((found_spec for found_spec in specs if found_spec is not None), None)
        if spec is not None and spec.loader is not None:
            execute, patch = spec.loader.exec_module, never_raising(self._patches[name])

            def exec_module(module: Any) -> None:
                execute(module)
                patch(module)

            spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def raise_timeouts(c10d: Any) -> None:
    """Let collectives of torch wait for a rank that stands in a debugger; said by a caller or not."""
    c10d.default_pg_timeout = c10d.default_pg_nccl_timeout = _COLLECTIVE_TIMEOUT
    make = c10d._new_process_group_helper

    @functools.wraps(make)
    def with_timeout(*args: Any, **kwargs: Any) -> Any:
        if kwargs.get("timeout") is not None:  # all of torch's own callers name it
            kwargs["timeout"] = max(kwargs["timeout"], _COLLECTIVE_TIMEOUT)
        return make(*args, **kwargs)

    c10d._new_process_group_helper = with_timeout
