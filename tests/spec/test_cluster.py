import pytest

from cloudrl.errors import SpecError
from cloudrl.spec import Cluster, FrozenDict, NetworkMount, Volume
from cloudrl.spec.volume import parse_mount


def test_the_ten_lines_of_the_design():
    cluster = Cluster(name="ray-cluster", nodes=2, gpu="80GB:8", data=["gsm8k"], models=["Qwen/Qwen2.5-7B-Instruct"])
    assert cluster.gpus_per_node == 8
    assert cluster.device == "gpu"
    assert cluster.mounts == (parse_mount("/var/lib/cloudrl/checkpoints:/checkpoints"),)
    assert cluster.models == ("Qwen/Qwen2.5-7B-Instruct",)


def test_fields_keep_the_usual_spelling():
    cluster = Cluster(name="one", gpu="8:h100", cpu=32, memory="512gb", disk="1tb..", shm_size="128 GB", user=1000)
    assert (cluster.gpu, cluster.cpu, cluster.memory) == ("h100:8", "32", "512GB")
    assert (cluster.disk, cluster.shm_size, cluster.user) == ("1TB..", "128GB", "1000")


@pytest.mark.parametrize(
    ("gpu", "count", "device"),
    [(None, 0, "cpu"), ("0", 0, "cpu"), ("H100:8", 8, "gpu"), ("H100", None, "gpu"), ("80GB:1..8", None, "gpu")],
)
def test_gpus_per_node(gpu, count, device):
    cluster = Cluster(name="one", gpu=gpu)
    assert cluster.gpus_per_node == count
    assert cluster.device == device


def test_numbers_in_env_become_text():
    assert Cluster(name="one", env={"A": 1, "B": 0.5, "C": ""}).env == {"A": "1", "B": "0.5", "C": ""}


def test_checkpoints_lie_on_the_host_unless_told_otherwise():
    moved = Cluster(name="one", checkpoints="/data/ckpt/")
    assert moved.mounts == (parse_mount("/data/ckpt:/data/ckpt"),)
    assert moved.replace(checkpoints="/other").mounts == (parse_mount("/other:/other"),)
    assert Cluster(name="one", volumes=[]).mounts == ()  # on purpose: some clouds have no instance volumes
    mounts = Cluster(name="one", checkpoints="/scratch/ckpt", volumes=["/big:/scratch", "/hf:/root/.cache"]).mounts
    assert mounts == (parse_mount("/big:/scratch"), parse_mount("/hf:/root/.cache"))


def wrong(**fields: object) -> SpecError:
    with pytest.raises(SpecError) as caught:
        Cluster(**{"name": "one", **fields})
    return caught.value


def test_variables_of_gpus_that_verl_takes() -> None:
    env = {"ROCR_VISIBLE_DEVICES": "0", "HIP_VISIBLE_DEVICES": "0"}
    assert Cluster(name="one", env=env, gpu="H100:8").vendor == "nvidia"
    assert Cluster(name="one", env={"HIP_VISIBLE_DEVICES": "0"}, gpu="MI300X:8").vendor == "amd"


def test_what_may_be_a_secret_stands_in_no_message():
    for value in ("HF_TOKEN=hf_1", "hf_abcdefghijklmnopqrstuvwxyz"):
        error = wrong(secrets=[value])
        assert "hf_" not in str(error)
        assert "dstack secret set" in error.hint


def test_a_section_is_kept_as_it_is_and_frozen_all_the_way_down():
    section = {"backends": ["aws"], "retry": {"on_events": ["error"]}, "priority": 5, "spot_policy": None}
    cluster = Cluster(name="one", dstack=section)
    assert cluster.dstack == {**section, "backends": ("aws",), "retry": {"on_events": ("error",)}}
    assert isinstance(cluster.dstack["retry"], FrozenDict)
    assert hash(cluster) == hash(Cluster(name="one", dstack=section))


def test_ports_are_added_to_rays_and_the_agents():
    assert [str(port) for port in Cluster(name="one").forwarded] == ["8265", "8266"]
    moved = Cluster(name="one", ports=[6006, "9265:8265", "*:7000"]).forwarded
    assert [str(port) for port in moved] == ["9265:8265", "8266", "6006", "*:7000"]


def test_volumes_in_each_of_their_spellings():
    cluster = Cluster(
        name="one",
        volumes=[
            "ckpt-${{dstack.node_rank}}:/checkpoints",
            {"instance_path": "/fast", "path": "/fast", "optional": True},
            {"name": ["aws-hf", "gcp-hf"], "path": "/hf"},
            {"name": "data", "path": "/data"},
        ],
    )
    assert cluster.volumes == (
        NetworkMount(name=["ckpt-${{ dstack.node_rank }}"], path="/checkpoints"),
        Volume(instance_path="/fast", path="/fast", optional=True),
        NetworkMount(name=["aws-hf", "gcp-hf"], path="/hf"),
        NetworkMount(name="data", path="/data"),
    )
    assert [mount.path for mount in cluster.mounts] == ["/checkpoints", "/fast", "/hf", "/data"]
    assert cluster.replace(nodes=2).volumes == cluster.volumes
    assert hash(cluster) == hash(cluster.replace())


def test_a_missing_value_says_where_secrets_go():
    with pytest.raises(SpecError) as caught:
        Cluster(name="one", env={"WANDB_API_KEY": None})
    assert caught.value.hint == "Secrets are given when a job is submitted: --env NAME"


def test_declaring_and_rendering_import_nothing_heavy(run_python):
    loaded = run_python("import sys, cloudrl.recipes, cloudrl.sdk; print(*sys.modules)").split()
    assert not {"dstack", "ray", "torch", "verl", "transformers", "hydra", "omegaconf"} & set(loaded)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None), ({"gpu": "0"}, None), ({"gpu": "80GB:8"}, "128GB"), ({"gpu": "24GB:2"}, "32GB"),
        ({"gpu": "80GB"}, "128GB"), ({"gpu": "80GB:8", "shm_size": "64GB"}, "64GB"), ({"shm_size": "1GB"}, "1GB"),
    ],
)  # fmt: skip
def test_shared_memory_is_never_dockers_64_mb_on_a_node_with_gpus(fields: dict[str, str], expected: str | None) -> None:
    assert Cluster(name="shm", **fields).shared_memory == expected
