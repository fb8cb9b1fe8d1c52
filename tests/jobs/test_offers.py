"""Whether a job fits on each of the machines that are offered."""

from __future__ import annotations

from dataclasses import replace

from planning import cluster, job, planned

from cloudrl.errors import InputError
from cloudrl.jobs.offers import verdicts_by_offer
from cloudrl.jobs.submission import Submission
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.providers.model import Offer

GIB = 1 << 30
H100 = Offer("aws", "us-east-1", "p5", "8xH100", 98.0, spot=False, gpu="H100:80GB:8", memory_bytes=2048 * GIB)
FACTS = cluster(gpu="80GB:8")
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
LONG = {
    f"{ACTOR}.use_dynamic_bsz": False, f"{ACTOR}.ppo_micro_batch_size_per_gpu": 8, "data.max_response_length": 16384,
    f"{ROLLOUT}.log_prob_micro_batch_size_per_gpu": 8,
}  # fmt: skip


def said(*offers: Offer, facts: ClusterFacts = FACTS) -> list[str]:
    def plan_on(at: ClusterFacts) -> Submission:
        return planned(job(), at, overrides=LONG, unchecked=True)

    return list(verdicts_by_offer(offers, facts, plan_on))


def test_a_larger_gpu_than_was_planned_with() -> None:
    """`80GB:8` counts as the smallest GPU of that size; the offer has twice as much."""
    h200 = replace(H100, backend="runpod", gpu="H200:141GB:8")
    [before] = said(replace(H100, gpu="A100:40GB:8"))
    assert before.startswith("on A100 of 40 GB of aws: memory: ")
    assert "It fits with: " in before
    found = said(H100, h200, replace(h200, backend="lambda"), h200)
    assert [each for each in found if each.startswith("on H200 of runpod, lambda: memory: ")]


def test_machines_with_the_same_verdict_are_one_sentence() -> None:
    """Clouds put unlike amounts of memory beside the same GPU; those that are too small are told apart."""
    offers = [
        replace(H100, backend=name, memory_bytes=gib * GIB) for name, gib in (("aws", 32), ("gcp", 32), ("oci", 40))
    ]
    facts = cluster(gpu="H100:80GB:8")
    [sentence] = said(*offers, facts=facts)
    assert sentence.startswith("on H100 of 80 GB of aws, gcp, oci: memory: does not fit: memory of a node")
    [sentence] = said(H100, replace(H100, memory_bytes=32 * GIB), facts=facts)
    assert sentence.startswith("on H100 of 80 GB of aws (34.4 GB of memory): memory: does not fit")


def test_the_machine_that_was_planned_with_says_nothing() -> None:
    assert said(H100, facts=cluster(gpu="H100:80GB:8", memory_bytes=2048 * GIB)) == []


def test_a_machine_with_too_little_memory_of_its_own() -> None:
    [sentence] = said(replace(H100, memory_bytes=32 * GIB), facts=cluster(gpu="H100:80GB:8"))
    assert sentence.endswith(" --set memory=100GB..")


def test_an_offer_without_gpus_and_a_card_that_nobody_knows() -> None:
    assert (
        said(
            replace(H100, gpu=""),
            replace(H100, gpu="Unheard:1GB:1", memory_bytes=0),
            facts=cluster(gpu="Unheard:1GB:8"),
        )
        == []
    )


def test_a_card_on_which_the_job_would_be_refused() -> None:
    def plan_on(at: ClusterFacts) -> Submission:
        if at.gpu.startswith("V100"):
            raise InputError("a V100 has no bf16\nmore")
        return planned(job(), at)

    [sentence] = verdicts_by_offer([replace(H100, gpu="V100:16GB:8")], cluster(gpu="H100:80GB:8"), plan_on)
    assert sentence == "on V100 of 16 GB of aws: a V100 has no bf16"


def test_few_kinds_of_machines_are_looked_at() -> None:
    """A server may have hundreds of offers."""
    looked = list[str]()

    def plan_on(at: ClusterFacts) -> Submission:
        looked.append(at.gpu)
        return planned(job(), at)

    offers = [replace(H100, gpu=f"H100:80GB:{count}") for count in range(1, 30)]
    list(verdicts_by_offer(offers, cluster(gpu="H100:80GB:8"), plan_on))
    assert len(looked) == 7
