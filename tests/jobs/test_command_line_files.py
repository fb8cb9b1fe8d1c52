"""`cloudrl submit` with the user's own files, as it is typed."""

import json
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml
from fake_cluster import FakeCluster

Run = Callable[..., tuple[int, str, str]]

FOLDER = "trainer.default_local_dir=/c/run"
OWN = ["--reward", "./reward.py:mine", "--data", "mine", "--model", "./model"]


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder in which the commands are typed."""
    (tmp_path / "reward.py").write_text("def mine(data_source, solution_str, **_):\n    return len(solution_str)\n")
    for name in ("mine/train.parquet", "mine/test.parquet", "model/config.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
        if name.endswith(".parquet"):
            prompt, truth = [{"role": "user", "content": "1 + 1?"}], {"ground_truth": "2"}
            row = {"prompt": prompt, "data_source": "x", "reward_model": truth}
            pq.write_table(pa.Table.from_pylist([row] * 64), tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for name in ("HF_TOKEN", "WANDB_API_KEY"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_a_dry_run_names_every_file_and_its_place(cluster: FakeCluster, run: Run):
    code, out, err = run("submit", "grpo-tiny", *OWN, FOLDER, "--dry-run")

    assert code == 0
    first, *lines = out.splitlines()[:5]
    assert first == "# Files of this machine, where the job finds them:"
    places = dict(line.removeprefix("#   ").split(" -> ") for line in lines)
    assert set(places) == {"./reward.py", "./model", "mine/train.parquet", "mine/test.parquet"}
    sent = yaml.safe_load(out)
    for text, place in places.items():
        name, size = place.split(" ", 1)
        assert size.endswith(", in the package)")
        assert name in sent["entrypoint"]
        assert f"{text} (" in err
    assert "./" not in sent["entrypoint"]
    assert "reward.custom_reward_function.name=mine" in sent["entrypoint"]
    assert not cluster.packages
    assert {method for method, _ in cluster.requests} == {"GET"}


def test_what_is_shown_to_a_program(run: Run):
    _, out, _ = run("submit", "grpo-tiny", *OWN, FOLDER, "--dry-run", "--json")
    files = json.loads(out)["files"]
    [model] = [each for each in files if each["path"] == "./model"]
    assert (model["by"], model["size_bytes"]) == ("package", len("model/config.json"))
    assert model["to"].startswith("cloudrl_files/")


def test_they_are_sent_in_one_package(cluster: FakeCluster, run: Run):
    code, _, err = run("submit", "grpo-tiny", *OWN, FOLDER, "--no-wait", "--submission-id", "one")
    assert code == 0, err
    assert len(cluster.packages) == 1
    assert cluster.jobs["one"].body["runtime_env"]["working_dir"] == f"gcs://{next(iter(cluster.packages))}"


def test_mistakes_are_named_before_anything_is_sent(cluster: FakeCluster, run: Run):
    code, out, err = run("submit", "grpo-tiny", FOLDER, "--reward", "./reward.py")
    assert (code, out) == (2, "")
    assert "reward.py defines no 'compute_score' (its functions: mine)" in err
    assert not cluster.packages
    assert not cluster.jobs


def test_help_says_whose_a_path_is(run: Run):
    _, out, _ = run("submit", "--help", address="")
    for said in ("/x is a path on the nodes", "owner/name is a model on the Hub", "taken from this shell"):
        assert said in " ".join(out.split())
