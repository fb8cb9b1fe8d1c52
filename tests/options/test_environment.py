from pathlib import Path

import pytest
import yaml

from cloudrl.errors import InputError
from cloudrl.options.environment import is_remote, load_runtime_env, parse_env
from cloudrl.options.job import submit_options


def test_variables_of_the_command_line():
    environ = {"HF_TOKEN": "hf_x", "EMPTY": ""}
    given = parse_env(["A=1", "B=x=y", "C=", "HF_TOKEN", "EMPTY"], environ)
    assert given == {"A": "1", "B": "x=y", "C": "", **environ}


@pytest.mark.parametrize("item", ["=1", "A B=1", "1A=1", "A-B=1", "A=\0"])
def test_what_no_process_can_have(item: str):
    with pytest.raises(InputError, match=r"^--env: "):
        parse_env([item], {})


def test_a_runtime_environment_of_a_file(tmp_path: Path):
    path = tmp_path / "runtime_env.yaml"
    path.write_text(
        """
        working_dir: ./
        excludes: ["/.git/"]
        env_vars:
          TORCH_NCCL_AVOID_RECORD_STREAMS: "1"
          NUMBER: 3
          GLOO_SOCKET_IFNAME: "eth0"
        nsight: default
        """
    )

    assert load_runtime_env(path) == {
        "working_dir": "./",
        "excludes": ["/.git/"],
        "env_vars": {"TORCH_NCCL_AVOID_RECORD_STREAMS": "1", "NUMBER": "3", "GLOO_SOCKET_IFNAME": "eth0"},
        "nsight": "default",
    }
    path.write_text("# nothing yet\n")
    assert load_runtime_env(path) == {}


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("a: [", "is not YAML"),
        ("- a", "expected fields such as working_dir"),
        ("1: a", "expected fields such as working_dir"),
        ("env_vars: [A]", "env_vars: this is a list, not a mapping"),
        ("env_vars: {A: true}", "env_vars: A is True"),
        ("env_vars: {A: }", "env_vars: A has no value"),
        ("excludes: .git", "excludes '.git' is not a list of patterns"),
        ("excludes: [1]", "is not a list of patterns"),
        ("working_dir: [a]", "is not a path"),
        ("py_modules: [./mine]", "not all URLs"),
        ("pip: 3", "Ray refuses it"),
    ],
)
def test_a_file_with_a_mistake(tmp_path: Path, text: str, says: str):
    path = tmp_path / "env.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=says) as caught:
        load_runtime_env(path)
    assert caught.value.message.startswith(f"--runtime-env {path}")
    if "YAML" not in says:
        with pytest.raises(InputError, match=f"^runtime_env.*{says}"):
            submit_options(None, {"runtime_env": yaml.safe_load(text)})


def test_a_file_that_is_not_there(tmp_path: Path):
    with pytest.raises(InputError, match=r"missing\.yaml: No such file or directory"):
        load_runtime_env(tmp_path / "missing.yaml")
    with pytest.raises(InputError, match="Is a directory"):
        load_runtime_env(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(InputError, match="not a text file in UTF-8"):
        load_runtime_env(tmp_path / "binary")


def test_requirements_are_read_here_as_rays_client_does(tmp_path: Path):
    (tmp_path / "requirements.txt").write_text("einops==0.8.1\n")
    (tmp_path / "env.yaml").write_text(f"pip: {tmp_path / 'requirements.txt'}")
    assert load_runtime_env(tmp_path / "env.yaml")["pip"]["packages"] == ["einops==0.8.1"]


def test_where_a_working_directory_is():
    assert all(is_remote(place) for place in ("s3://b/x.zip", "gcs://x.zip", "local:///x"))
    assert not any(is_remote(place) for place in ("./x", "/x", ""))
