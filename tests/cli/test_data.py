"""`cloudrl data`, and how a cluster gets a data set."""

import json
import re
import shlex
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml
from fake_local import FakeLocal
from typed_command import Run

from cloudrl.data.request import Request, parse_request
from cloudrl.spec import DataSet, parse_override

pytestmark = pytest.mark.io

GSM8K = Path(__file__).parents[1] / "data" / "gsm8k"


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_DATASETS_DISABLE_PROGRESS_BARS", "1")
    monkeypatch.setenv("HF_HUB_DISABLE_PROGRESS_BARS", "1")


@pytest.fixture
def mine(home: Path) -> Path:
    """Raw rows in the working directory."""
    path = Path("mine.jsonl")
    path.write_text("".join(json.dumps({"text": f"{n}?", "meta": {"gold": n}}) + "\n" for n in range(40)))
    return path.resolve()


def test_list_names_source_rows_and_reward(run: Run) -> None:
    shown = run("data", "list").ended(0)
    assert [re.split(r"  +", line) for line in shown.out.splitlines()] == [
        ["name", "source", "rows", "verl's reward"],
        ["addition", "generated", "2400 train + 100 test", "pkg://cloudrl.verl_cpu.reward"],
        ["capitals", "CIA World Factbook", "48 train + 16 test", "pkg://cloudrl.verl_cpu.search_reward"],
        ["gsm8k", "openai/gsm8k", "7473 train + 1319 test", "gsm8k"],
        ["math", "DigitalLearningGmbH/MATH-lighteval", "7500 train + 5000 test", "math_reward"],
        ["nq_search", "RUC-NLPIR/FlashRAG_datasets", "79168 train + 3610 test", "none"],
        ["nq_search_tool", "RUC-NLPIR/FlashRAG_datasets", "79168 train + 3610 test", "search_r1_like_qa_em"],
    ]
    addition, _, gsm8k, *_ = json.loads(run("data", "list", "--json").out)
    assert (addition["source"], addition["reward"]) == (None, "pkg://cloudrl.verl_cpu.reward")
    assert gsm8k == {
        "name": "gsm8k", "source": "openai/gsm8k", "rows": {"train": 7473, "test": 1319},
        "data_source": "openai/gsm8k", "reward": "gsm8k",
    }  # fmt: skip


def test_prepare_prints_the_overrides_that_take_the_files(run: Run) -> None:
    done = run("data", "prepare", "addition", "--to", "it's here").ended(0)
    overrides = dict(parse_override(line) for line in done.out.splitlines())
    folder = Path("it's here").resolve()
    assert overrides == {
        "data.train_files": '"./it\'s here/train.parquet"',
        "data.val_files": '"./it\'s here/test.parquet"',
    }
    assert pq.read_metadata(folder / "train.parquet").num_rows == 2400
    assert "addition: 2,400 train and 100 test rows in " in done.err


def test_the_way_to_the_nodes_that_help_shows_sends_the_folder(run: Run) -> None:
    said = " ".join(run("data", "prepare", "--help").out.split())
    example = re.search(r"(cloudrl data prepare \S+ --to \S+), then (cloudrl submit \S+ --data \S+)", said)
    assert example is not None
    assert "$(" not in said
    prepare, submit = ([*shlex.split(each)[1:]] for each in example.groups())
    assert run(*(("addition" if word == "gsm8k" else word) for word in prepare)).code == 0
    with FakeLocal("lab"):
        shown = run(*(("grpo-tiny" if word == "grpo" else word) for word in submit), "--dry-run")
    assert shown.code == 0
    sent = yaml.safe_load(shown.out)["entrypoint"]
    for key, split in (("train_files", "train"), ("val_files", "test")):
        place = re.search(rf"data/{split}\.parquet -> (\S+) \(", shown.out)
        assert f"data.{key}={place[1]}" in sent
    assert str(Path.cwd()) not in sent


def test_prepare_a_built_in_one_from_a_folder_of_this_machine(run: Run) -> None:
    Path("copy").symlink_to(GSM8K)
    done = run("data", "prepare", "gsm8k", "--source", "./copy", "--to", "out", "--json")
    paths = json.loads(done.out)
    assert paths == {split: str(Path("out", f"{split}.parquet").resolve()) for split in ("train", "test")}
    assert pq.read_metadata(paths["train"]).num_rows == 7


@pytest.mark.parametrize("place", ["mine.jsonl", "./mine.jsonl", "../here/mine.jsonl"])
def test_prepare_a_file(run: Run, mine: Path, place: str) -> None:
    done = run(
        "data", "prepare", place, "--to", "out", "--prompt-field", "text", "--answer-field", "meta.gold",
        "--system", "Be brief.", "--test-rows", "7",
    )  # fmt: skip
    assert done.code == 0
    assert "mine.jsonl: 33 train and 7 test rows in " in done.err
    assert "verl has no reward function for data source 'mine'" in done.err
    row = pq.read_table("out/test.parquet").to_pylist()[0]
    assert row["prompt"][0] == {"role": "system", "content": "Be brief."}
    assert row["reward_model"]["ground_truth"] + "?" == row["prompt"][1]["content"]


@pytest.mark.parametrize(
    ("words", "said", "hint"),
    [
        (["mine.jsonl"], "no column for the prompt (prompt, question", "--prompt-field"),
        (["mine.jsonl", "--prompt-field", "txt"], "did you mean 'text'?", "--prompt-field"),
        (["gsm9k"], "there is no data set 'gsm9k'; did you mean 'gsm8k'?", "owner/name"),
        (["none.jsonl"], "'none.jsonl' is not an absolute path", ""),
        (["./none.jsonl"], "none.jsonl does not exist", ""),
        (["gsm8k", "--system", "S"], "'gsm8k' is built in and makes its own rows, so it has no system", "my-gsm8k"),
        (["mine.jsonl", "--test-rows", "0"], "DataSet.test_rows: 0 is not", ""),
        (["https://huggingface.co/datasets/a/b"], "did you mean 'a/b'?", ""),
    ],
)
def test_bad_input_is_said_in_a_line(run: Run, mine: Path, words: list[str], said: str, hint: str) -> None:
    done = run("data", "prepare", *words, "--to", "out")
    assert (done.code, done.out) == (2, "")
    assert said.lower() in done.err.lower()
    assert hint in done.err
    assert not Path("out").exists()


def data_of(shown: str) -> list[Request]:
    """What the agents of a dry run are told."""
    first = next(line for line in shown.splitlines() if not line.startswith("#"))
    words = [word.removeprefix("--data=") for word in shlex.split(first) if word.startswith("--data=")]
    return [parse_request(word) for word in words]


def test_a_cluster_is_told_of_a_data_set_of_ones_own_by_its_file_or_by_set(run: Run, mine: Path) -> None:
    one = {"name": "./mine.jsonl", "prompt_field": "text", "system": "It's $HOME\n", "skip_bad": True}
    Path("cluster.yml").write_text(yaml.safe_dump({"nodes": 1, "data": ["addition", one]}))
    wanted = [Request("addition"), Request(str(mine), prompt_field="text", system="It's $HOME\n", skip_bad=True)]
    assert data_of(run("up", "-f", "cluster.yml", "--dry-run").out) == wanted
    assert data_of(run("up", "--set", f"data={json.dumps(['addition', one])}", "--dry-run").out) == wanted
    assert data_of(run("up", "-f", "cluster.yml", "--data", "math", "--dry-run").out) == [Request("math")]
    assert data_of(run("run", "grpo-tiny", "-f", "cluster.yml", "--dry-run").out) == wanted


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--set", "data=[{name: math, prompt_field: text}]"], "'math' is built in and makes its own rows"),
        (["--data", "mine"], "there is no data set 'mine'"),
    ],
)
def test_up_refuses_what_cannot_be_made(run: Run, words: list[str], said: str) -> None:
    done = run("up", *words, "--dry-run")
    assert (done.code, done.out) == (2, "")
    assert said in done.err


def test_help_names_every_field(run: Run) -> None:
    shown = run("data", "prepare", "--help").out
    for field in set(DataSet.model_fields) - {"name"}:
        assert f"--{field.replace('_', '-')} " in shown
