"""The agent's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from cloudrl.node.options import Ports, parse_options


def test_defaults_are_those_of_a_dstack_node(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    options = parse_options([])
    assert options.device == "gpu"
    assert options.checkpoints == Path("/checkpoints")
    assert options.data_dir == Path("/home/me/data")
    assert options.run_dir == Path("/home/me/.cloudrl/run")
    assert options.ports == Ports()
    assert (options.setup_timeout_s, options.ray_timeout_s) == (3600, 600)
    assert (options.ray_temp_dir, options.key_file, options.lease_fd, options.gpus, options.cpus) == (
        None,
    ) * 5
    assert (options.setup, options.data, options.models, options.import_check) == ((),) * 4


def test_words_that_may_be_repeated_keep_their_order() -> None:
    options = parse_options(["--setup=b && c", "--setup=a", "--model=x/y", "--model=tiny", "--data=gsm8k"])
    assert options.setup == ("b && c", "a")
    assert options.models == ("x/y", "tiny")
    assert options.data == ("gsm8k",)


def test_a_data_set_is_a_name_or_json() -> None:
    described = '{"name": "mine", "source": "owner/name", "system": "It is\\n a $test"}'
    assert parse_options(["--data=gsm8k", "--data", described]).data == ("gsm8k", described)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not the JSON of a data set"),
        ('{"nmae": "x"}', "did you mean 'name'?"),
        ('{"name": "x", "test_rows": "7"}', "test_rows is '7', which is not of type int"),
    ],
)
def test_a_wrong_description_ends_at_once(
    text: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(["--data", text])
    assert caught.value.code == 2
    assert "argument --data: " in (said := capsys.readouterr().err)
    assert message in said


def test_modules_to_import_are_separated_by_commas() -> None:
    assert parse_options(["--import-check=numpy,torch,,vllm"]).import_check == ("numpy", "torch", "vllm")


def test_the_head_listens_where_this_agent_does_unless_told_otherwise() -> None:
    assert parse_options(["--agent-port=9000"]).ports.head_agent == 9000
    assert parse_options(["--agent-port=9001", "--head-agent-port=9000"]).ports.head_agent == 9000


def test_folders_become_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    options = parse_options(
        ["--checkpoints=c", "--data-dir=d", "--run-dir=r", "--ray-temp-dir=t", "--key-file=k"]
    )
    folders = (options.checkpoints, options.data_dir, options.run_dir, options.ray_temp_dir, options.key_file)
    assert folders == tuple(tmp_path / name for name in "cdrtk")


def test_worker_ports() -> None:
    assert parse_options(["--worker-ports=100-200"]).ports.worker == (100, 200)
    assert parse_options(["--worker-ports=0-0"]).ports.worker == (0, 0)


@pytest.mark.parametrize(
    "words",
    [
        ["--worker-ports=100"],
        ["--worker-ports=a-b"],
        ["--worker-ports=200-100"],
        ["--device=tpu"],
        ["--gpus-per-node=many"],
        ["--agent-port=x"],
        ["--chekpoints=/c"],
        ["--check=/c"],  # no abbreviations: a typed-in half of an option is a mistake
        ["surplus"],
    ],
)
def test_a_wrong_word_is_named_and_ends_with_2(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_options(words)
    assert caught.value.code == 2
    assert words[0].partition("=")[0] in capsys.readouterr().err
