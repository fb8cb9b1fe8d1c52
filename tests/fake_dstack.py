"""A stand-in for dstack's low-level client: it holds fleets, runs and secrets, and answers in the server's shape."""

import base64
from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import requests
from dstack._internal.core.errors import ResourceNotExistsError
from dstack._internal.core.models.instances import Resources

from cloudrl.providers.dstack.server import Server

ME = "me"
"""The user whose token is sent."""
OVER = ("terminated", "failed", "done")


class FakeDstack:
    """What is asked of `dstack.api.server.APIClient`, and what the server holds."""

    def __init__(self) -> None:
        self.held_fleets: list[SimpleNamespace] = []
        self.held_secrets: list[str] = []
        self.held_runs: list[SimpleNamespace] = []
        self.is_down = False
        self.looks = 0
        self.fleets = SimpleNamespace(list=lambda _project: self._answer(self.held_fleets))
        self.secrets = SimpleNamespace(
            list=lambda _project: self._answer([SimpleNamespace(name=name) for name in self.held_secrets])
        )
        self.held_backends = ["aws"]
        self.projects = SimpleNamespace(
            get=lambda _project: SimpleNamespace(backends=[SimpleNamespace(name=name) for name in self.held_backends])
        )
        self.runs = SimpleNamespace(get=self._run, list=self._list, stop=self._stop)
        self.held_outputs: dict[str, str] = {}
        self.polls = 0
        """How often it was asked for an output."""
        self.logs = SimpleNamespace(poll=self._poll)
        self.users = SimpleNamespace(get_my_user=lambda: self._answer(SimpleNamespace(username=ME)))
        self.prices = [98.32, 120.0]
        """Of the machines that are offered for a run, where there is a fleet."""
        self.max_duration_s: int | None = None
        """That the server sets for each run, whatever its task says."""
        self.asked: list[str] = []
        """The texts of tasks that plans were asked for."""
        self.applied: list[SimpleNamespace] = []
        """Plans that were started."""

    @property
    def server(self) -> Server:
        return Server(url="http://server", project="main", api=self)

    def client(self, *, api_client: Any, project_name: str) -> SimpleNamespace:
        """Stands in for `dstack.api.Client`."""
        assert (api_client, project_name) == (self, "main")
        return SimpleNamespace(runs=SimpleNamespace(get_run_plan=self._plan, apply_plan=self._apply))

    def _plan(self, configuration: Any, *, configuration_path: str) -> SimpleNamespace:
        self.asked.append(Path(configuration_path).read_text())
        offers = [_offer(price) for price in self.prices] if self.held_fleets else []
        current = [each for each in self.held_runs if each.run_spec.run_name == configuration.name]
        return SimpleNamespace(
            job_plans=[
                SimpleNamespace(
                    offers=offers,
                    total_offers=len(offers),
                    job_spec=SimpleNamespace(max_duration=self.max_duration_s),
                )
            ],
            current_resource=current[-1] if current else None,
            run_spec=SimpleNamespace(configuration=configuration),
        )

    def _apply(self, plan: SimpleNamespace, *, reserve_ports: bool) -> None:
        assert not reserve_ports
        self.applied.append(plan)
        self.held_runs.append(run(name=plan.run_spec.configuration.name, run_id=f"run-{len(self.applied)}"))

    def _answer(self, value: Any) -> Any:
        self.looks += 1
        if self.is_down:
            raise requests.ConnectionError("refused")
        return value

    def _run(self, _project: str, name: str) -> SimpleNamespace:
        found: list[SimpleNamespace] = [each for each in self._answer(self.held_runs) if each.run_spec.run_name == name]
        if not found:
            raise ResourceNotExistsError
        return found[-1]

    def _list(
        self, _project: str, _repo: None, *, username: str, only_active: bool, job_submissions_limit: int
    ) -> list[SimpleNamespace]:
        """Of one user, as the server does it (dstack 0.22.5, server/services/runs: list_user_runs)."""
        assert only_active
        assert job_submissions_limit == 1
        return [
            each for each in self._answer(self.held_runs) if each.user == username and each.status.value not in OVER
        ]

    def _poll(self, _project: str, request: Any) -> Any:
        """A line an event; the newest first where it is asked so, and no more than `limit`."""
        self.polls += 1
        lines = self.held_outputs.get(str(request.job_submission_id), "").splitlines(keepends=True)
        asked = (lines[::-1] if request.descending else lines)[: request.limit]
        logs = [SimpleNamespace(message=base64.b64encode(line.encode())) for line in asked]
        return self._answer(SimpleNamespace(logs=logs))

    def _stop(self, _project: str, names: list[str], _abort: bool) -> None:
        for each in self._answer(self.held_runs):
            if each.run_spec.run_name in names:
                each.status.value = "terminated"


_H100 = {
    "cpus": 208, "memory_mib": 1900 << 10, "disk": {"size_mib": 4000 << 10},
    "gpus": [{"name": "H100", "memory_mib": 80 << 10, "vendor": "nvidia"}] * 8, "cpu_arch": "x86",
}  # fmt: skip


def _offer(price: float) -> SimpleNamespace:
    resources = Resources.model_validate({**_H100, "spot": False})
    instance = SimpleNamespace(name="p5.48xlarge", resources=resources)
    return SimpleNamespace(
        backend=SimpleNamespace(value="aws"), region="us", price=price, instance=instance,
        availability=SimpleNamespace(value="available"),
    )  # fmt: skip


def fleet(
    name: str = "gpu-fleet",
    *,
    placement: str = "cluster",
    idle_s: int | None = 3600,
    least: int = 0,
    most: int | None = None,
    ssh: bool = False,
    spot_policy: str | None = None,
    backends: Sequence[str] = (),
    spots: Sequence[bool] = (),
) -> SimpleNamespace:
    """A fleet; without machines, unless `spots` says of each whether it is a spot one."""
    configuration = SimpleNamespace(
        ssh_config=SimpleNamespace() if ssh else None,
        nodes=None if ssh else SimpleNamespace(min=least, max=most),
        placement=SimpleNamespace(value=placement),
    )
    profile = SimpleNamespace(
        idle_duration=idle_s,
        spot_policy=spot_policy and SimpleNamespace(value=spot_policy),
        backends=[SimpleNamespace(value=each) for each in backends],
    )
    spec = SimpleNamespace(configuration=configuration, merged_profile=profile)
    instances = [_instance(number, spot) for number, spot in enumerate(spots)]
    return SimpleNamespace(name=name, status=SimpleNamespace(value="active"), instances=instances, spec=spec)


def _instance(number: int, spot: bool) -> SimpleNamespace:
    resources = Resources.model_validate({**_H100, "spot": spot})
    return SimpleNamespace(
        name=f"gpu-{number}", unreachable=False, status=SimpleNamespace(value="idle"), hostname=f"10.0.0.{number}",
        backend=SimpleNamespace(value="aws"), region="us", instance_type=SimpleNamespace(resources=resources),
        price=12.5, termination_reason_message=None, termination_reason=None,
    )  # fmt: skip


def attempt(number: int = 0, **changes: Any) -> SimpleNamespace:
    """One submission of a job; `code` is its termination reason."""
    fields = {
        "status": "running",
        "code": None,
        "said": None,
        "price": 12.5,
        "host": "10.0.0.1",
        "backend": "aws",
        "ended": None,
    }
    chosen = {**fields, **changes}
    machine = SimpleNamespace(
        hostname=chosen["host"], price=chosen["price"], backend=SimpleNamespace(value=chosen["backend"])
    )
    return SimpleNamespace(
        id=submission_id(number, str(chosen["host"])), submission_num=number,
        status=SimpleNamespace(value=chosen["status"]),
        submitted_at=_at(100.0 * number), finished_at=_at(chosen["ended"]), exit_status=None, error=None,
        termination_reason=chosen["code"], termination_reason_message=chosen["said"], job_provisioning_data=machine,
    )  # fmt: skip


def submission_id(number: int, host: str) -> str:
    """The id of an attempt of the node on a host."""
    return f"00000000-0000-4000-8000-{number:06d}{int(host.rpartition('.')[2]):06d}"


def _at(seconds: float | None) -> datetime | None:
    return None if seconds is None else datetime.fromtimestamp(seconds, tz=timezone.utc)


def run(
    *attempts: SimpleNamespace,
    others: Sequence[SimpleNamespace] = (),
    name: str = "lab",
    status: str = "running",
    run_id: str = "run-1",
    volumes: Any = (),
    user: str = ME,
) -> SimpleNamespace:
    """A cluster of one node with these attempts, or of two with those of rank 1, too."""
    commands = ["exec python3 /opt/cloudrl/cloudrl-node.pyz run"]
    configuration = SimpleNamespace(image="nowhere/nothing:1", volumes=list(volumes), commands=commands)
    of_ranks = [list(attempts) or [attempt()], *([list(others)] if others else [])]
    jobs = [
        SimpleNamespace(job_spec=SimpleNamespace(job_num=rank), job_submissions=each)
        for rank, each in enumerate(of_ranks)
    ]
    return SimpleNamespace(
        id=run_id, user=user, status=SimpleNamespace(value=status), error=None, status_message=None, jobs=jobs,
        cost=1.0,
        run_spec=SimpleNamespace(run_name=name, configuration=configuration),
        submitted_at=_at(0.0), fleet=SimpleNamespace(name="gpu-fleet"),
    )  # fmt: skip
