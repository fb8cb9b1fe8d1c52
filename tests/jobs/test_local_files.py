from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cloudrl
from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions
from cloudrl.jobs.local_files import LocalFiles, LocalPath, find_local_paths, inspect_files
from cloudrl.spec import Job
from cloudrl.spec.hydra import hydra_text, items, unquoted

MODEL, TRAIN = "actor_rollout_ref.model.path", "data.train_files"
REWARD = "reward.custom_reward_function.path"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with files, and a home beside it."""
    folder = tmp_path / "here"
    for name in ("mine.parquet", "reward.py", "home/own.parquet", "proj/reward.py", "proj/sub/tool.py"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    for name in ("model", "owner/name", "a/b/model", "proj/owner/name"):
        (folder / name).mkdir(parents=True)
        (folder / name / "config.json").write_text("{}")
    monkeypatch.setenv("HOME", str(folder / "home"))
    return folder


def found(
    here: Path, key: str, value: object, working_dir: str | None = None, nodes_are_here: bool = False
) -> tuple[tuple[LocalPath, ...], tuple[str, ...]]:
    """(the paths of this machine in one override, what is said of it)."""
    options = SubmitOptions(overrides={key: value}, working_dir=working_dir and str(here / working_dir))
    files = inspect_files(Job(name="x"), options, here=here)
    return find_local_paths({key: hydra_text(value)}, files, nodes_are_here=nodes_are_here)


@pytest.mark.parametrize(
    ("key", "text", "path"),
    [
        (TRAIN, "./mine.parquet", "mine.parquet"),
        (TRAIN, "mine.parquet", "mine.parquet"),
        (TRAIN, "../here/mine.parquet", "../here/mine.parquet"),
        (TRAIN, "~/own.parquet", "home/own.parquet"),
        (MODEL, "./model", "model"),
        (MODEL, "model", "model"),
        (MODEL, "./owner/name", "owner/name"),
        (MODEL, "a/b/model", "a/b/model"),
        ("++" + MODEL, "./model", "model"),
        ("reward.custom_reward_function.path", "./reward.py", "reward.py"),
    ],
)
def test_paths_of_this_machine(here: Path, key: str, text: str, path: str):
    [[one], _] = found(here, key, text)
    assert (one.key, one.text) == (key, text)
    assert one.file.resolved == (here / path).resolve()


@pytest.mark.parametrize(
    ("key", "text"),
    [
        (TRAIN, "/data/train.parquet"),
        (TRAIN, "hdfs://host/x.parquet"),
        (TRAIN, "${data.val_files}"),
        (TRAIN, "null"),
        (MODEL, "Qwen/Qwen2.5-7B-Instruct"),
        (MODEL, "gpt2"),
        (MODEL, "/models/x"),
        ("reward.custom_reward_function.path", "pkg://verl.utils.reward"),
        ("trainer.project_name", "./mine.parquet"),
        ("trainer.default_local_dir", "./model"),
        ("~" + TRAIN, ""),
    ],
)
def test_what_is_left_as_it_is(here: Path, key: str, text: str):
    assert found(here, key, text) == ((), ())


TOOL = "actor_rollout_ref.rollout.multi_turn.function_tool_path"


@pytest.mark.parametrize("working_dir", [None, "proj"])
def test_a_file_that_comes_with_cloudrl_goes_along(here: Path, working_dir: str | None):
    [[one], notes] = found(here, TOOL, "cloudrl://tools/search.py", working_dir)
    assert one.file.path == Path(str(cloudrl.__file__)).parent / "tools" / "search.py"
    assert [entry.name for entry in one.file.entries] == ["search.py"]
    assert notes == ()


def test_a_file_that_does_not_come_with_cloudrl_gets_the_nearest(here: Path):
    with pytest.raises(InputError, match=r"tools/serach\.py does not exist; did you mean 'search\.py'\?"):
        found(here, TOOL, "cloudrl://tools/serach.py")


def test_lists(here: Path):
    paths, _ = found(here, TRAIN, ["./mine.parquet", "/data/x.parquet", "~/own.parquet"])
    assert [each.text for each in paths] == ["./mine.parquet", "~/own.parquet"]


def test_an_absolute_path_is_of_the_nodes_and_a_note_says_so(here: Path):
    path = str(here / "mine.parquet")
    said = f"{TRAIN}={path} is a path on the nodes; to send what this machine has there, give it relative to this "
    said += "folder"
    assert found(here, TRAIN, path) == ((), (said,))
    assert found(here, TRAIN, path, nodes_are_here=True) == ((), ()), "the nodes have this machine's disk"


def test_a_model_on_the_hub_with_a_folder_of_its_name(here: Path):
    said = f"{MODEL}=owner/name is a model on the Hub; the folder of that name here needs ./owner/name"
    assert found(here, MODEL, "owner/name") == ((), (said,))


def test_the_working_directory_comes_first(here: Path):
    for key, text, path in (
        ("reward.custom_reward_function.path", "reward.py", "proj/reward.py"),
        (MODEL, "owner/name", "proj/owner/name"),
        ("reward.custom_reward_function.path", "./reward.py", "reward.py"),
    ):
        [[one], _] = found(here, key, text, "proj")
        assert one.file.path == here / path


def test_a_working_directory_that_nobody_here_knows(here: Path):
    assert find_local_paths({TRAIN: hydra_text("data/x.parquet")}, LocalFiles(here, working_dir_is_remote=True)) == (
        (),
        (),
    )


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        (TRAIN, "./mine.parqet", r"data\.train_files=\./mine\.parqet: .*/here/mine\.parqet does not exist; did"),
        (TRAIN, "mine.parqet", r"did you mean 'mine\.parquet'\?"),
        (TRAIN, "./nothing/mine.parquet", r"does not exist, nor does its folder .*/here/nothing"),
        (MODEL, "./modle", r"did you mean 'model'\?"),
        (MODEL, "a/b/modle", r"did you mean 'model'\?"),
        (TRAIN, "~/owm.parquet", r"did you mean 'own\.parquet'\?"),
        (TRAIN, "./model", r"\./model is a folder, and verl reads a data file there"),
        (MODEL, "./mine.parquet", r"\./mine\.parquet is a file, and verl reads a model folder there"),
        (MODEL, "./home", r"\./home has no config\.json, so it is not a Hugging Face model folder"),
        (MODEL, ".", r"\. has no config\.json"),
    ],
)  # fmt: skip
def test_what_cannot_be(here: Path, key: str, text: str, message: str):
    with pytest.raises(InputError, match=message):
        found(here, key, text)


def test_no_hint_lists_a_folder_that_does_not_exist(here: Path):
    with pytest.raises(InputError) as caught:
        found(here, TRAIN, "./mine.parqet")
    assert caught.value.hint.startswith(f"ls {here}\n")
    with pytest.raises(InputError) as caught:
        found(here, TRAIN, "./nothing/mine.parquet")
    assert "ls " not in caught.value.hint


def test_a_folder_as_a_file_names_what_is_in_it(here: Path):
    with pytest.raises(InputError) as caught:
        found(here, REWARD, "./proj")
    assert caught.value.hint == f"For example: {REWARD}=./proj/reward.py"
    with pytest.raises(InputError) as caught:
        found(here, TRAIN, "./proj")
    assert caught.value.hint is None  # it has no data


@given(st.lists(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=12), max_size=4))
def test_a_list_is_read_back_as_hydra_reads_it(texts: list[str]):
    written = hydra_text(texts)
    read = items(written)
    # what looks nested or empty is not a path: it may be left alone, but never become something else
    assert read in (tuple(texts), ())
    if all(text and text.isascii() and text.replace(".", "").replace("/", "").isalnum() for text in texts):
        assert read == tuple(texts)


@given(st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"])))
def test_quotes_come_off_again(value: str):
    text = hydra_text(value)
    if text[:1] in ("'", '"'):
        assert unquoted(text) == value
