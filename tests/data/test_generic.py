"""Any data set: its fields, its splits, its rows; and verl's own reader on what comes out."""

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from verl_forks import Script

from cloudrl.data import generic, gsm8k, prepare
from cloudrl.data.request import Request
from cloudrl.errors import InputError
from cloudrl.spec import DataSet
from cloudrl.verl_cpu.tiny_model import make_tiny_model

RAW_GSM8K = Path(__file__).parent / "gsm8k"


def raw(count: int, start: int = 0) -> list[dict[str, Any]]:
    return [{"question": f"{n} + 1?", "answer": n + 1, "id": f"r{n}"} for n in range(start, start + count)]


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def made(folder: Path, source: Path, **fields: Any) -> dict[str, list[dict[str, Any]]]:
    """The rows by split."""
    paths = generic.prepare(folder / "out", Request("mine", str(source), **fields))
    return {split: pq.read_table(path).to_pylist() for split, path in paths.items()}


def one(folder: Path, row: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """What becomes of one row."""
    return made(folder, lines(folder / "x.jsonl", [row, row]), **fields)["train"][0]


def refusal(folder: Path, rows: list[dict[str, Any]], **fields: Any) -> InputError:
    with pytest.raises(InputError) as caught:
        made(folder, lines(folder / "x.jsonl", rows), **fields)
    assert not (folder / "out").exists()
    return caught.value


def test_rows_have_verls_columns_and_types(tmp_path: Path) -> None:
    lines(tmp_path / "raw" / "train.jsonl", raw(2))
    lines(tmp_path / "raw" / "test.jsonl", raw(1, start=9))
    rows = made(tmp_path, tmp_path / "raw", system="Be brief.")
    assert rows["test"] == [
        {
            "data_source": "mine",
            "prompt": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "9 + 1?"}],
            "ability": "general",
            "reward_model": {"style": "rule", "ground_truth": "10"},
            "extra_info": {"split": "test", "index": 0},
        }
    ]
    assert [row["extra_info"] for row in rows["train"]] == [
        {"split": "train", "index": 0},
        {"split": "train", "index": 1},
    ]
    text = pa.string()
    assert {field.name: field.type for field in pq.read_schema(tmp_path / "out" / "train.parquet")} == {
        "data_source": text,
        "prompt": pa.list_(pa.struct({"role": text, "content": text})),
        "ability": text,
        "reward_model": pa.struct({"style": text, "ground_truth": text}),
        "extra_info": pa.struct({"split": text, "index": pa.int64()}),
    }


# -- fields ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("row", "fields", "prompt", "answer"),
    [
        ({"question": "q", "answer": "a"}, {}, "q", "a"),
        ({"Problem": "q", "Solution": "a"}, {}, "q", "a"),
        ({"instruction": "q", "response": "a", "id": 1}, {}, "q", "a"),
        ({"solution": "long", "answer": "a", "problem": "q"}, {}, "q", "a"),
        ({"text": "q", "answer": "b", "n": 7}, {"prompt_field": "text", "answer_field": "n"}, "q", "7"),
        ({"question": "q", "answers": {"text": ["a", "b"]}}, {"answer_field": "answers.text.1"}, "q", "b"),
        ({"question": "q", "a.b": "a", "a": {"b": "x"}}, {"answer_field": "a.b"}, "q", "a"),
        ({"question": "q", "answer": 0.5}, {}, "q", "0.5"),
        ({"question": "q", "answer": 0}, {}, "q", "0"),
        ({"question": " q\n", "answer": " a "}, {}, " q\n", " a "),
    ],
)
def test_fields_by_their_usual_names_or_as_told(
    row: dict[str, Any], fields: dict[str, str], prompt: str, answer: str, tmp_path: Path
) -> None:
    found = one(tmp_path, row, **fields)
    assert found["prompt"] == [{"role": "user", "content": prompt}]
    assert found["reward_model"]["ground_truth"] == answer


@pytest.mark.parametrize(
    ("rows", "fields", "message", "hint"),
    [
        (raw(3), {"prompt_field": "qestion"},
         "data set mine has question, answer, id: prompt_field 'qestion' is not a column; did you mean 'question'?",
         "Say which one it is: prompt_field=COLUMN (--prompt-field COLUMN)"),
        ([{"question": "q", "answers": {"text": "a", "start": 1}}] * 3, {"answer_field": "answers.txt"},
         ("data set mine has question, answers.text, answers.start: answer_field 'answers.txt' is not a column; "
          "did you mean 'answers.text'?"),
         "Say which one it is: answer_field=COLUMN (--answer-field COLUMN)"),
        ([{"question": "q", "gold": "a"}] * 3, {},
         ("data set mine has question, gold: no column for the answer (answer, final_answer, solution, response, "
          "output, ground_truth, target or label)"),
         "Say which one it is: answer_field=COLUMN (--answer-field COLUMN)"),
        ([{"ask": "q", "gold": "a"}] * 3, {},
         ("data set mine has ask, gold: no column for the prompt (prompt, question, problem, instruction or query) "
          "and no column for the answer (answer, final_answer, solution, response, output, ground_truth, target or "
          "label)"),
         ("Say which one it is: prompt_field=COLUMN (--prompt-field COLUMN) "
          "answer_field=COLUMN (--answer-field COLUMN)")),
        ([{"question": "q", "answer": ""}] * 3, {"skip_bad": True},
         "mine train: every row is bad; mine train row 1: its answer is empty", None),
        (raw(40), {"test_rows": 40}, "data set mine: test_rows 40 of 40 rows leaves none to train on",
         "At most test_rows=39"),
        (raw(1), {}, "data set mine: test_rows 1 of 1 rows leaves none to train on", None),
        ([], {}, "data set mine: there are no rows in train",
         'A line of it is, for example: {"question": "What is 1 + 1?", "answer": "2"}'),
    ],
)  # fmt: skip
def test_a_table_that_cannot_be_used_is_named(
    rows: list[dict[str, Any]], fields: dict[str, Any], message: str, hint: str | None, tmp_path: Path
) -> None:
    error = refusal(tmp_path, rows, **fields)
    assert (error.message, error.hint) == (message, hint)


CHAT = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "1?"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "3?"},
]


def test_a_chat_stays_as_it_is(tmp_path: Path) -> None:
    assert one(tmp_path, {"prompt": CHAT, "answer": "4"})["prompt"] == CHAT
    assert one(tmp_path, {"prompt": CHAT[1:], "answer": "4"}, system="S")["prompt"] == [
        {"role": "system", "content": "S"},
        *CHAT[1:],
    ]


@pytest.mark.parametrize(
    ("row", "fields", "problem"),
    [
        ({"question": "", "answer": "a"}, {}, "its prompt is empty"),
        ({"question": " \n", "answer": "a"}, {}, "its prompt is empty"),
        ({"question": None, "answer": "a"}, {}, "its prompt is empty"),
        ({"question": [], "answer": "a"}, {}, "its prompt is empty"),
        ({"question": 7, "answer": "a"}, {}, "its prompt is neither a text nor a list of messages, but '7'"),
        ({"question": "q", "answer": ""}, {}, "its answer is empty"),
        ({"question": "q", "answer": None}, {}, "its answer is empty"),
        ({"question": "q", "answer": float("nan")}, {}, "its answer is empty"),
        ({"question": "q", "answer": True}, {}, "its answer is neither a text nor a number, but 'True'"),
        ({"question": "q", "answer": ["a"]}, {}, "its answer is neither a text nor a number, but \"['a']\""),
        ({"question": "q", "answer": []}, {"data_source": "searchR1_nq"}, "its list of answers is empty"),
        ({"question": "q", "answer": [""]}, {"data_source": "searchR1_nq"}, "its answer is empty"),
        ({"question": "q", "answer": "\ud800"}, {}, "its answer holds a lone surrogate"),
        ({"question": "\ud800", "answer": "a"}, {}, "its prompt holds a lone surrogate"),
        ({"question": "q"}, {}, "it has no field 'answer'; it has question"),
        ({"question": CHAT[:3], "answer": "a"}, {}, "its prompt ends with the assistant's message"),
        ({"question": CHAT, "answer": "a"}, {"system": "S"}, "its prompt has a system message already"),
        ({"question": [{"from": "human", "value": "q"}], "answer": "a"}, {},
         "a message of its prompt should have role and content, not 'from, value'"),
        ({"question": [{"role": "human", "content": "q"}], "answer": "a"}, {},
         "a message of its prompt has role 'human'; verl's chat templates know system, "),
        ({"question": [{"role": "user", "content": ""}], "answer": "a"}, {},
         "the user's message of its prompt is empty"),
        ({"question": [{"role": "user", "content": "q", "tool_calls": [1]}], "answer": "a"}, {},
         "a message of its prompt has tool_calls besides role and content"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_used_is_named(
    row: dict[str, Any], fields: dict[str, str], problem: str, tmp_path: Path
) -> None:
    error = refusal(tmp_path, [*raw(2), row, *raw(3)], **fields)
    assert error.message.startswith(f"mine train row 3: {problem}")
    assert error.hint == "skip_bad=True (--skip-bad) leaves such rows out"


def test_bad_rows_are_left_out_on_request_and_counted(tmp_path: Path) -> None:
    bad = {"question": "q", "answer": ""}
    source = lines(tmp_path / "x.jsonl", [bad, *raw(5), bad])
    said: list[str] = []
    paths = generic.prepare(tmp_path / "out", Request("mine", str(source), skip_bad=True), say=said.append)
    kept = sum(pq.read_metadata(path).num_rows for path in paths.values())
    assert kept == 5
    assert said[-1] == "mine: 2 rows left out; the first: mine train row 1: its answer is empty"


@pytest.mark.verl
@pytest.mark.parametrize("answer", ["Goethe", ["Johann Wolfgang von Goethe", "Goethe"]])
def test_answers_of_agents_that_search_are_what_verls_exact_match_reads(answer: object, tmp_path: Path) -> None:
    from verl.utils.reward_score import default_compute_score

    row = one(tmp_path, {"question": "Who wrote Faust?", "answer": answer}, data_source="searchR1_nq")
    truth = row["reward_model"]["ground_truth"]
    assert default_compute_score("searchR1_nq", "<answer>Goethe</answer>", truth) == 1
    assert default_compute_score("searchR1_nq", "<answer>Schiller</answer>", truth) == 0


# -- splits ---------------------------------------------------------------------------------------------------


def test_without_a_test_split_rows_are_held_out_always_the_same(tmp_path: Path) -> None:
    source = lines(tmp_path / "x.jsonl", raw(200))
    rows = made(tmp_path, source)
    assert {split: len(each) for split, each in rows.items()} == {"train": 190, "test": 10}
    numbers = {split: [row["extra_info"]["index"] for row in each] for split, each in rows.items()}
    assert sorted(numbers["train"] + numbers["test"]) == list(range(200))
    assert numbers["test"] != list(range(10))
    assert all(row["prompt"][0]["content"] == f"{row['extra_info']['index']} + 1?" for row in rows["test"])
    assert {row["extra_info"]["split"] for row in rows["test"]} == {"test"}
    assert made(tmp_path, source) == rows


@pytest.mark.parametrize(("rows", "asked", "test"), [(40, 7, 7), (2, None, 1), (20_100, None, 1000), (41, None, 2)])
def test_how_many_are_held_out(rows: int, asked: int | None, test: int, tmp_path: Path) -> None:
    source = lines(tmp_path / "x.jsonl", raw(rows))
    paths = generic.prepare(tmp_path / "out", Request("mine", str(source), test_rows=asked))
    assert pq.read_metadata(paths["test"]).num_rows == test
    assert pq.read_metadata(paths["train"]).num_rows == rows - test


def test_splits_by_their_usual_names_or_as_told(tmp_path: Path) -> None:
    for number, split in enumerate(("train", "train_big", "validation", "extra")):
        lines(tmp_path / "raw" / f"{split}.jsonl", raw(3 + number))

    def counts(**fields: Any) -> tuple[int, int]:
        rows = made(tmp_path, tmp_path / "raw", **fields)
        return len(rows["train"]), len(rows["test"])

    assert counts() == (3, 5)
    assert counts(split="train_big") == (4, 5)
    assert counts(split="train_big", test_split="extra") == (4, 6)
    assert counts(test_rows=2) == (1, 2)  # rows are held out although there is a split for testing
    for option in ("split", "test_split"):
        with pytest.raises(InputError) as caught:
            counts(**{option: "trian_big"})
        assert caught.value.message == (f"data set mine: {option} 'trian_big' is not there; did you mean 'train_big'?")
        assert caught.value.hint == "It has extra, train, train_big, validation"


def test_which_split_is_for_training_has_to_be_said(tmp_path: Path) -> None:
    for split in ("easy", "hard"):
        lines(tmp_path / "raw" / f"{split}.jsonl", raw(3))
    with pytest.raises(InputError, match=r"mine: which split is for training\? It has easy, hard") as caught:
        made(tmp_path, tmp_path / "raw")
    assert caught.value.hint == "Say it: split='easy' (--split easy)"


# -- names, sources and what is said --------------------------------------------------------------------------


def test_the_data_source_decides_verls_reward_and_is_remarked_on(tmp_path: Path) -> None:
    source = str(lines(tmp_path / "x.jsonl", raw(3)))
    said: list[str] = []
    generic.prepare(tmp_path / "a", Request("mine", source, data_source="openai/gsm8k"), say=said.append)
    assert (
        said[0]
        == "mine: prompt from 'question', answer from 'answer'; training rows from 'train', test rows held out of them"
    )
    assert not [line for line in said if "reward" in line]
    assert pq.read_table(tmp_path / "a" / "test.parquet").column("data_source").to_pylist() == ["openai/gsm8k"]
    generic.prepare(tmp_path / "b", Request("mine", source), say=said.append)
    [note] = [line for line in said if "reward" in line]
    assert "verl has no reward function for data source 'mine'" in note
    assert "NotImplementedError" in note
    assert "reward.custom_reward_function.path" in note


@pytest.mark.parametrize(
    ("request_", "source"),
    [
        (Request("mine", "owner/name"), "owner/name"),
        (Request("owner/name"), "owner/name"),
        (Request("mine", "/a/b"), "mine"),
        (Request("/a/mine.jsonl"), "mine"),
        (Request("mine", "owner/name", data_source="math"), "math"),
    ],
)
def test_the_data_source_is_the_hub_id_unless_told_otherwise(request_: Request, source: str) -> None:
    assert generic.data_source(request_) == source


def test_the_hub_id_of_a_built_in_data_set_means_that_one(tmp_path: Path) -> None:
    """As rows of unknown kind its answers would be whole solutions, and every reward zero."""
    wanted = gsm8k.prepare(tmp_path / "wanted", source=RAW_GSM8K)
    for name in ("gsm8k", "openai/gsm8k"):
        paths = prepare(DataSet(name=name, source=str(RAW_GSM8K)).argument(), tmp_path / name)
        for split, path in paths.items():
            assert Path(path).read_bytes() == Path(wanted[split]).read_bytes()


texts = st.text(st.characters(exclude_categories=["Cs"]), min_size=1).filter(lambda text: text.strip())
HOSTILE = [
    "' OR 1=1", "${{ secrets.x }}", "$(rm -rf /)", "\0", "a\u2028b", "<|im_end|>", "\x1b[31m", "\\boxed{", "\ufeffa",
    "a\r\nb",
]  # fmt: skip


@settings(max_examples=50)
@given(
    rows=st.lists(
        st.tuples(texts | st.sampled_from(HOSTILE), texts | st.sampled_from(HOSTILE)), min_size=2, max_size=5
    ),
    system=texts,
)
def test_any_text_goes_through_parquet_unchanged(
    rows: list[tuple[str, str]], system: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("x")
    lines(folder / "raw" / "train.jsonl", [{"question": left, "answer": right} for left, right in rows])
    lines(folder / "raw" / "test.jsonl", [{"question": "q", "answer": "a"}])
    found = made(folder, folder / "raw", system=system)["train"]
    assert [(row["prompt"][1]["content"], row["reward_model"]["ground_truth"]) for row in found] == rows
    assert {row["prompt"][0]["content"] for row in found} == {system}


READ_WITH_VERL = r"""
import json, sys
from omegaconf import OmegaConf
from transformers import AutoTokenizer
from verl.utils.dataset.rl_dataset import RLHFDataset
tokenizer = AutoTokenizer.from_pretrained(sys.argv[1])
config = OmegaConf.create({"cache_dir": sys.argv[3], "max_prompt_length": 100, "filter_overlong_prompts_workers": None})
data = RLHFDataset(sys.argv[2], tokenizer, config)
items = [data[number] for number in range(len(data))]
keys = ("raw_prompt", "data_source", "reward_model", "extra_info", "index")
json.dump([{key: item[key] for key in keys} for item in items], open(sys.argv[4], "w"))
"""


@pytest.mark.verl
def test_verls_own_data_set_reads_it(tmp_path: Path) -> None:
    long = {"question": "x" * 500, "answer": "too long for max_prompt_length"}
    source = lines(tmp_path / "x.jsonl", [*raw(4), {"question": CHAT, "answer": "4"}, long])
    paths = prepare(
        DataSet(name="mine", source=str(source.rename(tmp_path / "raw.jsonl"))).argument(), tmp_path / "out"
    )
    model = make_tiny_model(tmp_path / "tiny")
    result = tmp_path / "result.json"
    here = dict.fromkeys(("HF_HOME", "HOME", "TMPDIR"), str(tmp_path))
    env = {**here, "HF_HUB_OFFLINE": "1", "PATH": "/usr/bin:/bin"}
    Script(READ_WITH_VERL, (model, paths["train"], tmp_path / "cache", result), environ=env).end()
    items = json.loads(result.read_text())
    written = [row for row in pq.read_table(paths["train"]).to_pylist() if row["prompt"][-1]["content"] != "x" * 500]
    assert 3 <= len(items) == len(written)
    for item, row in zip(items, written, strict=True):
        assert item["raw_prompt"] == row["prompt"]
        assert item["reward_model"] == row["reward_model"]
        assert item["index"] == row["extra_info"]["index"]
        assert item["data_source"] == "mine"
