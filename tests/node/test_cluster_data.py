"""Described data sets on real agents: rank 0 prepares them, the others pull them, jobs see them by their names."""

import json
from pathlib import Path

import pytest
from node_harness import Maker

from cloudrl.spec import DataSet

pytestmark = pytest.mark.agents

HOSTILE = 'It\'s "$HOME" `id`\n${{ secrets.x }} \\ 汉字'


def _raw(path: Path) -> Path:
    rows = [{"text": f"{n}?", "gold": n} for n in range(40)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_described_data_set_is_on_every_node(nodes: Maker, tmp_path: Path) -> None:
    raw = _raw(tmp_path / "raw.jsonl")
    cluster = nodes(2)
    fields = {"source": str(raw), "prompt_field": "text", "answer_field": "gold"}
    asked = [
        DataSet(name="mine", system=HOSTILE, **fields),
        DataSet(name="owner/name", **fields),  # a slash in a name is not a folder of its own
        DataSet(name=str(raw), prompt_field="text", answer_field="gold"),
    ]
    cluster.start(*(f"--data={each.argument()}" for each in asked), "--data=addition").ready()
    seen = cluster[0].agent.status().facts.data
    assert list(seen) == ["mine", "owner/name", str(raw), "addition"]
    for name, paths in seen.items():
        for split in ("train", "test"):
            here = Path(paths[split])
            there = cluster.folder / "node-1" / "data" / here.relative_to(cluster.folder / "node-0" / "data")
            assert here.read_bytes() == there.read_bytes(), name
            assert len(here.relative_to(cluster.folder / "node-0" / "data").parts) == 2
    [row] = [json.loads(Path(seen["mine"]["test"]).read_text())[0]]
    assert row["prompt"][0] == {"role": "system", "content": HOSTILE}
    assert "38 train and 2 test rows in " in (cluster.folder / "node-0" / "data-mine.log").read_text()


def test_a_field_that_is_not_there_ends_the_cluster_with_the_columns(nodes: Maker, tmp_path: Path) -> None:
    asked = DataSet(name="mine", source=str(_raw(tmp_path / "raw.jsonl")), prompt_field="txt")
    cluster = nodes(2).start(f"--data={asked.argument()}")
    said = "prompt_field 'txt' is not a column; did you mean 'text'?"
    assert f"rank 0, data: data mine: data set mine has text, gold: {said}" in cluster.failed()
