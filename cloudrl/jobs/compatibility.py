"""Whether a job and a cluster fit: what cannot work is refused before it costs anything."""

from collections.abc import Mapping

from cloudrl.data.rewards import reward_of
from cloudrl.errors import InputError, Refusals
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.findings import Finding
from cloudrl.jobs.run_checks import check_variables
from cloudrl.jobs.services import check_own_search, check_services
from cloudrl.protocol.data_sets import BUILT_IN
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.spec import Gpu, Job
from cloudrl.spec.cluster import ROLLOUTS
from cloudrl.verl import keys
from cloudrl.verl.keys import brings_scores, has_key, release_number
from cloudrl.verl.memory.cards import vendor_of
from cloudrl.verl.placement import check_queue, check_replicas, check_shape
from cloudrl.verl.tool_agent import check_tool_agent


def check_compatibility(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: refuse what cannot work; say what the user should know of running this job there."""
    job, cluster, values = draft.asked, draft.cluster, draft.values
    written = {upload.to: upload.text for upload in draft.uploads}
    typed = {key: written.get(value, value) for key, value in values.items()}
    refused, notes = Refusals(), list[str]()
    for check in (
        lambda: check_shape(values, cluster),
        lambda: check_replicas(values, cluster),
        lambda: _check_rollout(job, cluster),
        lambda: check_queue(job, values, cluster),
        lambda: check_services(job, draft.variables, cluster),
        lambda: check_own_search(values, cluster),
        lambda: _device_notes(job, cluster),
        lambda: _release_notes(job, cluster),
        lambda: _shape_notes(job, cluster),
        lambda: _check_scored(job, cluster, values),
        lambda: check_tool_agent(typed, cluster, lambda path: snapshot.files.at(path).source),
    ):
        with refused.collect():
            notes += check() or ()
    if not has_key(cluster.verl_version, keys.RESUME_MODE):
        notes.append(
            f"verl {cluster.verl_version} cannot resume a run: one that is interrupted starts over from its model"
        )
    draft = draft.noting(*notes).refused(*refused)
    for remark in check_variables(draft.variables, vendor_of(cluster.gpu) if cluster.device != "cpu" else None):
        draft = draft.refused(remark) if isinstance(remark, Finding) else draft.warning(remark)
    return draft


def _device_notes(job: Job, cluster: ClusterFacts) -> list[str]:
    known = cluster.has_agents  # only our agent knows what a node computes on
    if job.device == "gpu" and cluster.device == "cpu" and known:
        raise InputError(
            f"recipe {job.name!r} computes on GPUs, and cluster {cluster.name!r} on CPUs",
            hint="Recipes for CPUs, such as grpo-tiny: cloudrl recipes list\nIn a recipe of your own: device: cpu",
        )
    if job.device == "cpu" and cluster.device == "gpu" and known:
        return [f"recipe {job.name!r} computes on the CPU; the GPUs of cluster {cluster.name!r} stay idle"]
    return []


def _release_notes(job: Job, cluster: ClusterFacts) -> list[str]:
    """Keys are renamed between releases of verl; between patches of one release they have not been."""
    wanted, actual = job.verl, cluster.verl_version
    if wanted is None or actual is None or wanted == actual:
        return []
    differ = f"recipe {job.name!r} is written for verl {wanted}, and cluster {cluster.name!r} has {actual}"
    if is_for_another_release(job, cluster):
        raise InputError(
            differ,
            hint=f"Take a recipe for verl {actual}, an image with verl {wanted}, or send it along: "
            "--working-dir FOLDER",
        )
    return [differ]


def is_for_another_release(job: Job, cluster: ClusterFacts) -> bool:
    """Whether the recipe's keys may be others than those of the cluster's verl."""
    wanted, actual = job.verl, cluster.verl_version
    return None not in (wanted, actual) and release_number(wanted) != release_number(actual)


def _check_rollout(job: Job, cluster: ClusterFacts) -> None:
    """An engine is imported minutes after the start, in an actor of its own."""
    if job.rollout in ROLLOUTS and cluster.rollouts and job.rollout not in cluster.rollouts:
        raise InputError(
            f"recipe {job.name!r} generates with {job.rollout}, and the image of cluster {cluster.name!r} has "
            f"{', '.join(cluster.rollouts)}",
            hint=f"Choose its image when you start the cluster: --set rollout={job.rollout}\n"
            f"Or use a recipe for {cluster.rollouts[0]}: cloudrl recipes list",
        )


def _check_scored(job: Job, cluster: ClusterFacts, values: Mapping[str, str]) -> None:
    """For rows of an unknown source, verl raises NotImplementedError in step 1 (data/rewards.py)."""
    brings_its_own = any(map(brings_scores, values)) or is_for_another_release(job, cluster)
    if brings_its_own or keys.MAIN not in job.entrypoint or release_number(cluster.verl_version) < (0, 2):
        return
    for name in job.data:
        source = BUILT_IN[name].load().DATA_SOURCE if name in BUILT_IN else None
        if source is None or reward_of(source) is not None:
            continue
        if ours := BUILT_IN[name].reward:
            raise InputError(
                f"verl has no reward function for data set {name!r}, and the job names none",
                hint=f"Use the one that comes with cloudrl: {keys.REWARD_PATH}={ours}",
            )
        raise InputError(
            f"data set {name!r} is for Search-R1's fork of verl: verl itself has no reward function for its data "
            f"source {source!r}",
            hint=f"The same questions for verl's tool agent, for which recipe search-grpo is: --data {name}_tool\n"
            "With the fork: cloudrl submit search-r1 --working-dir ./Search-R1",
        )


def _shape_notes(job: Job, cluster: ClusterFacts) -> list[str]:
    """Batch sizes and parallelism are made for a number of GPUs; another one may fit or not."""
    nodes, gpus = job.nodes or cluster.gpu_nodes, Gpu.exact_count(job.gpu) or cluster.gpus_per_node
    if job.device == "cpu" or (nodes, gpus) == (cluster.gpu_nodes, cluster.gpus_per_node):
        return []
    tuned = f"recipe {job.name!r} was tuned for {nodes} node{'s' * (nodes > 1)} with {gpus} GPUs"
    actual = f"cluster {cluster.name!r} has {cluster.gpu_nodes} with {cluster.gpus_per_node}"
    return [f"you may need other batch sizes: {tuned}, {actual}"]
