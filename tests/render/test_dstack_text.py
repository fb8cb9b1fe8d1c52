"""What a cluster's YAML says: its bytes, its image, its comments, and what is refused."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
import yaml
from dstack._internal.core.models.configurations import TaskConfiguration
from dstack_task import parsed

from cloudrl.errors import SpecError
from cloudrl.protocol.options import AgentOptions
from cloudrl.render import to_dstack
from cloudrl.spec import Cluster
from cloudrl.verl import RELEASE

RESOURCES = ("gpu", "cpu", "memory", "disk", "shm_size")


GOLDEN = {
    "everything": Cluster(
        name="everything",
        nodes=4,
        image="localhost:5000/mine@sha256:00",
        user="1000:1000",
        setup=["apt-get update && apt-get install -y git", "pip install 'a[b]==1.0'", "- odd"],
        services=["8000:cd /work && bash 'launch it.sh'"],
        env={"NCCL_DEBUG": "INFO", "NO": "on", "PRICE": "$5", "TWO": "a\nb"},
        gpu="amd:MI300X:8",
        cpu="x86:128..",
        memory="1TB..",
        disk="2TB..",
        shm_size="0.5TB",
        data=["gsm8k", "math"],
        models=["Qwen/Qwen3-32B", "/models/my model"],
        checkpoints="/scratch/checkpoints",
        volumes=["/big:/scratch", "/hf:/root/.cache/huggingface"],
        down_when_idle="30m",
        max_cost=200,
        price_per_hour=49.2,
    ),
    "smallest": Cluster(name="no", volumes=[]),
    "python": Cluster(name="python", python="3.12", gpu="24GB:1..4", cpu=8),
    "policies": Cluster(
        name="policies",
        nodes=2,
        verl="0.9.1",
        rollout="sglang",
        user="root",
        privileged=True,
        shell="bash",
        working_dir="/work",
        env={"NCCL_DEBUG": "INFO"},
        secrets=["HF_TOKEN", "WANDB_API_KEY"],
        ports=["9265:8265", 6006],
        gpu="80GB..:8",
        shm_size="128GB",
        volumes=[
            "ckpt-${{ dstack.node_rank }}:/checkpoints",
            {"name": ["aws-hf", "gcp-hf"], "path": "/hf"},
            {"instance_path": "/fast", "path": "/fast", "optional": True},
        ],
        fleets=["gpu-fleet", "main/shared"],
        instances=["gpu-fleet-0", "gpu-fleet-1"],
        backends=["aws", "gcp"],
        regions=["us-east-1"],
        availability_zones=["us-east-1a"],
        instance_types=["p5.48xlarge"],
        reservation="cr-0123",
        spot_policy="auto",
        max_price=98.5,
        creation_policy="reuse",
        idle_duration="10m",
        retry={"on_events": ["interruption", "error"], "duration": "4h"},
        max_duration="3d",
        stop_duration="10m",
        utilization_policy={"min_gpu_utilization": 10, "time_window": "1h"},
        schedule="0 8 * * mon-fri",
        priority=50,
        startup_order="master-first",
        stop_criteria="all-done",
        tags={"team": "rl"},
    ),
    "private-image": Cluster(
        name="private-image",
        image="registry.example.com/mine:1",
        registry_auth={"username": "me", "password": "${{ secrets.REGISTRY_PASSWORD }}"},
        rollout="vllm",
        gpu="H100:8",
        retry=False,
    ),
}


def test_a_cost_is_not_limited_without_a_price():
    with pytest.raises(SpecError, match="max_cost 200 needs the price of the cluster") as caught:
        to_dstack(Cluster(name="one", max_cost=200))
    assert caught.value.hint is not None
    assert "--price-per-hour" in caught.value.hint


# What dstack has and a cluster does not, and why.
LEFT_OUT = {
    "entrypoint": "the agent is what runs",
    "commands": "the agent is what runs; `setup` holds the user's",
    "files": "the agent; the user's own files travel with a job",
    "repos": "the user's own code travels with a job",
    "single_branch": "as above",
    "docker": "no training runs in Docker within Docker",
    "dstack": "it would give every process of the run rights on the server",
    "groups": "all nodes are equal: verl counts so many GPUs on each",
    "backend_options": "one of its own for each backend; --profile of `dstack apply` takes them",
    "home_dir": "without effect in dstack",
    "type": "always task",
}
OURS = {
    "verl", "rollout", "secrets", "services", "data", "models", "checkpoints",
    "down_when_idle", "max_cost", "price_per_hour", *RESOURCES,
}  # fmt: skip


def test_a_cluster_has_every_field_of_a_dstack_task_but_these():
    assert set(TaskConfiguration.model_fields) - set(Cluster.model_fields) == set(LEFT_OUT) | {"resources"}
    assert set(Cluster.model_fields) - set(TaskConfiguration.model_fields) == OURS


@pytest.mark.parametrize("name", GOLDEN)
def test_rendered_bytes(name, golden, repository):
    golden(repository / "tests" / "golden" / f"{name}.dstack.yml", to_dstack(GOLDEN[name]))
    assert to_dstack(GOLDEN[name]) == to_dstack(GOLDEN[name].replace())


def test_a_private_image_is_pulled_with_a_secret():
    auth = parsed(GOLDEN["private-image"]).registry_auth
    assert (auth.username, auth.password) == ("me", "${{ secrets.REGISTRY_PASSWORD }}")


def agent_options(**fields: Any) -> AgentOptions:
    (command,) = parsed(Cluster(name="one", **fields)).commands
    return AgentOptions.from_argv(shlex.split(command.replace("\\\n", ""))[4:])


def test_the_release_image_brings_its_install_command_and_import_check():
    options = agent_options(gpu="8", setup=["mine"])
    assert options.setup == (*RELEASE.install, "mine")
    assert options.import_check == ("numpy", "torch", "vllm")


def test_of_another_image_the_rollout_engine_is_not_known():
    options = agent_options(gpu="8", image="mine:1")
    assert options.setup == ()
    assert options.import_check == ("numpy", "torch")

    assert agent_options(gpu="8", image="mine:1", rollout="sglang").import_check == (
        "numpy",
        "torch",
        "sglang",
    )


@pytest.mark.parametrize("gpu", [None, 0])
def test_without_gpus_a_node_offers_one_place_and_the_device_is_cpu(gpu):
    options = agent_options(image="mine:1", gpu=gpu)
    assert (options.device, options.gpus, options.import_check) == ("cpu", 1, ())


@pytest.mark.parametrize(
    ("fields", "rendered"),
    [
        ({"gpu": "80GB:8"}, "nvidia:80GB:8"),
        ({"gpu": "8"}, "nvidia:8"),
        ({"gpu": "H100:8"}, "H100:8"),
        ({"gpu": "amd:192GB:8"}, "amd:192GB:8"),
        ({"gpu": "192GB:8", "image": "mine:1"}, "192GB:8"),
        ({"gpu": 0}, 0),
    ],
)
def test_an_image_for_one_vendor_gets_no_gpus_of_another(fields, rendered):
    """dstack would give MI300X to `192GB:8`, and the image could not use them."""
    text = yaml.safe_load(to_dstack(Cluster(name="one", **fields)))
    assert text["resources"]["gpu"] == rendered


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"verl": "0.5.0"}, "no image is known for verl 0.5.0"),
        ({"verl": "0.8.0", "gpu": "MI300X:8"}, "no image is known for verl 0.8.0 on GPUs of 'amd'"),
        ({"gpu": "tpu:8"}, "no image is known for verl 0.9.1 on GPUs of 'google'"),
    ],
)
def test_what_no_image_is_known_for_is_refused(fields, message):
    with pytest.raises(SpecError) as caught:
        to_dstack(Cluster(name="one", **fields))
    assert caught.value.message.startswith(message)
    assert caught.value.hint
    assert to_dstack(Cluster(name="one", image="mine:1", **fields))


@pytest.mark.parametrize("name", ["HF_TOKEN", "WANDB_API_KEY", "AWS_SECRET_ACCESS_KEY", "my_password"])
@pytest.mark.parametrize("value", ["s3cret", "/s3cret+base64=="])
def test_the_value_of_a_secret_stands_in_no_file(name, value):
    with pytest.raises(SpecError) as caught:
        to_dstack(Cluster(name="one", env={name: value}))
    assert caught.value.message == f"env {name}: the value of a secret would stand in the file"
    assert f"secrets: [{name}]" in caught.value.hint
    assert "s3cret" not in str(caught.value)
    rendered = to_dstack(Cluster(name="one", secrets=[name]))
    assert f"  {name}: ${{{{ secrets.{name} }}}}\n" in rendered


@pytest.mark.parametrize(
    "name",
    [
        "HF_TOKEN_PATH",
        "AWS_SHARED_CREDENTIALS_FILE",
        "AWS_WEB_IDENTITY_TOKEN_FILE",
        "GOOGLE_APPLICATION_CREDENTIALS",
        "secrets_dir",
    ],
)
def test_the_path_of_a_secret_may_stand_there(name):
    text = yaml.safe_load(to_dstack(Cluster(name="one", env={name: "/run/secrets/file"})))
    assert text["env"] == {name: "/run/secrets/file"}


def test_a_name_that_only_has_a_file_in_it_is_no_path():
    for name in ("FILE_API_KEY", "MY_GOOGLE_APPLICATION_CREDENTIALS", "PATH_TOKEN"):
        with pytest.raises(SpecError):
            to_dstack(Cluster(name="one", env={name: "/x"}))


def test_the_header_says_where_ray_is():
    assert "dashboard is at localhost:9265.\n" in to_dstack(Cluster(name="one", ports=["9265:8265"]))
    assert "dashboard is at the local port that dstack prints for 8265.\n" in to_dstack(
        Cluster(name="one", ports=["*:8265"])
    )


def test_a_choice_that_is_not_ours_has_no_comment_that_praises_it():
    text = to_dstack(
        Cluster(name="one", startup_order="workers-first", stop_criteria="all-done", retry=False)
    )
    assert "# A lost node ends the run.\nretry: false\n" in text
    for words in ("All nodes set up", "no other node may stay"):
        assert words not in text


def test_a_range_of_gpus_is_left_to_what_dstack_gives():
    assert agent_options(gpu="80GB:1..8").gpus is None
