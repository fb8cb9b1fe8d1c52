from __future__ import annotations

import pytest

from cloudrl.errors import SpecError
from cloudrl.spec import Cluster, Cpu, Gpu, Resources, Size, SizeRange, Volume


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
    ("data", ["gsm 8k"], "'gsm 8k' is not the name of a data set"),
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
]  # fmt: skip


@pytest.mark.parametrize(("field", "value", "message"), WRONG)
def test_a_wrong_value_is_refused_with_its_field(field, value, message):
    with pytest.raises(SpecError) as caught:
        Cluster(**{"name": "one", field: value})
    assert caught.value.message == f"Cluster.{field}: {message}"


def test_each_field_has_a_test_of_a_wrong_value():
    assert {field for field, _, _ in WRONG} == set(Cluster.model_fields)


def test_a_missing_value_says_where_secrets_go():
    with pytest.raises(SpecError) as caught:
        Cluster(name="one", env={"WANDB_API_KEY": None})
    assert caught.value.hint == "Secrets are given when a job is submitted: --env NAME"


def test_declaring_and_rendering_import_nothing_heavy(run_python):
    loaded = run_python("import sys, cloudrl.recipes, cloudrl.render; print(*sys.modules)").split()
    assert not {"dstack", "ray", "torch", "verl", "transformers", "hydra", "omegaconf"} & set(loaded)
