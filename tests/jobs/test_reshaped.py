"""A durable job that goes on with another number of GPUs: its command, its record, and what is refused before."""

import shlex
from dataclasses import replace
from typing import Any

import pytest

import cloudrl
from cloudrl.errors import InputError
from cloudrl.jobs.reshaped import reshape
from cloudrl.protocol.durable_jobs import DurableJob, Outcome, Result
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.folders import ON_HEAD
from cloudrl.testing import FakeCluster
from cloudrl.verl.command import overrides_of

JOB = cloudrl.recipe("grpo-tiny")


def left_on(nodes: int, overrides: dict[str, Any] | None = None) -> DurableJob:
    """A job as a cluster of so many nodes with one place each has recorded it."""
    fake = FakeCluster(nodes=nodes)
    cloudrl.RunningCluster(fake.connection()).submit(JOB, overrides, durable=True, name="one", steps=12)
    [left] = fake.durable_jobs.values()
    return left


def facts(nodes: int, **changes: Any) -> ClusterFacts:
    found = cloudrl.RunningCluster(FakeCluster(nodes=nodes).connection()).facts()
    return replace(found, **{"provider": "dstack", "is_one_machine": False, "device": "cpu", **changes})


def shape(job: DurableJob) -> tuple[str, str]:
    values = overrides_of(str(job.request["entrypoint"]))
    return values["trainer.nnodes"], values["trainer.n_gpus_per_node"]


def test_it_takes_all_of_another_cluster() -> None:
    before = left_on(2)
    again = reshape(before, facts(1))
    assert (again.world_size, again.training_nodes, shape(again)) == (1, 0, ("1", "1"))
    assert shape(reshape(again, facts(2))) == shape(before) == ("2", "1")
    assert reshape(before, facts(2)) == before


def test_or_as_many_nodes_as_asked_for_and_the_agents_are_told() -> None:
    again = reshape(left_on(2), facts(2, is_one_machine=True), nodes=1)
    assert (again.world_size, again.training_nodes, again.is_placed) == (1, 1, False)


def test_on_disks_of_their_own_its_command_has_to_say_which() -> None:
    before, cluster = left_on(2), facts(2, places_training=True)
    with pytest.raises(InputError, match="1 of 2 nodes, whose disks are their own"):
        reshape(before, cluster, nodes=1)
    words = shlex.split(before.request["entrypoint"])
    placed = replace(before, request={**before.request, "entrypoint": shlex.join([*words[:2], ON_HEAD, *words[2:]])})
    assert reshape(placed, cluster, nodes=1).is_placed


def test_what_its_user_has_chosen_stays() -> None:
    before = left_on(1, {"trainer.nnodes": 1})
    assert reshape(before, facts(3, is_one_machine=True)).world_size == 1


def test_what_the_cluster_has_not_is_refused_with_both_numbers() -> None:
    before = left_on(2)
    with pytest.raises(InputError, match=r"takes 4 nodes with 1 GPUs each, and cluster .* has 2 with 1") as caught:
        reshape(before, facts(2), nodes=4)
    assert caught.value.hint == f"cloudrl jobs resume {before.job_id} --nodes 2"


def test_a_batch_that_the_ranks_do_not_divide_is_refused_with_one_that_they_do() -> None:
    before = left_on(2)
    with pytest.raises(InputError, match="cannot go on with the GPUs of cluster") as caught:
        reshape(before, facts(7))
    hint = str(caught.value.hint)
    assert hint.startswith(f"cloudrl jobs resume {before.job_id} ")
    fix = dict(word.split("=", 1) for word in shlex.split(hint)[4:])
    assert fix
    assert reshape(before, facts(7), overrides=fix).world_size == 7


def test_a_mode_whose_queue_is_part_of_the_step() -> None:
    before = left_on(2)
    words = [*shlex.split(before.request["entrypoint"]), "trainer.v1.trainer_mode=colocate_async"]
    before = replace(before, request={**before.request, "entrypoint": shlex.join(words)})
    with pytest.raises(InputError, match="has 2 ranks, and 1 would go on"):
        reshape(before, facts(1))


def test_it_is_left_with_the_agents_under_another_id() -> None:
    fake = FakeCluster(nodes=2)
    ray = cloudrl.RunningCluster(fake.connection())
    ray.submit(JOB, durable=True, name="one", steps=12, overrides={"trainer.save_freq": -1})
    [left] = fake.durable_jobs.values()
    fake.durable_jobs = {left.job_id: replace(left, outcome=Outcome(Result.FAILED, "it failed", 1.0))}

    job = ray.resume(left.job_id, {"trainer.total_training_steps": 20}, nodes=2)

    again = fake.durable_jobs[job.submission_id]
    assert (again.run, again.world_size, again.total_steps, again.outcome) == ("one", 2, 20, None)
    assert "trainer.total_training_steps=20" in again.request["entrypoint"]
