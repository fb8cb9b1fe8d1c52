"""`cloudrl import`, and scripts given to `check` and `submit`."""

import json
import re
from pathlib import Path

import pytest
from fake_local import FakeLocal
from typed_command import Run

import cloudrl
from cloudrl.scripts import isolation

pytestmark = pytest.mark.io

TRAIN = """
ray start --head
python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo \\
    data.train_files=/d/a.parquet data.val_files=/d/b.parquet \\
    actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct actor_rollout_ref.rollout.name=vllm \\
    actor_rollout_ref.actor.use_dynamic_bsz=True trainer.nnodes=2 trainer.save_freq=20 "$@"
"""


@pytest.fixture
def script(home: Path) -> Path:
    path = Path("train.sh")
    path.write_text(TRAIN)
    return path


def test_files_and_lines(run: Run, script: Path) -> None:
    done = run("import", "train.sh", "-o", "out", "--", "data.train_batch_size=64").ended(
        0,
        "dropped: ray start --head",
        "recipe train with 8 overrides",
        "→ cloudrl check out/train.yml -f out/train.cluster.yml",
    )
    assert done.out.split() == ["out/train.yml", "out/train.cluster.yml"]
    job = cloudrl.recipe("out/train.yml")
    assert (job.nodes, job.gpu, job.override("data.train_batch_size")) == (2, "8", "64")
    run("check", "out/train.yml", "-f", "out/train.cluster.yml", "--on", "dstack").ended(0)


def test_a_file_with_other_content_is_not_replaced_unasked(run: Run, script: Path) -> None:
    run("import", "train.sh").ended(0)
    run("import", "train.sh").ended(0)
    Path("train.yml").write_text("name: mine\n")
    run("import", "train.sh").ended(2, "train.yml: there with other content")
    assert Path("train.yml").read_text() == "name: mine\n"
    run("import", "train.sh", "-y").ended(0)


def test_a_dry_run_writes_nothing(run: Run, script: Path) -> None:
    done = run("import", "train.sh", "--dry-run").ended(0)
    assert "overrides:\n" in done.out
    assert sorted(path.name for path in Path().iterdir()) == ["train.sh"]


def test_a_program_reads_it(run: Run, script: Path) -> None:
    read = json.loads(run("import", "train.sh", "--dry-run", "--json").ended(0).out)
    assert {each["fate"] for each in read["lines"]} == {"taken over", "dropped"}
    assert read["recipes"][0]["nodes"] == read["cluster"]["nodes"] == 2
    assert set(read["files"]) == {"train.yml", "train.cluster.yml"}
    assert read["commands"][0].startswith("cloudrl check ./train.yml")


def test_what_it_wants(run: Run, script: Path) -> None:
    script.write_text("set -u\necho $MODEL\n" + TRAIN)
    run("import", "train.sh").ended(
        2, "train.sh:2 wants the variable MODEL", "cloudrl import train.sh --env MODEL=VALUE"
    )
    run("import", "train.sh", "--env", "MODEL=x", "--dry-run").ended(0)
    run("check", "train.sh").ended(2, "train.sh:2 wants the variable MODEL", "→ --env MODEL=VALUE")
    run("check", "train.sh", "--env", "MODEL=x", "--gpu", "H100:8", "--on", "dstack").ended(0)
    run("import", "none.sh").ended(2, "none.sh cannot be read: No such file or directory")


def test_check_takes_a_script(run: Run, script: Path) -> None:
    done = run("check", "./train.sh", "--gpu", "H100:8", "--on", "dstack", "data.train_batch_size=64").ended(0)
    assert "on 2 nodes with H100:8" in done.out
    run("check", "train.sh", "--on", "dstack", "data.train_batchsize=64").ended(2, "data.train_batch_size=64")
    run("check", "train.sh", "--algorithm", "dapo").ended(2, "--algorithm is for recipes")
    script.write_text("pip install verl\n")
    run("check", "train.sh").ended(2, "starts no training", "cloudrl import train.sh")


def test_what_a_command_loses_to_one_reason_is_said_once(run: Run, script: Path) -> None:
    lost = [f"actor_rollout_ref.actor.clip_ratio_{name}=0.2" for name in ("low", "high", "c")]
    script.write_text(f"{script.read_text().rstrip()} \\ # and more\n  " + " ".join([*lost, "trainer.nnodes=1"]))
    said = " ".join(run("check", "train.sh", "--gpu", "H100:8", "--on", "dstack").err.split())
    notes = re.findall(r"note: each of (\S+, \S+, \S+, 1 more): it never reaches verl", said)
    assert len(notes) == 1
    assert said.count("never reaches verl") == 1


def test_submit_takes_a_script(run: Run, script: Path) -> None:
    with FakeLocal("lab", facts={"gpus_per_node": 8, "device": "gpu"}):
        done = run("submit", "./train.sh", "--dry-run", "--unchecked", "trainer.test_freq=7").ended(0)
    assert "actor_rollout_ref.model.path=Qwen/Qwen2.5-0.5B-Instruct" in done.out
    assert "trainer.test_freq=7" in done.out


def test_it_asks_once_for_each_content(run: Run, script: Path, home: Path) -> None:
    run("import", "train.sh", "--dry-run").ended(0)
    first = (home / "agreed-scripts").read_text()
    run("import", "train.sh", "--dry-run").ended(0)
    assert (home / "agreed-scripts").read_text() == first
    script.write_text(TRAIN + "\n")
    asked = list[str]()

    def refuse(question: cloudrl.Question) -> bool:
        asked.append(question.text)
        return False

    with pytest.raises(cloudrl.InputError, match="was not run"):
        cloudrl.import_script("train.sh", confirm=refuse)
    assert "cut off from this machine" in asked[0]
    assert (home / "agreed-scripts").read_text() == first


def test_without_isolation_it_is_an_explicit_choice(run: Run, script: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation, "_ways", lambda: ())
    run("import", "train.sh", "--dry-run").ended(2, "offers no isolation", "--no-sandbox")
    run("import", "train.sh", "--dry-run", "--no-sandbox").ended(2, "with all of your rights", "-y")
    done = run("import", "train.sh", "--dry-run", "--no-sandbox", "-y").ended(0)
    assert "adv_estimator: grpo" in done.out
