"""What runs beside the agent: imports, one data set, one model; and the agent's own lines."""

import contextlib
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from child_processes import ended
from node_harness import until
from patience import SLOWER

from cloudrl.child_process import Child
from cloudrl.node.download import hub_cache
from cloudrl.node.fetch import models_dir, split_paths
from cloudrl.node.log import Log
from cloudrl.node.main import main
from cloudrl.node.subcommands import ChildResult, explain_import
from cloudrl.protocol.wire import from_json


def left(folder: Path) -> ChildResult:
    return from_json(ChildResult, json.loads((folder / "result").read_text()))


def test_it_does_not_wait_for_processes_of_others(tmp_path: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as beside:
        assert main(["imports", "json", f"--result={tmp_path / 'result'}"]) == 0
        assert beside.poll() is None


def test_what_can_be_foreseen_is_said_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = f"--result={tmp_path / 'result'}"
    assert main(["imports", "json", "re", result]) == 0
    assert left(tmp_path).reason == ""
    assert main(["imports", "json", "no_such_module_here", "re", result]) == 1
    said = "import no_such_module_here: ModuleNotFoundError: No module named 'no_such_module_here'"
    assert left(tmp_path) == ChildResult(reason=said, code="ModuleNotFoundError")
    assert capsys.readouterr().err == f"{said}\n"


@pytest.mark.parametrize(
    ("reason", "log", "remedy", "code"),
    [
        ("MKL_THREADING_LAYER=INTEL is incompatible", "", " -> numpy's MKL", "MKL_THREADING_LAYER"),
        ("Try to import numpy first", "MKL_THREADING_LAYER=I", " -> numpy's MKL", "MKL_THREADING_LAYER"),
        ("libcudart.so.12: cannot open", "", " -> the image's CUDA", "libcudart"),
        ("_C.abi3.so: undefined symbol: _ZN3c10", "", " -> a package was compiled", "undefined symbol"),
        ("No module named 'x'", "a warning", "", "ImportError"),
    ],
)
def test_a_known_clash_has_a_remedy_which_is_its_code(reason: str, log: str, remedy: str, code: str) -> None:
    explained, found = explain_import(ChildResult(reason=reason, code="ImportError"), log)
    assert found == code
    assert explained.startswith(reason + remedy)
    assert remedy or explained == reason


@pytest.mark.parametrize(("words", "reason"), [("echo; echo ' x '; echo; kill -9 $$", "x"), ("kill -9 $$", "")])
def test_a_child_that_crashed_is_quoted(tmp_path: Path, words: str, reason: str) -> None:
    (tmp_path / "result").write_text('{"reas')
    child = Child(["/bin/sh", "-c", words], log=tmp_path / "log", env={})
    child.wait(10 * SLOWER)
    wanted = ChildResult(reason=reason or "its child exited with -9", code="exit -9")
    assert ChildResult.read(tmp_path / "result", child) == wanted


@pytest.mark.parametrize(
    ("words", "edge"),
    [(["data", "addition"], "cloudrl.data.prepare"), (["model", "owner/name"], "cloudrl.node.subcommands.download")],
)
def test_a_mistake_of_a_child_has_a_code_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: list[str], edge: str
) -> None:
    """Its traceback is told, and the agent reads more than an exit status."""

    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("row 7")

    monkeypatch.setattr(edge, broken)
    with pytest.raises(ZeroDivisionError):
        main([*words, "--to", str(tmp_path), "--result", str(tmp_path / "result")])
    assert left(tmp_path) == ChildResult(reason="ZeroDivisionError: row 7", code="ZeroDivisionError")


@pytest.mark.io
def test_a_data_set_that_is_interrupted_leaves_nothing(tmp_path: Path) -> None:
    """SIGTERM, as the agent sends it when the time is over, amid rows that take some seconds."""
    row = '{"question": "q", "answer": "a"}\n'
    for split, count in (("train", 400_000), ("test", 1)):
        (tmp_path / f"{split}.jsonl").write_text(row * count)
    asked = json.dumps({"name": "mine", "source": str(tmp_path)})
    words = ["data", asked, "--to", str(tmp_path / "new" / "out"), "--result", str(tmp_path / "result")]
    command = [sys.executable, "-m", "cloudrl.node", *words]
    with subprocess.Popen(command, stderr=subprocess.PIPE) as child, ended(child):
        until(lambda: list(tmp_path.glob("new/.out-*.partial/train.parquet")), "the first rows")
        child.send_signal(signal.SIGTERM)
        assert child.wait(30 * SLOWER) == 128 + signal.SIGTERM
    assert list((tmp_path / "new").iterdir()) == []


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
def test_the_hub_cache(env: dict[str, str], folder: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert str(hub_cache(env)) == folder
    assert str(models_dir("Qwen/Qwen2.5-0.5B", tmp_path, env)) == folder
    assert models_dir("tiny-qwen2", tmp_path, env) == tmp_path / "models"


def test_the_hub_cache_is_where_huggingface_hub_puts_it(tmp_path: Path) -> None:
    """Differential: the library itself, in a Python of its own since it reads its variables once."""
    env = {"HF_HOME": str(tmp_path), "PATH": "/usr/bin:/bin"}
    code = "from huggingface_hub import constants; print(constants.HF_HUB_CACHE)"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True, timeout=60)
    assert str(hub_cache(env)) == done.stdout.strip()


def test_paths_of_prepared_files(tmp_path: Path) -> None:
    assert split_paths(tmp_path, "d", ["train.parquet"]) == {"train": str(tmp_path / "d" / "train.parquet")}
    # a name with a slash in it is one folder
    assert split_paths(tmp_path, "owner/name", ["test.parquet"]) == {
        "test": str(tmp_path / "owner--name" / "test.parquet")
    }


def test_lines_have_time_and_rank_and_verdicts_stand_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
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
