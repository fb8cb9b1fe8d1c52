"""Which jobs the agents carry through by default, and what is said of the others."""

from dataclasses import replace
from typing import Any

import pytest
from planning import NOW, PLAIN, SFT_RAY, cluster, job

from cloudrl.errors import InputError
from cloudrl.jobs import Submission, SubmitOptions, plan_job
from cloudrl.jobs.draft import Machines, Neighbour, Snapshot
from cloudrl.jobs.local_files import inspect_files
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.spec import Job

SAVES = {"trainer.save_freq": 10}
TRAINER = job(overrides={**job().overrides, **SAVES})
OWN_PATHS = {
    "data.train_files": "/d/a.parquet", "data.val_files": "/d/b.parquet", "trainer.default_local_dir": "/c",
    "actor_rollout_ref.model.path": "/m",
}  # fmt: skip
SCRIPT = job(entrypoint=["bash", "train.sh"])
TRAINING = Neighbour("job other", is_exclusive=True)
BESIDE = Neighbour("job other")
NOTE = "this job is not started again if a machine is lost: "


def planned(
    job_: Job = TRAINER, view: ClusterFacts | None = None, options: dict[str, Any] | None = None, **looked: Any
) -> Submission:
    asked = SubmitOptions(**(options or {}))
    return plan_job(job_, asked, Snapshot(view or cluster(), inspect_files(job_, asked), now=NOW, **looked))


HARD: tuple[tuple[str, Job, ClusterFacts, dict[str, Any], str, str], ...] = (
    (
        "no agents", job(data=[], model=None, overrides={**TRAINER.overrides, **OWN_PATHS}), cluster(**PLAIN), {},
        "cluster 'lab' has no agents", "--cluster NAME",
    ),
    (
        "the user chooses the step", TRAINER, cluster(), {"overrides": {"trainer.resume_mode": "disable"}},
        "it sets trainer.resume_mode, but each attempt goes on from", "Leave out trainer.resume_mode",
    ),
    (
        "the user chooses the folder", TRAINER, cluster(), {"overrides": {"trainer.default_local_dir": "/mine"}},
        "it sets trainer.default_local_dir", "Leave out trainer.default_local_dir",
    ),
    (
        "a secret in memory", TRAINER, cluster(secrets_dir="/dev/shm/x", ray_version="2.60.0"),
        {"env": {"MY_TOKEN": "secret-of-this-test"}}, "MY_TOKEN would be in the nodes' memory alone",
        "under `secrets:`",
    ),
    (
        "a secret for Ray", TRAINER, cluster(), {"env": {"MY_TOKEN": "secret-of-this-test"}},
        "MY_TOKEN would be in the nodes' memory alone", "under `secrets:`",
    ),
    (
        "a secret in the command", TRAINER, cluster(), {"overrides": {"+trainer.my_api_key": "secret-of-this-test"}},
        "trainer.my_api_key is part of the command", "under `secrets:`",
    ),
    (
        "some of the nodes, with another image", TRAINER, cluster(nodes=3, provider="dstack"),
        {"overrides": {"trainer.nnodes": 1}, "env": {"PYTHONPATH": "/mine"}},
        "it trains on 1 of 3 nodes, whose disks are their own", "trainer.nnodes=3",
    ),
)  # fmt: skip
"""What prevents it: refused with --durable."""

SOFT: tuple[tuple[str, Job, ClusterFacts, dict[str, Any], tuple[Neighbour, ...], str, str], ...] = (
    ("older agents", TRAINER, cluster(divides_nodes=False), {}, (), "are of an older release", "cloudrl down lab"),
    ("a debugger", TRAINER, cluster(), {"debug": "pdb"}, (), "with --debug a task may wait for you", "--durable"),
    ("a script", SCRIPT, cluster(), {}, (), "the steps of `bash train.sh` are unknown", "--durable"),
    (
        "several runs", job(entrypoint=[*job().entrypoint, "--multirun"]), cluster(), {}, (),
        "the steps of `python3 -m verl.trainer.main_ppo ...` are unknown", "--durable",
    ),
    (
        "fine-tuning", job(entrypoint=SFT_RAY, overrides={}), cluster(), {"overrides": {"data.train_files": "/d/m"}},
        (), "verl.trainer.sft_trainer_ray` are unknown", "--durable",
    ),
    (
        "no saves", TRAINER, cluster(), {"overrides": {"trainer.save_freq": -1}}, (), "it saves nothing",
        "trainer.save_freq=10",
    ),
    (
        "validation alone", TRAINER, cluster(), {"overrides": {"trainer.val_only": True}}, (),
        "trainer.val_only has it", "--durable",
    ),
    ("a driver", TRAINER, cluster(), {}, (BESIDE,), "job other runs on the cluster", "--queue"),
    (
        "a trainer without a queue of samples", TRAINER, cluster(),
        {"overrides": {"trainer.use_v1": False}}, (TRAINING,), "job other runs on the cluster", "--queue",
    ),
)  # fmt: skip
"""What speaks against it; with --durable it goes through."""


def test_a_trainer_that_saves_is_durable_and_all_of_it_is_as_with_the_option() -> None:
    by_default, asked = planned(), planned(options={"durable": True})

    assert by_default.durable is not None
    assert by_default.durable == asked.durable
    assert by_default.request() == asked.request()
    assert by_default.notes == asked.notes
    assert "after a loss (--no-durable: once)" in by_default.render()
    assert by_default.sent_before()["durable"]["world_size"] == 16


@pytest.mark.parametrize(("job_", "view", "options", "reason", "remedy"), [row[1:] for row in HARD], ids=lambda _: "")
def test_what_prevents_it_is_one_note_and_an_error_for_whoever_asks(
    job_: Job, view: ClusterFacts, options: dict[str, Any], reason: str, remedy: str
) -> None:
    by_default = planned(job_, view, options)
    [note] = [note for note in by_default.notes if note.startswith(NOTE)]
    plain = planned(job_, view, {**options, "durable": False})

    assert by_default.durable is None
    assert reason in note
    assert remedy in note
    assert by_default.request() == plain.request(), "it goes as it would without the agents"
    assert not [note for note in plain.notes if note.startswith(NOTE)], "who says so needs no reason"
    with pytest.raises(InputError, match="--durable: ") as refused:
        planned(job_, view, {**options, "durable": True})
    assert reason in str(refused.value)


@pytest.mark.parametrize("row", SOFT, ids=[row[0] for row in SOFT])
def test_what_speaks_against_it_is_a_note_and_the_option_wins(row: tuple[Any, ...]) -> None:
    _, job_, view, options, running, reason, remedy = row
    by_default = planned(job_, view, options, running=running)
    [note] = [note for note in by_default.notes if note.startswith(NOTE)]

    assert by_default.durable is None
    assert reason in note
    assert remedy in note
    assert planned(job_, view, {**options, "durable": True}, running=running).durable is not None


def test_beside_another_training_it_stays_durable_and_is_refused_when_it_is_sent() -> None:
    assert planned(running=(TRAINING,)).durable is not None


def test_a_mirror_and_steps_that_stay_ask_for_a_durable_job() -> None:
    assert planned(options={"keep_every": 100}).durable is not None
    with pytest.raises(InputError, match=r"--keep-every: it sets trainer\.resume_mode"):
        planned(options={"keep_every": 100, "overrides": {"trainer.resume_mode": "disable"}})
    assert planned(options={"mirror": "/mnt/runs"}).durable is not None
    with pytest.raises(InputError, match="--mirror keeps copies of a durable job alone"):
        planned(options={"mirror": "/mnt/runs", "durable": False})
    with pytest.raises(InputError, match=r"--mirror: it sets trainer\.resume_mode"):
        planned(options={"mirror": "/mnt/runs", "overrides": {"trainer.resume_mode": "disable"}})


OWN = Machines(has_own_disks=True)


@pytest.mark.parametrize(
    ("nodes", "provider", "machines", "options", "said"),
    [
        (
            1,
            "dstack",
            None,
            {},
            "unless /checkpoints is on a network volume. Copies in a folder or bucket: --mirror URL",
        ),
        (1, "dstack", OWN, {}, "are lost with it. Copies in a folder or bucket: --mirror URL"),
        (1, "dstack", replace(OWN, has_own_disks=False), {}, ""),
        (1, "dstack", OWN, {"mirror": "/mnt/runs"}, ""),
        (1, "local", None, {}, ""),
        (1, "slurm", None, {}, ""),
        (2, "dstack", OWN, {}, ""),
    ],
)
def test_what_only_one_machine_has_is_durable_in_part(
    nodes: int, provider: str, machines: Machines | None, options: dict[str, Any], said: str
) -> None:
    submission = planned(view=cluster(nodes=nodes, provider=provider), options=options, machines=machines)
    told = [note for note in submission.notes if note.startswith("if the only machine is lost")]

    assert submission.durable is not None
    assert bool(told) == bool(said)
    assert all(note.endswith(said) for note in told)
