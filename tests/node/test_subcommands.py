"""What runs beside the agent: imports, one data set, one model; and the agent's own lines."""

from __future__ import annotations

import contextlib
import json
import re
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from child_processes import ended
from node_harness import until

from cloudrl.node import imports
from cloudrl.node.fetch import describe, hub_cache, models_dir, sha256, split_paths
from cloudrl.node.log import Log
from cloudrl.node.main import main
from cloudrl.protocol.report import DataFile

if TYPE_CHECKING:
    from pathlib import Path


def test_imports(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["imports", "json", "re"]) == 0
    assert main(["imports", "json", "no_such_module_here", "re"]) == 1
    assert capsys.readouterr().err == (
        "import no_such_module_here: ModuleNotFoundError: No module named 'no_such_module_here'\n"
    )


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (
            "Error: mkl-service + Intel(R) MKL: MKL_THREADING_LAYER=INTEL is incompatible with libgomp",
            "pip install -U numpy",
        ),
        ("ImportError: libcudart.so.12: cannot open shared object file", "CUDA"),
        ("ImportError: _C.abi3.so: undefined symbol: _ZN3c10", "another torch"),
        ("ModuleNotFoundError: No module named 'x'", ""),
    ],
)
def test_a_known_clash_has_a_remedy(text: str, word: str) -> None:
    assert word in imports.remedy(text)
    assert bool(imports.remedy(text)) == bool(word)


@pytest.mark.parametrize(
    ("tail", "code"),
    [
        ("import torch: ImportError: MKL_THREADING_LAYER=INTEL is incompatible", "MKL_THREADING_LAYER"),
        ("import vllm: ImportError: _C.abi3.so: undefined symbol: _ZN3c10", "undefined symbol"),
        ("a warning\nimport vllm: ModuleNotFoundError: No module named 'x'", "ModuleNotFoundError"),
        (
            "Traceback (most recent call last):\nKeyError: 'a'\n\nvllm.errors.StartError: b\nnote",
            "StartError",
        ),
        ("  File x\nAssertionError", "AssertionError"),
        ("Fatal Python error: Segmentation fault", "exit -11"),
        ("", "exit -11"),
    ],
)
def test_import_errors_have_codes(tail: str, code: str) -> None:
    assert imports.code(tail, -11) == code


@pytest.mark.parametrize(
    ("words", "edge"),
    [
        (["data", "addition"], "cloudrl.data.prepare"),
        (["model", "owner/name"], "cloudrl.node.subcommands._model_path"),
    ],
)
def test_a_mistake_of_a_child_has_a_code_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], edge: str
) -> None:
    """Its traceback is told, and the agent reads more than an exit status."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("row 7")

    monkeypatch.setattr(edge, broken)
    more = ["--result", str(tmp_path / "result")] if words[0] == "model" else []
    with pytest.raises(ZeroDivisionError):
        main([*words, "--to", str(tmp_path), "--error", str(tmp_path / "error"), *more])
    assert (tmp_path / "error").read_text() == "ZeroDivisionError"


def test_an_unknown_data_set_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "adition", "--to", str(tmp_path / "d")]) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert "no data set 'adition'" in line
    assert "addition" in line


def test_a_described_data_set_says_how_far_it_is(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"text": f"{n}?", "gold": n} for n in range(40)]
    (tmp_path / "raw.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    asked = {
        "name": "mine",
        "source": str(tmp_path / "raw.jsonl"),
        "prompt_field": "text",
        "answer_field": "gold",
    }
    assert main(["data", json.dumps(asked), "--to", str(tmp_path / "d")]) == 0
    first, note, last = capsys.readouterr().err.splitlines()
    assert first.startswith("mine: prompt from 'text', answer from 'gold'")
    assert "no reward function for data source 'mine'" in note
    assert last.startswith("mine: 38 train and 2 test rows in ")
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["test.parquet", "train.parquet"]


@pytest.mark.io
def test_a_data_set_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM, as the agent sends it when the time is over, amid rows that take some seconds."""
    row = '{"question": "q", "answer": "a"}\n'
    for split, count in (("train", 400_000), ("test", 1)):
        (tmp_path / f"{split}.jsonl").write_text(row * count)
    asked = json.dumps({"name": "mine", "source": str(tmp_path)})
    command = [sys.executable, "-m", "cloudrl.node", "data", asked, "--to", str(tmp_path / "new" / "out")]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as child, ended(child):
        until(lambda: list(tmp_path.glob("new/.out-*.partial/train.parquet")), "the first rows")
        child.send_signal(signal.SIGTERM)
        assert child.wait(30) == 128 + signal.SIGTERM
    assert list((tmp_path / "new").iterdir()) == []


def test_a_model_that_is_a_folder(tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    words = [
        "model",
        str(tmp_path / "model"),
        "--to",
        str(tmp_path / "hub"),
        "--result",
        str(tmp_path / "result"),
    ]
    assert main(words) == 0
    assert json.loads((tmp_path / "result").read_text()) == {"path": str(tmp_path / "model")}


def test_a_folder_that_is_no_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model", str(tmp_path), "--to", str(tmp_path / "hub"), "--result", str(tmp_path / "result")]
    assert main(words) == 1
    [line] = capsys.readouterr().err.splitlines()
    assert f"{tmp_path} has no config.json" in line
    assert not (tmp_path / "result").exists()


def test_words_that_mean_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert main(["walk"]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("env", "folder"),
    [
        ({}, "/home/me/.cache/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x"}, "/x/huggingface/hub"),
        ({"XDG_CACHE_HOME": "/x", "HF_HOME": "/h"}, "/h/hub"),
        ({"HF_HOME": "~/h"}, "/home/me/h/hub"),
        ({"HF_HOME": "/h", "HF_HUB_CACHE": "/c"}, "/c"),
    ],
)
def test_the_hub_cache(
    env: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert str(hub_cache(env)) == folder
    assert str(models_dir("Qwen/Qwen2.5-0.5B", tmp_path, env)) == folder
    assert models_dir("tiny-qwen2", tmp_path, env) == tmp_path / "models"


def test_the_hub_cache_is_where_huggingface_hub_puts_it(tmp_path: Path) -> None:
    """Differential: the library itself, in a Python of its own since it reads its variables once."""
    env = {"HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    done = subprocess.run(
        [sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert str(hub_cache(env)) == done.stdout.strip()


def test_prepared_files_are_described(tmp_path: Path) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "train.parquet").write_bytes(b"abc")
    described = describe(tmp_path / "d" / "train.parquet")
    digest = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    assert sha256(tmp_path / "d" / "train.parquet") == digest
    assert described == DataFile("train.parquet", 3, digest)
    assert split_paths(tmp_path, "d", [described]) == {"train": str(tmp_path / "d" / "train.parquet")}
    # a name with a slash in it is one folder
    assert split_paths(tmp_path, "owner/name", [described]) == {
        "train": str(tmp_path / "owner--name" / "train.parquet")
    }


def test_lines_have_time_and_rank_and_verdicts_stand_alone(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = Log(tmp_path / "deep" / "agent.log", 3)
    log.line("a\nb")
    log.verdict("CLOUDRL FAILED: x")
    text = log.path.read_text()
    assert re.fullmatch(r"\[\d\d:\d\d:\d\d rank 3\] a\nb\nCLOUDRL FAILED: x\n", text)
    assert capsys.readouterr().out == text


def test_a_line_that_cannot_be_written_ends_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A full disk, or no descriptor left: the main thread writes these lines."""
    log = Log(tmp_path / "agent.log", 0)
    log.path.unlink()
    log.path.mkdir()
    log.line("to standard output alone")
    assert "to standard output alone" in capsys.readouterr().out
    with open("/dev/full", "w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        log.line("nowhere")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()
