"""The real dstack server with its polling intervals divided, so that a test's minutes become seconds.

`python fast_server.py PORT`. What is changed, and nothing else:

- intervals of the background pipelines that fleets and tasks go through, and delays of their fetchers, by 10, but the
  intervals of those that look after hosts and fleets by 2, since each look costs CPU time that the tests' nodes need;
- the time until a job without connection counts as lost: 15 s instead of 2 min; SIGUSR1 makes it 5 min, SIGUSR2 15 s;
- the time within which a machine of a cloud has to be up: 5 min instead of 10 and more;
- the time until a silent machine of a cloud is given back: 30 s instead of 20 min;
- the window of a `utilization_policy` by 20, so that its least one is 15 s;
- the delay before a run is submitted again: 2 s instead of 15 s to 10 min;
- an empty database gets the tables of the models at once instead of all migrations one after the other.

Source: dstack 0.22.5, _internal/server/background/pipeline_tasks/*.py, _internal/server/db.py.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from datetime import timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

from dstack._internal.server import bootstrap

bootstrap.set_up_process()  # before all other imports of dstack

import uvicorn  # noqa: E402

if "LAB_CLOUD" in os.environ:
    sys.path.insert(0, str(Path(__file__).parents[1]))
    from dstack_hosts import cloud_backend

    cloud_backend.register()

from dstack._internal.server import app as server_app  # noqa: E402
from dstack._internal.server import db, models  # noqa: E402
from dstack._internal.server.background.pipeline_tasks import (  # noqa: E402
    base,
    fleets,
    instances,
    jobs_running,
    jobs_submitted,
    jobs_terminating,
    runs,
)
from dstack._internal.server.background.pipeline_tasks.instances import check, common  # noqa: E402
from dstack._internal.server.background.pipeline_tasks.runs import pending  # noqa: E402

_FASTER = float(os.environ.get("LAB_FASTER", "10"))
_HOSTS_FASTER = min(_FASTER, 2.0)
_LOST_S = {signal.SIGUSR1: 300.0, signal.SIGUSR2: float(os.environ.get("LAB_LOST_S", "15"))}
_AGAIN_S = float(os.environ.get("LAB_AGAIN_S", "2"))
_DIVIDED = ("min_processing_interval", "queue_check_delay")


def shorten_intervals() -> None:
    """Divide the defaults of the pipelines and fetchers that fleets and tasks go through."""
    delays = [max(0.05, s / _FASTER) for s in base.Fetcher._DEFAULT_FETCH_DELAYS]
    for module in (fleets, instances, jobs_running, jobs_submitted, jobs_terminating, runs):
        for part in _parts(module):
            _divide_defaults(part, _HOSTS_FASTER if module in (fleets, instances) else _FASTER)
            if issubclass(part, base.Fetcher):
                part._DEFAULT_FETCH_DELAYS = delays
    _change_patience(signal.SIGUSR2)
    common.get_provisioning_timeout = lambda *_, **__: timedelta(minutes=5)
    check.TERMINATION_DEADLINE_OFFSET = timedelta(seconds=30)
    _shorten_utilization_windows()
    pending._PENDING_RETRY_DELAYS = [timedelta(seconds=_AGAIN_S)]


def _shorten_utilization_windows() -> None:
    check_gpus = jobs_running._check_gpu_utilization

    async def check_sooner(context: Any, result: Any) -> None:
        policy = context.job.job_spec.utilization_policy
        if policy is not None:
            shorter = policy.model_copy(update={"time_window": policy.time_window // 20})
            context.job.job_spec.utilization_policy = shorter
        await check_gpus(context=context, result=result)

    jobs_running._check_gpu_utilization = check_sooner


def _change_patience(number: int, _frame: object = None) -> None:
    """How long a host may be silent."""
    jobs_running.JOB_DISCONNECTED_RETRY_TIMEOUT = timedelta(seconds=_LOST_S[signal.Signals(number)])


def _parts(module: ModuleType) -> list[Any]:
    kinds = (base.Pipeline, base.Fetcher)
    classes = [value for value in vars(module).values() if inspect.isclass(value)]
    return [value for value in classes if issubclass(value, kinds) and value.__module__ != base.__name__]


def _divide_defaults(part: type, faster: float) -> None:
    function = vars(part)["__init__"]
    spec = inspect.getfullargspec(function)
    if not spec.defaults:
        return
    names = spec.args[-len(spec.defaults) :]
    function.__defaults__ = tuple(
        value / faster if name in _DIVIDED else value for name, value in zip(names, spec.defaults, strict=True)
    )


async def make_tables() -> None:
    """In place of the migrations. What exists is left as it is."""
    async with db.get_db().engine.begin() as connection:
        await connection.run_sync(models.BaseModel.metadata.create_all)


if __name__ == "__main__":
    shorten_intervals()
    for number in _LOST_S:
        signal.signal(number, _change_patience)
    server_app.migrate = make_tables
    application = server_app.create_app()
    server_app.register_routes(application)
    uvicorn.run(application, host="127.0.0.1", port=int(sys.argv[1]), log_level="error")
