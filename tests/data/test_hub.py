"""The Hub: the real `datasets`, on a copy that it takes for the Hub's, and against a stand-in that refuses."""

import json
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from fake_hub import FakeHub

from cloudrl.spec import DataSet

pytestmark = pytest.mark.io

CODE = """
import json, sys
from cloudrl.data import prepare
from cloudrl.errors import CloudrlError
try:
    print(json.dumps(prepare(sys.argv[1], sys.argv[2], say=lambda line: print(line, file=sys.stderr))))
except CloudrlError as error:
    print(json.dumps([type(error).__name__, error.message, error.hint]))
"""


def prepared(folder: Path, asked: DataSet, **env: str) -> list[str] | dict[str, str]:
    """Paths, or the error's kind, message and hint. In a Python of its own: `datasets` reads its variables once."""
    env = {"HF_HOME": str(folder / "hf"), "PATH": "/usr/bin:/bin", "HF_DATASETS_DISABLE_PROGRESS_BARS": "1", **env}
    done = subprocess.run(
        [sys.executable, "-c", CODE, asked.argument(), str(folder / "out")],
        cwd=folder, env=env, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    return json.loads(done.stdout)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """`datasets` takes a folder owner/name in the working directory for the data set of that name."""
    card = ["---", "configs:"]
    for config, start in (("easy", 0), ("hard", 100)):
        card += [f"- config_name: {config}", "  data_files:", "  - split: train", f"    path: {config}/train*"]
        path = tmp_path / "owner" / "name" / config / "train-00000-of-00001.parquet"
        path.parent.mkdir(parents=True)
        rows = [{"question": f"{n}?", "answers": {"text": [str(n)]}} for n in range(start, start + 30)]
        pq.write_table(pa.Table.from_pylist(rows), path)
    (tmp_path / "owner" / "name" / "README.md").write_text("\n".join([*card, "---", ""]))
    return tmp_path


def test_a_data_set_with_its_configuration(copy: Path) -> None:
    asked = DataSet(name="mine", source="owner/name", config="hard", answer_field="answers.text.0", test_rows=4)
    paths = prepared(copy, asked, HF_HUB_OFFLINE="1")
    assert isinstance(paths, dict)
    rows = {split: pq.read_table(path).to_pylist() for split, path in paths.items()}
    assert {split: len(each) for split, each in rows.items()} == {"train": 26, "test": 4}
    assert {row["data_source"] for row in rows["train"]} == {"owner/name"}
    truths = sorted(int(row["reward_model"]["ground_truth"]) for each in rows.values() for row in each)
    assert truths == list(range(100, 130))


@pytest.mark.parametrize("config", [None, "hrad"])
def test_the_configurations_are_named(config: str | None, copy: Path) -> None:
    answer = prepared(copy, DataSet(name="owner/name", config=config), HF_HUB_OFFLINE="1")
    assert isinstance(answer, list)
    kind, message, hint = answer
    assert (kind, hint) == ("InputError", "Name one as config (--config NAME)")
    assert "'easy', 'hard'" in message
    assert "\n" not in message


STAND_IN = """
class DatasetsError(Exception): pass
class DatasetNotFoundError(DatasetsError): pass
def load_dataset(*words):
    raise ConnectionError("Couldn't reach it\\n  on the Hub " + "x" * 500)
"""


def test_a_failed_download_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    """A stand-in for `datasets`, which itself tries for half a minute."""
    for file in ("__init__", "exceptions"):
        (tmp_path / "packages" / "datasets").mkdir(parents=True, exist_ok=True)
        (tmp_path / "packages" / "datasets" / f"{file}.py").write_text(STAND_IN)
    env = {"PYTHONPATH": str(tmp_path / "packages"), "HF_ENDPOINT": "http://127.0.0.1:9"}
    answer = prepared(tmp_path, DataSet(name="openai/gsm8k"), **env)
    assert isinstance(answer, list)
    kind, message, hint = answer
    assert (kind, hint) == ("ConnectionFailed", None)
    assert message.startswith(
        "data set gsm8k: openai/gsm8k could not be downloaded from http://127.0.0.1:9 (Couldn't reach it on the Hub xx"
    )
    for remedy in ("HF_ENDPOINT", "HF_TOKEN", "a folder of its rows as source"):
        assert remedy in message
    assert len(message) < 400
    assert not (tmp_path / "out").exists()


def test_what_is_not_there_is_the_users_mistake(tmp_path: Path) -> None:
    with FakeHub() as hub:
        answer = prepared(tmp_path, DataSet(name="owner/nmae"), HF_ENDPOINT=hub.url)
    assert isinstance(answer, list)
    kind, message, hint = answer
    assert kind == "InputError", message
    assert message.startswith(f"data set owner/nmae: owner/nmae is not on {hub.url}, or may not be read (")
    assert "HF_TOKEN" in hint
    assert not Path(tmp_path / "out").exists()
