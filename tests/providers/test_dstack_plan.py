"""What a plan for dstack says before anything is paid, told from a server's answers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from fake_dstack import FakeDstack, fleet, run

from cloudrl.errors import CapacityError, CloudrlError, InputError
from cloudrl.providers.dstack import provider
from cloudrl.providers.dstack.fleet import Fleet, NodeRange, NoFleet
from cloudrl.providers.dstack.plan import fleet_for, make_plan, with_price
from cloudrl.providers.dstack.provider import DstackProvider
from cloudrl.spec import Cluster

LAB = Cluster(name="lab", nodes=2)


class TestBeforeTheStart:
    @pytest.mark.parametrize(
        ("there", "said", "hint"),
        [
            ({}, "a run 'lab' already exists: running", "cloudrl down lab"),
            ({"user": "alice"}, "user 'alice' has a run 'lab' in project 'main'", "name: --cluster lab-2"),
            ({"status": "terminating"}, "still ending", "Try again when it is gone"),
        ],
    )
    def test_a_name_that_is_taken(self, dstack: FakeDstack, there: dict[str, Any], said: str, hint: str) -> None:
        dstack.held_runs, dstack.held_fleets = [run(**there)], [fleet()]
        with pytest.raises(InputError, match=said) as caught:
            make_plan(Cluster(name="lab")).priced()
        assert hint in str(caught.value.hint)

    @pytest.mark.parametrize("there", [{"status": "terminated"}, {"status": "done", "user": "alice"}])
    def test_a_run_that_is_over_is_in_nobodys_way(self, dstack: FakeDstack, there: dict[str, str]) -> None:
        dstack.held_runs, dstack.held_fleets = [run(**there)], [fleet()]
        assert make_plan(Cluster(name="lab")).priced().price is not None

    @pytest.mark.parametrize(
        ("there", "nodes", "named", "said"),
        [
            ([], 2, [], "project 'main' has no fleet that it may run on"),
            ([fleet("small"), fleet("other")], 2, [], "or can get such a machine (there is: small, other)"),
            ([fleet("apart", placement="any")], 2, [], "placement: cluster, which apart does not have"),
            ([fleet("apart", placement="any")], 1, [], "such a machine (there is: apart)"),
            ([fleet("apart", placement="any"), fleet("near")], 2, ["near"], "(there is: near)"),
        ],
    )
    def test_why_there_is_no_machine(
        self, dstack: FakeDstack, there: list[Any], nodes: int, named: list[str], said: str
    ) -> None:
        """A new fleet is proposed unless the cluster names those that it may run on."""
        dstack.held_fleets, dstack.prices = there, []
        section = {"fleets": named} if named else {}
        plan = make_plan(Cluster(name="lab", nodes=nodes, dstack=section))
        with pytest.raises(CapacityError) as caught:
            plan.priced()
        assert said in caught.value.message
        assert caught.value.exit_code == 3
        assert isinstance(caught.value, NoFleet) is not bool(named)

    @pytest.mark.parametrize(
        ("there", "section", "said"),
        [
            (fleet(spot_policy="spot"), {}, "has spot machines and the cluster asks for on-demand ones"),
            (fleet(), {"spot_policy": "spot"}, "has on-demand machines and the cluster asks for spot ones"),
            (fleet(spot_policy="auto", spots=[True, True]), {}, "has spot machines and the cluster asks for on-demand"),
            (fleet(spot_policy="auto", spots=[True, False]), {}, ""),
            (fleet(spot_policy="spot"), {"spot_policy": "auto"}, ""),
            (fleet(ssh=True), {"spot_policy": "spot"}, ""),
        ],
    )
    def test_fleets_at_another_price(self, dstack: FakeDstack, there: Any, section: dict[str, str], said: str) -> None:
        dstack.held_fleets, dstack.prices = [there], []
        with pytest.raises(CapacityError) as caught:
            make_plan(Cluster(name="lab", dstack=section)).priced()
        assert ("machines and the cluster asks for" in caught.value.message) is bool(said)
        assert said in caught.value.message
        assert ("--set dstack.spot_policy=auto" in str(caught.value.hint)) is bool(said)

    @pytest.mark.parametrize(
        ("there", "said"),
        [
            (fleet(most=3, spots=[False, False]), "fleet gpu-fleet has 2 machines of at most 3"),
            (fleet(most=1), "fleet gpu-fleet has 0 machines of at most 1"),
            (fleet(most=4, spots=[False, False]), ""),
            (fleet(spots=[False, False]), ""),
        ],
    )
    def test_fleets_without_room(self, dstack: FakeDstack, there: Any, said: str) -> None:
        """Machines that are there do not fit, and not all nodes can be rented."""
        dstack.held_fleets = [there]
        plan = make_plan(Cluster(name="lab", nodes=2))
        if not said:
            assert plan.priced().price
            return
        with pytest.raises(NoFleet, match=said) as caught:
            plan.priced()
        assert "cloudrl fleet delete gpu-fleet" in str(caught.value.hint)

    @pytest.mark.parametrize(
        ("volumes", "backends", "said"),
        [(None, ["runpod"], True), (None, ["runpod", "aws"], False), ([], ["runpod"], False), (None, [], False)],
    )
    @pytest.mark.parametrize("is_named", [True, False])
    def test_fleets_that_cannot_mount_a_folder_of_the_host(
        self, dstack: FakeDstack, volumes: list[str] | None, backends: list[str], said: bool, is_named: bool
    ) -> None:
        """By the fleet's own backends, or by those of the project, as the fleets that `fleet create` makes."""
        dstack.held_fleets, dstack.prices = [fleet(backends=backends if is_named else ())], []
        dstack.held_backends = ["aws"] if is_named else backends
        with pytest.raises(CapacityError) as caught:
            make_plan(Cluster(name="lab", volumes=volumes)).priced()
        assert ("runpod cannot mount a folder of the host" in caught.value.message) is said
        assert ("--volume NAME:/checkpoints" in str(caught.value.hint)) is said

    @pytest.mark.parametrize("backend", ["remote", "aws"])
    def test_the_wish_that_a_machine_does_not_meet(self, dstack: FakeDstack, backend: str) -> None:
        dstack.held_fleets, dstack.prices = [fleet("rack", ssh=backend == "remote", spots=[False, False])], []
        for instance in dstack.held_fleets[0].instances:
            instance.backend.value = backend
        with pytest.raises(NoFleet) as caught:
            make_plan(Cluster(name="lab", nodes=2, gpu="80GB..:8", disk="8TB..")).priced()
        assert "10.0.0.0, 10.0.0.1: disk 4000GB, asked for 8192GB.." in caught.value.message
        assert "--set disk=4000GB.." in str(caught.value.hint)
        assert caught.value.own_fleets == (("rack",) if backend == "remote" else ())
        assert caught.value.fleet.disk == "8TB.."

    def test_a_disk_that_may_be_too_small_for_the_models(self, dstack: FakeDstack) -> None:
        dstack.held_fleets = [fleet()]
        plan = make_plan(Cluster(name="lab", nodes=2, gpu="80GB..:8", models=["Qwen/Qwen3-235B-A22B"])).priced()
        assert plan.price is not None
        [notice] = plan.price.notices
        assert "machines with 4.2 TB of disk may be taken" in notice.text or "4.3 TB" in notice.text, notice.text
        assert "--set disk=" in notice.hint
        small = make_plan(Cluster(name="lab", nodes=2, gpu="80GB..:8", models=["Qwen/Qwen3-32B"])).priced()
        assert small.price is not None
        assert small.price.notices == ()

    @pytest.mark.parametrize("there", [[], [fleet()]])
    @pytest.mark.parametrize(("nodes", "backends", "said"), [(2, ["lambda"], True), (1, ["lambda"], False)])
    def test_a_project_whose_clouds_run_one_node_only(
        self, dstack: FakeDstack, there: list[Any], nodes: int, backends: list[str], said: bool
    ) -> None:
        dstack.held_fleets, dstack.prices, dstack.held_backends = there, [], backends
        with pytest.raises(CapacityError) as caught:
            make_plan(Cluster(name="lab", nodes=nodes)).priced()
        assert ("lambda runs clusters of one node only" in caught.value.message) is said
        assert ("docs/clouds.md" in str(caught.value.hint)) is said

    def test_a_secret_that_is_not_set_and_the_file_that_asks_for_it(self, dstack: FakeDstack) -> None:
        dstack.held_secrets, dstack.held_fleets = ["HF_TOKEN"], [fleet()]
        said = r"lab\.dstack\.yml uses dstack secrets that project 'main' does not have: WANDB_API_KEY"
        with pytest.raises(InputError, match=said) as caught:
            make_plan(Cluster(name="lab", secrets=["HF_TOKEN", "WANDB_API_KEY"])).priced()
        assert caught.value.hint == "dstack secret set WANDB_API_KEY VALUE"

    def test_secrets_and_fleets_of_a_plan(self) -> None:
        section = {
            "registry_auth": {"username": "team-${{ secrets.WHO }}", "password": "${{ secrets.REGISTRY_PASSWORD }}"},
            "fleets": ["near", "team/far", {"name": "third"}],
        }
        plan = make_plan(Cluster(name="lab", secrets=["HF_TOKEN"], image="any", dstack=section))
        assert plan.secrets == ("HF_TOKEN", "WHO", "REGISTRY_PASSWORD")
        assert plan.fleets == ("near", "far", "third")
        assert [plan.render().count(f"secrets.{name} ") for name in plan.secrets] == [1, 1, 1]
        bare = make_plan(Cluster(name="lab"))
        assert (bare.secrets, bare.fleets) == ((), ())

    def test_a_limit_of_the_cost_of_machines_that_cost_nothing(self) -> None:
        with pytest.raises(InputError, match="would get cost nothing an hour") as caught:
            with_price(Cluster(name="lab", nodes=2, max_cost=200.0), 0.0)
        assert "price_per_hour" in str(caught.value.hint)


class TestThePrice:
    def test_is_asked_once_and_is_in_what_is_sent(
        self, dstack: FakeDstack, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        dstack.held_fleets = [fleet(idle_s=-1)]
        plan = DstackProvider().plan(Cluster(name="lab", nodes=2, max_cost=200.0))
        assert plan.needs_price
        assert plan.price is None
        assert dstack.asked == []
        priced = plan.priced()
        assert len(dstack.asked) == 1
        assert "--max-cost 200 \\\n      --price-per-hour 196.64" in priced.render()
        assert priced.cluster.price_per_hour == 196.64
        assert not priced.needs_price
        assert next(tmp_path.rglob("lab.dstack.yml")).read_text() == priced.render()
        assert priced.price is not None
        assert (priced.price.per_hour, priced.price.total_offers) == (196.64, 2)
        assert {(offer.gpu, offer.memory_bytes) for offer in priced.price.offers} == {("H100:80GB:8", 1900 << 30)}
        assert ["never gives all" in each.text for each in priced.price.notices] == [True]

        monkeypatch.setattr(provider, "await_ready", lambda *_: None)
        monkeypatch.setattr(DstackProvider, "attach", lambda *_, **__: "connected")
        assert DstackProvider().up(priced) == "connected"
        assert len(dstack.asked) == 1
        assert dstack.applied == [priced.answer]
        assert "--price-per-hour 196.64" in " ".join(priced.answer.run_spec.configuration.commands)
        dstack.held_runs.clear()
        assert DstackProvider().up(plan) == "connected"  # not priced: it is asked for now
        assert len(dstack.asked) == 2

    def test_the_agents_know_a_time_limit_that_the_server_sets(self, dstack: FakeDstack) -> None:
        """They end the cluster before it, so that dstack starts it again."""
        dstack.held_fleets, dstack.max_duration_s = [fleet(idle_s=-1)], 7200
        priced = DstackProvider().plan(Cluster(name="lab", nodes=2)).priced()
        assert (priced.facts.max_duration_s, priced.facts.is_started_again) == (7200.0, True)
        assert "max_duration: 7200s" in priced.text
        assert "--max-duration-s 7200" in " ".join(priced.answer.run_spec.configuration.commands)

    def test_and_one_of_the_task_stays_as_it_is(self, dstack: FakeDstack) -> None:
        dstack.held_fleets, dstack.max_duration_s = [fleet(idle_s=-1)], 7200
        plan = DstackProvider().plan(Cluster(name="lab", nodes=2, dstack={"max_duration": "2h"}))
        assert plan.priced().text == plan.text

    def test_no_machine_and_no_fleet(self, dstack: FakeDstack) -> None:
        plan = DstackProvider().plan(Cluster(name="lab", nodes=2, gpu="H100:8", dstack={"regions": ["us"]}))
        with pytest.raises(NoFleet, match="has no fleet that it may run on") as caught:
            plan.priced()
        assert caught.value.fleet == Fleet(
            name="lab-fleet", nodes="0..3", gpu="H100:8", idle_duration="5m", dstack={"regions": ["us"]}
        )
        assert caught.value.cluster.dstack == {"regions": ("us",), "fleets": ("lab-fleet",)}


class TestBeforeAnythingIsPaid:
    def test_ssh_has_to_be_there(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("PATH", str(tmp_path))
        with pytest.raises(CloudrlError, match="there is no ssh on this machine"):
            DstackProvider().up(make_plan(LAB))

    def test_detach_false_is_refused(self) -> None:
        with pytest.raises(InputError, match="outlives this program") as caught:
            DstackProvider().up(make_plan(LAB), detach=False)
        assert 'with cluster.up(on="dstack") as ray' in str(caught.value.hint)


@pytest.mark.parametrize(
    ("cpu", "device", "most"),
    [(20, "gpu", 20), ("x86:8..16", "gpu", 16), ("26..", "gpu", 0), (None, "gpu", 0), (4, "cpu", 0)],
)
def test_no_more_cpus_than_were_asked_for(cpu: object, device: str, most: int) -> None:
    """Of a lower bound alone the machines may have more, and on CPUs Ray counts slots."""
    gpu = "80GB..:8" if device == "gpu" else None
    assert make_plan(Cluster.load({"name": "lab", "gpu": gpu, "cpu": cpu})).facts.cpus_per_node == most


def test_a_fleet_that_fits_costs_nothing_before_and_little_after() -> None:
    cluster = Cluster(
        name="a" * 41,
        nodes=4,
        gpu="H100:8",
        dstack={"regions": ["us-east-1"], "max_price": 99.0, "spot_policy": "spot", "priority": 5},
    )
    fleet = fleet_for(cluster)
    assert fleet.node_range == NodeRange(min=0, target=0, max=5)  # room for a replacement
    assert (fleet.gpu, fleet.placed) == ("H100:8", "cluster")
    assert fleet.dstack == {"regions": ("us-east-1",), "max_price": 99.0, "spot_policy": "spot"}
    assert fleet.idle_after == "5m"
    assert len(fleet.name) <= 41
