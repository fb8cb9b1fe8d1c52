"""What a cluster's YAML says: its bytes, its image, its comments, and what is refused."""

from typing import Any

import pytest
import yaml
from dstack_task import agent_options, parsed

from cloudrl.errors import SpecError
from cloudrl.protocol.options import AgentOptions
from cloudrl.providers.dstack.task import to_dstack
from cloudrl.spec import Cluster
from cloudrl.verl.releases import RELEASE

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
    "python": Cluster(name="python", dstack={"python": "3.12"}, gpu="24GB:1..4", cpu=8),
    "policies": Cluster(
        name="policies",
        nodes=2,
        verl="0.9.1",
        rollout="sglang",
        user="root",
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
        dstack={
            "fleets": ["gpu-fleet", "main/shared"],
            "instances": ["gpu-fleet-0", "gpu-fleet-1"],
            "backends": ["aws", "gcp"],
            "regions": ["us-east-1"],
            "availability_zones": ["us-east-1a"],
            "instance_types": ["p5.48xlarge"],
            "reservation": "cr-0123",
            "spot_policy": "auto",
            "max_price": 98.5,
            "creation_policy": "reuse",
            "idle_duration": "10m",
            "retry": {"on_events": ["interruption", "error"], "duration": "4h"},
            "max_duration": "3d",
            "stop_duration": "10m",
            "utilization_policy": {"min_gpu_utilization": 10, "time_window": "1h"},
            "schedule": {"cron": ["0 8 * * mon-fri"]},
            "priority": 50,
            "startup_order": "master-first",
            "stop_criteria": "all-done",
            "tags": {"team": "rl"},
            "privileged": True,
            "shell": "bash",
        },
    ),
    "private-image": Cluster(
        name="private-image",
        image="registry.example.com/mine:1",
        rollout="vllm",
        gpu="H100:8",
        dstack={"registry_auth": {"username": "me", "password": "${{ secrets.REGISTRY_PASSWORD }}"}, "retry": False},
    ),
}


def test_a_cost_is_not_limited_without_a_price():
    with pytest.raises(SpecError, match="max_cost 200 needs the price of the cluster") as caught:
        to_dstack(Cluster(name="one", max_cost=200))
    assert "price_per_hour" in str(caught.value.hint)


@pytest.mark.parametrize("name", GOLDEN)
def test_rendered_bytes(name, golden, repository):
    golden(repository / "tests" / "golden" / f"{name}.dstack.yml", to_dstack(GOLDEN[name]))
    assert to_dstack(GOLDEN[name]) == to_dstack(GOLDEN[name].replace())


def test_a_private_image_is_pulled_with_a_secret():
    auth = parsed(GOLDEN["private-image"]).registry_auth
    assert (auth.username, auth.password) == ("me", "${{ secrets.REGISTRY_PASSWORD }}")


def options_of(**fields: Any) -> AgentOptions:
    return agent_options(parsed(Cluster(name="one", **fields)))


def test_the_release_image_brings_its_install_command_and_import_check():
    options = options_of(gpu="8", setup=["mine"])
    assert options.setup == (*RELEASE.install, "mine")
    assert options.import_check == ("numpy", "torch", "vllm")


def test_of_another_image_the_rollout_engine_is_not_known():
    options = options_of(gpu="8", image="mine:1")
    assert options.setup == ()
    assert options.import_check == ("numpy", "torch")

    engine = options_of(gpu="8", image="mine:1", rollout="sglang")
    assert engine.import_check == ("numpy", "torch", "sglang")


@pytest.mark.parametrize("gpu", [None, 0])
def test_without_gpus_a_node_offers_one_place_and_the_device_is_cpu(gpu):
    options = options_of(image="mine:1", gpu=gpu)
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
        ({"verl": "0.5.0"}, "no image is known for verl 0.5.0 on GPUs of 'nvidia'"),
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


@pytest.mark.parametrize("value", ["postgres://me:s3cret@host/db", "hf_s3cret0123456789abcdef"])
def test_nor_one_that_is_known_by_its_form(value):
    with pytest.raises(SpecError) as caught:
        to_dstack(Cluster(name="one", env={"DATABASE_URL": value}))
    assert caught.value.message == "env DATABASE_URL: the value of a secret would stand in the file"
    with pytest.raises(SpecError, match="a command holds a password or a token") as caught:
        Cluster(name="one", setup=[f"run --at {value}"])
    assert "s3cret" not in str(caught.value)


def test_the_path_of_a_secret_may_stand_there_and_a_name_that_only_has_a_file_in_it_is_none():
    paths = ("HF_TOKEN_PATH", "AWS_SHARED_CREDENTIALS_FILE", "GOOGLE_APPLICATION_CREDENTIALS", "secrets_dir")
    env = dict.fromkeys(paths, "/run/secrets/file")
    assert env.items() <= yaml.safe_load(to_dstack(Cluster(name="one", env=env)))["env"].items()
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
        Cluster(name="one", dstack={"startup_order": "workers-first", "stop_criteria": "all-done", "retry": False})
    )
    assert "# A lost node ends the run.\nretry: false\n" in text
    for words in ("All nodes set up", "no other node may stay"):
        assert words not in text


@pytest.mark.parametrize(
    ("events", "comment"),
    [
        ("no-capacity, interruption", "A lost spot machine restarts the run on all nodes"),
        ("no-capacity", "A lost node ends the run"),
        ("no-capacity, error", "A lost node restarts the run on all nodes"),
    ],
)
def test_what_is_said_of_a_lost_node_is_what_dstack_does(events: str, comment: str):
    retry = {"on_events": events.split(", "), "duration": "1h"}
    assert f"# {comment}" in to_dstack(Cluster(name="one", dstack={"retry": retry}))


@pytest.mark.parametrize(
    ("section", "max_duration_s", "is_started_again"),
    [
        ({}, None, False),
        ({"max_duration": "off"}, None, False),
        ({"max_duration": "8h"}, 28800.0, True),
        ({"max_duration": 600, "retry": True}, 600.0, True),
        ({"max_duration": "8h", "retry": False}, 28800.0, False),
        ({"max_duration": "8h", "retry": {"on_events": ["interruption"]}}, 28800.0, False),
        ({"max_duration": "8h", "retry": {"duration": "1h"}}, 28800.0, True),
    ],
)
def test_the_agents_know_when_dstack_ends_the_task_for_good(
    section: dict[str, Any], max_duration_s: float | None, is_started_again: bool
):
    limits = options_of(gpu="H100:8", dstack=section).limits
    assert (limits.max_duration_s, limits.is_started_again) == (max_duration_s, is_started_again)


def test_a_range_of_gpus_is_left_to_what_dstack_gives():
    assert options_of(gpu="80GB:1..8").gpus is None


def refusal(**fields: Any) -> SpecError:
    with pytest.raises(SpecError) as caught:
        to_dstack(Cluster(name="one", **fields))
    return caught.value


@pytest.mark.parametrize(
    ("section", "message"),
    [
        ({"spot_policy": "cheap"}, "dstack.spot_policy: 'cheap': Input should be 'spot', 'on-demand' or 'auto'"),
        ({"backends": ["aws", "awz"]}, "dstack.backends.1: 'awz': Input should be 'amddevcloud', "),
        ({"regoins": ["a"]}, "dstack.regoins: dstack knows no 'regoins' of a task; did you mean 'regions'?"),
        ({"schedule": {"cron": "0 8"}}, "dstack.schedule.cron: '0 8': Wrong number of fields; got 2, expected 5"),
        ({"retry": {"duration": "soon"}}, "dstack.retry.duration: 'soon': Cannot parse the duration soon"),
        ({"priority": 101, "max_price": -1},
         "dstack.priority: 101: Input should be less than or equal to 100\ndstack.max_price: -1: Input should be"),
        ({"utilization_policy": {"min_gpu_utilization": 1}}, "dstack.utilization_policy.time_window: Field required"),
        ({"instances": [{"nam": 1}]}, "dstack.instances.0.name: Field required"),
        ({"tags": {"a": 1}}, "dstack cannot read it: expected string"),
        ({"groups": [{"nodes": 1}]}, "dstack.groups: verl places training on whichever nodes have room first"),
        ({"commands": ["rm"]}, "dstack.commands: cloudrl writes 'commands' itself, from fields outside the section"),
    ],
)  # fmt: skip
def test_what_dstack_refuses_in_its_section_is_refused_in_its_words(section, message):
    error = refusal(dstack=section)
    assert error.message.startswith(message)
    assert error.hint


def test_fields_of_both_kinds_that_exclude_each_other_are_left_to_dstack():
    error = refusal(image="a/b:c", dstack={"python": "3.12"})
    assert error.message == "dstack.python: '3.12': `image` and `python` are mutually exclusive fields"


def test_a_password_stands_neither_in_the_file_nor_in_a_message():
    for auth in ({"username": "me", "password": "s3cret"}, "me:s3cret", {"password": {"s3cret": 1}}):
        error = refusal(image="a/b:c", dstack={"registry_auth": auth})
        assert error.message.startswith("dstack.registry_auth")
        assert "s3cret" not in str(error)


def test_rendering_without_a_section_imports_nothing_of_dstack(run_python):
    code = "import sys; from cloudrl import *; Cluster(name='one').to_dstack(); print(*sys.modules)"
    assert "dstack" not in run_python(code).split()


@pytest.mark.parametrize(
    ("fields", "folder"),
    [
        ({}, "/checkpoints/.cloudrl/huggingface"),
        ({"checkpoints": "/vol/a", "volumes": ["ckpt:/vol"]}, "/vol/a/.cloudrl/huggingface"),
        ({"env": {"HF_HOME": "/own"}}, "/own"),
        ({"env": {"HF_HUB_CACHE": "/own"}}, None),
        ({"env": {"XDG_CACHE_HOME": "/own"}}, None),
        ({"volumes": []}, None),
        ({"volumes": ["/a:/checkpoints", "/hf:/root/.cache/huggingface"]}, None),
        ({"volumes": ["/a:/checkpoints", "/hub:/root/.cache/huggingface/hub"]}, None),
        ({"user": "me", "volumes": ["/a:/checkpoints", "/cache:/home/me/.cache"]}, None),
        ({"checkpoints": "/root/ckpt", "volumes": ["/a:/root"]}, None),
        ({"volumes": ["/a:/checkpoints", "/b:/root/.cachet"]}, "/checkpoints/.cloudrl/huggingface"),
    ],
)
def test_models_of_the_hub_are_cached_where_they_outlive_a_restart(fields, folder):
    env = yaml.safe_load(to_dstack(Cluster(name="one", **fields))).get("env") or {}
    assert env.get("HF_HOME") == folder
