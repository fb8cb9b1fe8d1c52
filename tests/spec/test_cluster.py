from __future__ import annotations

import pytest

from cloudrl.errors import SpecError
from cloudrl.spec import Cluster, FrozenDict, NetworkMount, Volume
from cloudrl.spec.volume import parse_mount


def test_the_ten_lines_of_the_design():
    cluster = Cluster(
        name="ray-cluster", nodes=2, gpu="80GB:8", data=["gsm8k"], models=["Qwen/Qwen2.5-7B-Instruct"]
    )
    assert cluster.gpus_per_node == 8
    assert cluster.device == "gpu"
    assert cluster.mounts == (parse_mount("/checkpoints:/checkpoints"),)
    assert cluster.models == ("Qwen/Qwen2.5-7B-Instruct",)


def test_fields_keep_the_usual_spelling():
    cluster = Cluster(
        name="one", gpu="8:h100", cpu=32, memory=512, disk="1tb..", shm_size="128 GB", user=1000
    )
    assert (cluster.gpu, cluster.cpu, cluster.memory) == ("h100:8", "32", "512GB")
    assert (cluster.disk, cluster.shm_size, cluster.user) == ("1TB..", "128GB", "1000")


@pytest.mark.parametrize(
    ("gpu", "count", "device"),
    [
        (None, 0, "cpu"),
        ("0", 0, "cpu"),
        ("H100:8", 8, "gpu"),
        ("H100", None, "gpu"),
        ("80GB:1..8", None, "gpu"),
    ],
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
    mounts = Cluster(
        name="one", checkpoints="/scratch/ckpt", volumes=["/big:/scratch", "/hf:/root/.cache"]
    ).mounts
    assert mounts == (parse_mount("/big:/scratch"), parse_mount("/hf:/root/.cache"))


def test_checkpoints_beside_all_volumes_are_refused():
    with pytest.raises(SpecError) as caught:
        Cluster(name="one", checkpoints="/ckpt", volumes=["/big:/scratch"])
    assert caught.value.message == (
        "Cluster: checkpoints '/ckpt' lies on none of the volumes /big:/scratch, "
        "so it would vanish with the container"
    )
    assert caught.value.hint == "Add '/ckpt:/ckpt' to volumes"


# Messages that say by themselves what would be right.
PLAIN = (
    "is not text", "is empty", "twice", "NUL", "surrogate", "control character", "is not a list", "'..' in it",
    "has a colon in it", "the place of two volumes", "where a list is expected; write", "is missing",
)  # fmt: skip

WRONG = [
    ("name", "Ray_Cluster", "'Ray_Cluster' is not a name; did you mean 'ray-cluster'?"),
    ("name", "ray cluster", "'ray cluster' is not a name; did you mean 'ray-cluster'?"),
    ("name", "a", "'a' is not a name"),
    ("name", "1ab", "'1ab' is not a name; did you mean 'ab'?"),
    ("name", "x" * 42, f"'{'x' * 42}' is not a name; did you mean '{'x' * 41}'?"),
    ("name", "abc\n", "'abc\\n' is not a name; did you mean 'abc'?"),
    ("name", "-abc", "'-abc' is not a name; did you mean 'abc'?"),
    ("name", 7, "7 is not a name"),
    ("name", None, "None is not a name; did you mean 'none'?"),
    ("nodes", 0, "0 is not a number of nodes"),
    ("nodes", -2, "-2 is not a number of nodes"),
    ("nodes", "2", "'2' is not a number of nodes; did you mean 2?"),
    ("nodes", 1.5, "1.5 is not a number of nodes"),
    ("nodes", True, "True is not a number of nodes"),
    ("image", "a b", "'a b' is not the name of an image"),
    ("image", "", "'' is not the name of an image"),
    ("image", "-x", "'-x' is not the name of an image"),
    ("image", 5, "5 is not the name of an image; did you mean '5', in quotes?"),
    ("user", "a b", "'a b' is not user or user:group"),
    ("user", "root:", "'root:' is not user or user:group"),
    ("user", "a:b:c", "'a:b:c' is not user or user:group"),
    ("user", -1, "-1 is not user or user:group"),
    ("setup", "git pull", "'git pull' is one text where a list is expected; write ['git pull']"),
    ("setup", [""], "a command is empty"),
    ("setup", ["a\0"], "'a\\x00' holds a NUL character"),
    ("setup", ["\ud800"], "'\\ud800' holds a lone surrogate, which cannot be written as UTF-8"),
    ("setup", [1], "1 is not text"),
    ("setup", {"a": 1}, "{'a': 1} is not a list"),
    ("services", ["bash launch.sh"], "'bash launch.sh' is not a service"),
    ("env", ["A=1"], "['A=1'] is not a mapping of names to values"),
    ("env", {"A B": "1"}, "'A B' is not a variable name"),
    ("env", {"1A": "1"}, "'1A' is not a variable name"),
    ("env", {"A\n": "1"}, "'A\\n' is not a variable name"),
    ("env", {1: "1"}, "1 is not a variable name"),
    ("env", {"WANDB_API_KEY": None}, "WANDB_API_KEY has no value"),
    ("env", {"A": True}, "A is True, which could mean several texts"),
    ("env", {"A": ["1"]}, "['1'] is not text"),
    ("gpu", "8xH100", "'8xH100' is not the name of a GPU; did you mean 'H100:8'?"),
    ("cpu", "amd64:8", "'amd64:8': 'amd64' is not an architecture; did you mean 'x86'?"),
    ("memory", "512G", "'512G' is not a size; did you mean '512GB'?"),
    ("disk", "2TB..1TB", "'2TB..1TB' runs backwards; did you mean '1TB..2TB'?"),
    ("shm_size", "1..2GB", "'1..2GB' is not a size"),
    ("data", "gsm8k", "'gsm8k' is one text where a list is expected; write ['gsm8k']"),
    ("data", ["gsm 8k"], "'gsm 8k' is not the name of a data set; did you mean 'gsm8k'?"),
    ("data", ["--x"], "'--x' is not the name of a data set"),
    ("data", ["a/../b"], "'a/../b' is not the name of a data set"),
    ("data", ["gsm8k", "gsm8k"], "'gsm8k' stands twice"),
    ("models", ["a/b/c"], "'a/b/c' is neither a model on the Hugging Face Hub nor an absolute path"),
    ("models", ["./m"], "'./m' is neither a model on the Hugging Face Hub nor an absolute path"),
    ("models", ["/a/../b"], "'/a/../b' has '..' in it"),
    ("checkpoints", "ckpt", "'ckpt' is not an absolute path"),
    ("checkpoints", "/a/../b", "'/a/../b' has '..' in it"),
    ("checkpoints", "/a:b", "'/a:b' has a colon in it, which separates host and container in a volume"),
    ("checkpoints", "", "'' is empty"),
    ("checkpoints", 7, "7 is not text"),
    ("volumes", "/a:/b", "'/a:/b' is one text where a list is expected; write ['/a:/b']"),
    ("volumes", 7, "7 is not a list"),
    ("volumes", ["/a"], "'/a' is neither /host:/container nor name:/container"),
    ("volumes", ["/a:/checkpoints", "/b:/checkpoints"], "'/checkpoints' is the place of two volumes"),
    ("volumes", ["Data:/checkpoints"], "NetworkMount.name: 'Data' is not the name of a network volume"),
    ("volumes", ["data-${{ dstack.rank }}:/checkpoints"],
     "NetworkMount.name: 'data-${{ dstack.rank }}' is not the name of a network volume"),
    ("volumes", [{"name": "data", "paht": "/d"}],
     "NetworkMount: field 'path' is missing\nNetworkMount: unknown field 'paht'; did you mean 'path'?"),
    ("volumes", [{"instance_path": "/a", "path": "/b", "optional": "yes"}],
     "Volume.optional: 'yes' is neither True nor False"),
    ("verl", 0.9, "0.9 is not a release of verl; did you mean '0.9', in quotes?"),
    ("verl", "main", "'main' is not a release of verl"),
    ("rollout", "vlm", "'vlm' is not a rollout engine; did you mean 'vllm'?"),
    ("rollout", "hf", "'hf' is not a rollout engine"),
    ("working_dir", "work", "'work' is not an absolute path"),
    ("secrets", "HF_TOKEN", "'HF_TOKEN' is one text where a list is expected; write ['HF_TOKEN']"),
    ("secrets", ["hf-token"], "'hf-token' is not the name of a secret; did you mean 'HF_TOKEN'?"),
    ("secrets", ["HF_TOKEN", "HF_TOKEN"], "'HF_TOKEN' stands twice"),
    ("secrets", ["HF_TOKEN=hf_1"], "that is not the name of a secret"),
    ("secrets", ["hf_abcdefghijklmnopqrstuvwxyz"], "that is not the name of a secret"),
    ("secrets", [7], "7 is not the name of a secret"),
    ("ports", 8080, "8080 is not a list"),
    ("ports", ["80-80"], "'80-80' is not a port"),
    ("ports", [0], "0 is not a port"),
    ("ports", ["1:65536"], "65536 is not a port"),
    ("ports", [6006, "16006:6006"], "container port 6006 stands twice"),
    ("ports", ["8265:9000"], "local port 8265 is taken twice: by 8265 and 9000"),
    ("down_when_idle", "30min", "'30min' is not a duration; did you mean '30m'?"),
    ("down_when_idle", 0, "0 is no time at all"),
    ("max_cost", "$200", "'$200' is not a cost; did you mean 200?"),
    ("max_cost", -1, "-1 is not a cost"),
    ("price_per_hour", "$49.2/h", "'$49.2/h' is not a price; did you mean 49.2?"),
    ("dstack", "aws", "'aws' is not a mapping"),
    ("dstack", {1: "x"}, "1 is not text"),
    ("dstack", {"tags": {"a": {1, 2}}}, "{1, 2} is not text"),
    ("dstack", {"regions": ["a\0"]}, "'a\\x00' holds a NUL character"),
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "message"), WRONG)
def test_a_wrong_value_is_refused_with_its_field(field, value, message):
    with pytest.raises(SpecError) as caught:
        Cluster(**{"name": "one", field: value})
    assert caught.value.message == f"Cluster.{field}: {message}"
    assert caught.value.hint or "did you mean" in message or any(words in message for words in PLAIN)


def test_each_field_has_a_test_of_a_wrong_value():
    assert {field for field, _, _ in WRONG} == set(Cluster.model_fields)


def wrong(**fields: object) -> SpecError:
    with pytest.raises(SpecError) as caught:
        Cluster(**{"name": "one", **fields})
    return caught.value


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


def test_what_only_dstack_knows_is_sent_to_its_section():
    error = wrong(backends=["aws"])
    assert error.message == "Cluster: unknown field 'backends'"
    assert error.hint.endswith("\nWhat only dstack knows goes into dstack: {backends: ...}")


def test_the_section_of_a_provider_that_is_to_come_is_refused_by_name():
    error = wrong(slurm={"partition": "gpu"})
    assert error.message == "Cluster: section 'slurm' is for a provider that cloudrl does not have yet"
    assert error.hint == "Leave it out; sections: dstack"


def test_a_secret_is_not_taken_for_a_value():
    error = wrong(env={"HF_TOKEN": "${{ secrets.HF_TOKEN }}"})
    assert error.message == (
        "Cluster: env HF_TOKEN is '${{ secrets.HF_TOKEN }}', and values in env are taken as they are"
    )
    assert error.hint == "secrets: [HF_TOKEN] sets the variable from dstack's secret of that name"
    assert wrong(env={"A": "1"}, secrets=["A"]).message == "Cluster: A stands in env and in secrets"


@pytest.mark.parametrize("other", ["HIP_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"])
def test_variables_that_verl_refuses_together_on_amd(other):
    env = {"ROCR_VISIBLE_DEVICES": "0", other: "0"}
    error = wrong(env=env, gpu="MI300X:8")
    assert error.message == (
        f"Cluster: env sets ROCR_VISIBLE_DEVICES and {other}, and verl's workers refuse the two on AMD"
    )
    assert "Leave both out" in error.hint
    assert Cluster(name="one", env=env, gpu="H100:8").vendor == "nvidia"
    assert Cluster(name="one", env={other: "0"}, gpu="MI300X:8").vendor == "amd"


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
    loaded = run_python("import sys, cloudrl.recipes, cloudrl.render; print(*sys.modules)").split()
    assert not {"dstack", "ray", "torch", "verl", "transformers", "hydra", "omegaconf"} & set(loaded)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({}, None),
        ({"gpu": "0"}, None),
        ({"gpu": "80GB:8"}, "128GB"),
        ({"gpu": "24GB:2"}, "32GB"),
        ({"gpu": "80GB"}, "128GB"),
        ({"gpu": "80GB:8", "shm_size": "64GB"}, "64GB"),
        ({"shm_size": "1GB"}, "1GB"),
    ],
)
def test_shared_memory_is_never_dockers_64_mb_on_a_node_with_gpus(
    fields: dict[str, str], expected: str | None
) -> None:
    assert Cluster(name="shm", **fields).shared_memory == expected
