"""What goes wrong with dstack, told from a server's answers: no server and no socket is needed for these."""

from __future__ import annotations

import re
from types import SimpleNamespace
from typing import Any

import pytest
from fake_dstack import FakeDstack, attempt, fleet, run

from cloudrl.errors import InputError
from cloudrl.providers.dstack import diagnostics, fleets, retention, runs
from cloudrl.providers.dstack.plan import make_plan, with_price
from cloudrl.providers.dstack.runs import Attempt, RunPlan, RunState
from cloudrl.providers.model import CheckpointRetention, Offer
from cloudrl.spec import Cluster

TASK = """\
type: task
name: lab
nodes: {nodes}
image: any
commands: ['true']
{more}
"""


def held(dstack: FakeDstack, *attempts: Any, **changes: Any) -> RunState:
    """The run that the server holds, as a look at it."""
    dstack.held_runs = [run(*attempts, **changes)]
    return runs.get(dstack.server, "lab")


def latest(dstack: FakeDstack, **changes: Any) -> Attempt:
    return held(dstack, attempt(**changes)).nodes[0].latest


def planned(nodes: int = 2, more: str = "", offers: int = 0, current: RunState | None = None) -> RunPlan:
    offer = Offer("aws", "us-east-1", "p5.48xlarge", "8xH100", 98.32, spot=False)
    text = TASK.format(nodes=nodes, more=more)
    return RunPlan(text, "lab", nodes, (offer,) * offers, offers, current=current)


@pytest.fixture
def dstack() -> FakeDstack:
    return FakeDstack()


class TestBeforeTheStart:
    @pytest.mark.parametrize(
        ("there", "said", "hint"),
        [
            ({}, "a run 'lab' is there: running", "cloudrl down lab"),
            ({"user": "alice"}, "user 'alice' has a run 'lab' in project 'main'", "Choose another name"),
            ({"status": "terminating"}, "still ending", "Try again when it is gone"),
        ],
    )
    def test_a_name_that_is_taken(
        self, dstack: FakeDstack, there: dict[str, Any], said: str, hint: str
    ) -> None:
        with pytest.raises(InputError, match=said) as caught:
            diagnostics.check(dstack.server, planned(offers=1, current=held(dstack, **there)))
        assert hint in str(caught.value.hint)

    def test_a_run_that_is_over_is_in_nobodys_way(self, dstack: FakeDstack) -> None:
        for there in ({"status": "terminated"}, {"status": "done", "user": "alice"}):
            diagnostics.check(dstack.server, planned(offers=1, current=held(dstack, **there)))

    @pytest.mark.parametrize(
        ("there", "nodes", "named", "said"),
        [
            ([], 2, "", "project 'main' has no fleet that it may run on"),
            ([fleet("small"), fleet("other")], 2, "", "or can get such a machine (there is: small, other)"),
            ([fleet("apart", placement="any")], 2, "", "placement: cluster; apart has not"),
            ([fleet("apart", placement="any")], 1, "", "such a machine (there is: apart)"),
            ([fleet("apart", placement="any"), fleet("near")], 2, "near", "(there is: near)"),
        ],
    )
    def test_why_there_is_no_machine(
        self, dstack: FakeDstack, there: list[Any], nodes: int, named: str, said: str
    ) -> None:
        dstack.held_fleets = there
        plan = planned(nodes)
        fleets = diagnostics.check(dstack.server, plan, wanted=named.split())
        error = diagnostics.no_machines(dstack.server, plan, fleets)
        assert said in error.message
        assert error.exit_code == 3

    def test_a_secret_that_is_not_set_and_the_file_that_asks_for_it(self, dstack: FakeDstack) -> None:
        dstack.held_secrets = ["HF_TOKEN"]
        with pytest.raises(
            InputError, match=r"lab\.dstack\.yml takes WANDB_API_KEY from dstack's secrets"
        ) as caught:
            diagnostics.check(dstack.server, planned(offers=1), secrets=("HF_TOKEN", "WANDB_API_KEY"))
        assert caught.value.hint == "dstack secret set WANDB_API_KEY ..."

    def test_secrets_and_fleets_of_a_plan(self) -> None:
        section = {
            "registry_auth": {
                "username": "team-${{ secrets.WHO }}",
                "password": "${{ secrets.REGISTRY_PASSWORD }}",
            },
            "fleets": ["near", "team/far", {"name": "third"}],
        }
        plan = make_plan(Cluster(name="lab", secrets=["HF_TOKEN"], image="any", dstack=section))
        assert plan.secrets == ("HF_TOKEN", "WHO", "REGISTRY_PASSWORD")
        assert plan.fleets == ("near", "far", "third")
        assert [plan.render().count(f"secrets.{name} ") for name in plan.secrets] == [1, 1, 1]
        bare = make_plan(Cluster(name="lab"))
        assert (bare.secrets, bare.fleets) == ((), ())


class TestALimitOfTheCost:
    def test_the_agents_count_with_all_nodes_at_the_cheapest_offer(self) -> None:
        capped = with_price(Cluster(name="lab", nodes=2, max_cost=200.0), planned(offers=1))
        assert capped.price_per_hour == 196.64
        text = make_plan(capped).render()
        assert "--max-cost 200 \\\n      --price-per-hour 196.64" in text

    def test_machines_that_cost_nothing(self) -> None:
        offer = Offer("remote", "remote", "instance", "", 0.0, spot=False)
        free = RunPlan(TASK.format(nodes=2, more=""), "lab", 2, (offer,), 1)
        with pytest.raises(InputError, match="would get cost nothing an hour") as caught:
            with_price(Cluster(name="lab", nodes=2, max_cost=200.0), free)
        assert caught.value.hint is not None
        assert "price_per_hour" in caught.value.hint


class TestTheEnd:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            (
                {"status": "failed", "code": "log_quota_exceeded"},
                r"prints too much: 50 MB in an hour.*NCCL_DEBUG",
            ),
            ({"said": "the host is gone"}, "^the host is gone$"),
        ],
    )
    def test_is_explained_where_it_is_not_plain(
        self, dstack: FakeDstack, changes: dict[str, Any], said: str
    ) -> None:
        assert re.search(said, diagnostics.describe_failure(latest(dstack, **changes)))

    def test_an_image_that_cannot_be_pulled_ends_the_wait(self, dstack: FakeDstack) -> None:
        broken = {"status": "failed", "code": "creating_container_error", "said": "manifest unknown"}
        assert diagnostics.unrecoverable_error(held(dstack, attempt(0, **broken))) is None
        failed = diagnostics.unrecoverable_error(held(dstack, attempt(0, **broken), attempt(1, **broken)))
        assert failed is not None
        assert (
            "the image cannot be pulled or started (manifest unknown); image nowhere/nothing:1"
            in failed.message
        )

    def test_a_lost_node_does_not(self, dstack: FakeDstack) -> None:
        lost = {"status": "failed", "code": "instance_unreachable", "said": "unreachable"}
        assert diagnostics.unrecoverable_error(held(dstack, *(attempt(n, **lost) for n in range(5)))) is None


MOUNT = SimpleNamespace(instance_path="/checkpoints", path="/checkpoints")


class TestRetention:
    def of(self, dstack: FakeDstack, folder: str = "/checkpoints", **changes: Any) -> CheckpointRetention:
        mine = held(dstack, attempt(backend=changes.pop("backend", "aws")), **{"volumes": [MOUNT], **changes})
        known = fleets.list_all(dstack.server)
        return retention.retention(mine, folder, known[0] if known else None)

    def test_ssh_hosts_keep_theirs(self, dstack: FakeDstack) -> None:
        kept = self.of(dstack, backend="remote")
        assert (kept.destroyed, kept.location) == (False, "in /checkpoints of your hosts 10.0.0.1")

    @pytest.mark.parametrize(
        ("idle_s", "said"),
        [
            (1800, "gives the machines back when they were idle for 30m"),
            (-1, "when fleet gpu-fleet is deleted"),
        ],
    )
    def test_rented_machines_go_with_their_disks(self, dstack: FakeDstack, idle_s: int, said: str) -> None:
        dstack.held_fleets = [fleet(idle_s=idle_s)]
        kept = self.of(dstack, "/checkpoints/mine")
        assert kept.destroyed
        assert said in kept.location

    def test_network_volumes_stay(self, dstack: FakeDstack) -> None:
        kept = self.of(dstack, volumes=[SimpleNamespace(name=["ckpt-0", "ckpt-1"], path="/checkpoints")])
        assert (kept.destroyed, kept.location) == (False, "on network volume ckpt-0, ckpt-1")

    def test_a_folder_that_is_on_no_volume(self, dstack: FakeDstack) -> None:
        assert self.of(dstack, "/elsewhere").destroyed


class TestFleetsThatNeverIdleOut:
    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({}, ""),
            ({"idle_s": -1}, "its idle_duration is off"),
            ({"idle_s": None}, ""),
            ({"least": 1}, "it keeps 1 machine at any time (nodes: min 1)"),
            ({"least": 2}, "it keeps 2 machines at any time (nodes: min 2)"),
            ({"ssh": True, "idle_s": -1}, ""),
        ],
    )
    def test_why(self, dstack: FakeDstack, changes: dict[str, Any], said: str) -> None:
        dstack.held_fleets = [fleet(**changes)]
        [look] = fleets.list_all(dstack.server)
        notice = look.never_released
        assert (notice is not None) == bool(said)
        assert notice is None or notice.text.endswith(f"while idle: {said}")
