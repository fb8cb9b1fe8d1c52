from __future__ import annotations

import pytest

from cloudrl.errors import SpecError
from cloudrl.spec import Cluster, Cpu, Gpu, NetworkMount, Resources, Retry, Size, SizeRange, Volume


def test_the_ten_lines_of_the_design():
    cluster = Cluster(
        name="ray-cluster", nodes=2, gpu="80GB:8", data=["gsm8k"], models=["Qwen/Qwen2.5-7B-Instruct"]
    )
    assert cluster.gpus_per_node == 8
    assert cluster.device == "gpu"
    assert cluster.volumes == ("/checkpoints:/checkpoints",)
    assert cluster.models == ("Qwen/Qwen2.5-7B-Instruct",)


def test_fields_keep_the_usual_spelling():
    cluster = Cluster(
        name="one", gpu="8:h100", cpu=32, memory=512, disk="1tb..", shm_size="128 GB", user=1000
    )
    assert (cluster.gpu, cluster.cpu, cluster.memory) == ("h100:8", "32", "512GB")
    assert (cluster.disk, cluster.shm_size, cluster.user) == ("1TB..", "128GB", "1000")


def test_resources_are_the_same_parsed():
    cluster = Cluster(name="one", gpu="80GB:8", cpu="x86:8..", memory="1TB..", disk="2TB", shm_size="128GB")
    assert cluster.resources == Resources(
        gpu=Gpu.parse("80GB:8"),
        cpu=Cpu.parse("x86:8.."),
        memory=SizeRange.parse("1TB.."),
        disk=SizeRange.parse("2TB"),
        shm_size=Size.parse("128GB"),
    )
    assert Resources(gpu="80GB:8") == Resources(gpu=Gpu.parse("80GB:8"))
    assert Cluster(name="one").resources == Resources()


def test_a_wrong_resource_is_refused():
    with pytest.raises(SpecError) as caught:
        Resources(gpu="8xH100")
    assert caught.value.message == "Resources.gpu: '8xH100' is not the name of a GPU; did you mean 'H100:8'?"


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
    assert Cluster(name="one", checkpoints="/data/ckpt/").volumes == ("/data/ckpt:/data/ckpt",)
    assert Cluster(name="one", volumes=[]).volumes == ()  # on purpose: some clouds have no instance volumes
    mounts = Cluster(
        name="one", checkpoints="/scratch/ckpt", volumes=["/big:/scratch", "/hf:/root/.cache"]
    ).mounts
    assert mounts == (Volume.parse("/big:/scratch"), Volume.parse("/hf:/root/.cache"))


def test_checkpoints_beside_all_volumes_are_refused():
    with pytest.raises(SpecError) as caught:
        Cluster(name="one", checkpoints="/ckpt", volumes=["/big:/scratch"])
    assert caught.value.message == (
        "Cluster: checkpoints '/ckpt' lies on none of the volumes /big:/scratch, "
        "so it would vanish with the container"
    )
    assert caught.value.hint == "Add '/ckpt:/ckpt' to volumes"


def test_image_and_python_exclude_each_other():
    with pytest.raises(SpecError) as caught:
        Cluster(name="one", image="a/b:c", python="3.12")
    assert caught.value.message == "Cluster: image 'a/b:c' and python '3.12' exclude each other"


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
    ("nodes", "2", "'2' is not a number of nodes"),
    ("nodes", 1.5, "1.5 is not a number of nodes"),
    ("nodes", True, "True is not a number of nodes"),
    ("image", "a b", "'a b' is not the name of an image"),
    ("image", "", "'' is empty"),
    ("image", "-x", "'-x' is not the name of an image"),
    ("image", 5, "5 is not text"),
    ("python", "3.9", "'3.9' is not a Python version"),
    ("python", 3.1, "3.1 is not a Python version; did you mean '3.10', in quotes?"),
    ("python", 3.11, "3.11 is not a Python version; did you mean '3.11', in quotes?"),
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
    ("volumes", 7, "7 is not a list of volumes"),
    ("volumes", ["/a"], "'/a' is not /host:/container"),
    ("volumes", ["/a:/checkpoints", "/b:/checkpoints"], "'/checkpoints' is the place of two volumes"),
    ("volumes", ["Data:/checkpoints"], "NetworkMount.name: 'Data' is not the name of a network volume"),
    ("volumes", ["data-${{ dstack.rank }}:/checkpoints"],
     "NetworkMount.name: 'data-${{ dstack.rank }}' is not the name of a network volume"),
    ("volumes", [{"name": "data", "paht": "/d"}],
     "NetworkMount: field 'path' is missing\nNetworkMount: unknown field 'paht'; did you mean 'path'?"),
    ("volumes", [{"instance_path": "/a", "path": "/b", "optional": "yes"}],
     "Volume.optional: 'yes' is neither True nor False"),
    ("verl", 0.9, "0.9 is a number; did you mean '0.9', in quotes?"),
    ("verl", "main", "'main' is not a release of verl"),
    ("rollout", "vlm", "'vlm' is not a rollout engine; did you mean 'vllm'?"),
    ("rollout", "hf", "'hf' is not a rollout engine"),
    ("registry_auth", {"username": "me", "password": "s3cret"},
     "RegistryAuth.password: a password must not stand in the file"),
    ("registry_auth", {"username": "$me", "password": "${{ secrets.p }}"},
     "RegistryAuth.username: '$me' has a $ in it"),
    ("registry_auth", "me:s3cret", "it is not a mapping of username and password"),
    ("nvcc", "true", "'true' is neither True nor False; did you mean 'True'?"),
    ("privileged", 1, "1 is neither True nor False"),
    ("shell", "bsh", "'bsh' is not a shell that quotes as sh does; did you mean 'bash'?"),
    ("shell", "/usr/bin/fish", "'/usr/bin/fish' is not a shell that quotes as sh does; did you mean 'sh'?"),
    ("shell", "zsh", "'zsh' is not an absolute path"),
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
    ("fleets", ["My_Fleet"], "'My_Fleet' is not a name; did you mean 'my-fleet'?"),
    ("fleets", "gpus", "'gpus' is one text where a list is expected; write ['gpus']"),
    ("instances", ["a, b"], "'a, b' is not one name; did you mean ['a', 'b']?"),
    ("backends", ["amazon"], "'amazon' is not a backend of dstack"),
    ("backends", ["vast.ai"], "'vast.ai' is not a backend of dstack; did you mean 'vastai'?"),
    ("regions", ["us-east-1\n"], "'us-east-1\\n' holds a line break or a control character"),
    ("availability_zones", [""], "'' is empty"),
    ("instance_types", "p5.48xlarge",
     "'p5.48xlarge' is one text where a list is expected; write ['p5.48xlarge']"),
    ("reservation", " cr-1", "' cr-1' is not one name; did you mean ['cr-1']?"),
    ("spot_policy", "ondemand", "'ondemand' is not a spot policy; did you mean 'on-demand'?"),
    ("max_price", "$24/h", "'$24/h' is not a price; did you mean 24?"),
    ("max_price", 0, "0 is not a price"),
    ("max_price", float("inf"), "inf is not a price"),
    ("creation_policy", "create", "'create' is not a creation policy"),
    ("creation_policy", "re-use", "'re-use' is not a creation policy; did you mean 'reuse'?"),
    ("idle_duration", -1, "-1 is not a duration; did you mean 'off'?"),
    ("idle_duration", "30 min", "'30 min' is not a duration; did you mean '30m'?"),
    ("retry", True, "True does not say for how long; did you mean '1d'?"),
    ("retry", None, "None does not say for how long; did you mean '1d'?"),
    ("retry", "1 day", "Retry.duration: '1 day' is not a duration; did you mean '1d'?"),
    ("retry", {"on_events": ["errors"]}, "Retry.on_events: 'errors' is not an event; did you mean 'error'?"),
    ("retry", {"on_events": []}, "Retry.on_events: on_events is empty"),
    ("max_duration", "0h", "'0h' is no time at all"),
    ("max_duration", "1h30m", "'1h30m' is not a duration; did you mean '90m'?"),
    ("stop_duration", True, "True is not a duration"),
    ("utilization_policy", {"min_gpu_utilization": 101, "time_window": "30m"},
     "UtilizationPolicy.min_gpu_utilization: 101 is not a percentage"),
    ("utilization_policy", {"min_gpu_utilization": 10, "time_window": "1m"},
     "UtilizationPolicy.time_window: '1m' is shorter than 5m; did you mean '5m'?"),
    ("schedule", "0 8 * *", "Schedule.cron: '0 8 * *' has 4 fields where cron has 5"),
    ("schedule", "0 8 * * 1-5",
     "Schedule.cron: '0 8 * * 1-5': '1-5' cannot be the day of the week; did you mean 'mon-fri'?"),
    ("down_when_idle", "30min", "'30min' is not a duration; did you mean '30m'?"),
    ("down_when_idle", 0, "0 is no time at all"),
    ("max_cost", "$200", "'$200' is not a cost; did you mean 200?"),
    ("max_cost", -1, "-1 is not a cost"),
    ("price_per_hour", "$49.2/h", "'$49.2/h' is not a price; did you mean 49.2?"),
    ("schedule", {"cron": "0 25 * * *"}, "Schedule.cron: '0 25 * * *': '25' cannot be the hour"),
    ("priority", 101, "101 is not a priority"),
    ("priority", "high", "'high' is not a priority"),
    ("startup_order", "master", "'master' is not a startup order; did you mean 'master-first'?"),
    ("stop_criteria", "master_done", "'master_done' is not a stop criterion; did you mean 'master-done'?"),
    ("tags", {"a b": "1"}, "'a b' is not the name of a tag"),
    ("tags", {"team": 7}, "tag 'team': 7 is not its value; did you mean '7'?"),
    ("tags", {"team": "a,b"}, "tag 'team': 'a,b' is not its value"),
    ("tags", ["team"], "['team'] is not a mapping of tags to texts"),
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
    assert "s3cret" not in str(wrong(registry_auth={"username": "me", "password": "s3cret"}, image="a"))


def test_nvcc_and_registry_auth_go_with_what_they_are_for():
    assert wrong(nvcc=True).message == "Cluster: nvcc is True but there is no python"
    auth = {"username": "me", "password": "${{secrets.REGISTRY}}"}
    assert wrong(registry_auth=auth).message == "Cluster: registry_auth is given but no image"
    made = Cluster(name="one", image="a/b:c", registry_auth=auth).registry_auth
    assert (made.username, made.password) == ("me", "${{ secrets.REGISTRY }}")


def test_dstacks_own_image_is_not_for_amd():
    error = wrong(python="3.12", gpu="MI300X:8")
    assert error.message == (
        "Cluster: python '3.12' picks dstack's own image, which does not run on 'MI300X:8'"
    )


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


def test_retry_in_each_of_its_spellings():
    assert Cluster(name="one").retry == Retry(
        on_events=["no-capacity", "interruption", "error"], duration="1d"
    )
    assert Cluster(name="one", retry="4h").retry == Retry(duration="4h")
    assert Cluster(name="one", retry={"on_events": ["error"], "duration": "2 d"}).retry == Retry(
        on_events=["error"], duration="2d"
    )
    assert Cluster(name="one", retry=False).retry is False


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
        "ckpt-${{ dstack.node_rank }}:/checkpoints",
        Volume(instance_path="/fast", path="/fast", optional=True),
        NetworkMount(name=["aws-hf", "gcp-hf"], path="/hf"),
        "data:/data",
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
