"""Config and tokenizer of a base model: the small files, and never the weights."""

import sys
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
from huggingface_hub.errors import DryRunError, LocalEntryNotFoundError

from cloudrl.checkpoints.base_model import read_base
from cloudrl.data.hub import http_errors
from cloudrl.errors import ConnectionFailed, InputError

KEPT = ["chat_template.jinja", "config.json", "merges.txt", "tokenizer.json", "tokenizer.model"]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    weights = ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "README.md", "modeling.py"]
    for name in (*KEPT, *weights):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_of_a_folder(model: Path) -> None:
    assert read_base(str(model)) == {name: name.encode() for name in KEPT}


def test_links_as_in_a_cache_of_the_hub_are_followed(model: Path) -> None:
    (model / "config.json").rename(model / "blob")
    (model / "config.json").symlink_to("blob")
    assert read_base(str(model))["config.json"] == b"config.json"


def test_of_the_hub(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is too large to go beside weights is never downloaded."""
    asked = []
    sizes = {"config.json": 700, "vocab.txt": 10**12, "deep/tokens.json": 10**10}

    def download(name: str, *, allow_patterns: list[str], ignore_patterns: list[str], dry_run: bool = False) -> object:
        if dry_run:
            return [SimpleNamespace(filename=file, file_size=size) for file, size in sizes.items()]
        asked.append((name, "*.safetensors" in allow_patterns, ignore_patterns[-2:]))
        return str(model)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert list(read_base("Qwen/Qwen3-8B")) == KEPT
    assert asked == [("Qwen/Qwen3-8B", False, ["vocab.txt", "deep/tokens.json"])]


def test_without_the_hub_the_cache_is_read(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, dry_run: bool = False, **__: object) -> str:
        if dry_run:
            raise DryRunError("no network")
        return str(model)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert list(read_base("Qwen/Qwen3-8B")) == KEPT


@pytest.mark.parametrize("error", [LocalEntryNotFoundError, RuntimeError, *http_errors()])
def test_a_hub_that_does_not_answer(error: type[Exception], monkeypatch: pytest.MonkeyPatch) -> None:
    def download(*_: object, **__: object) -> str:
        raise error("no network")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    with pytest.raises(ConnectionFailed, match=r"--base Qwen/Qwen3-8B could not be downloaded \(no network\)"):
        read_base("Qwen/Qwen3-8B")


def test_a_machine_without_the_package_of_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(InputError, match="--base Qwen/Qwen3-8B cannot be downloaded") as caught:
        read_base("Qwen/Qwen3-8B")
    assert "pip install huggingface_hub" in str(caught.value.hint)


@pytest.mark.parametrize("name", ["~nosuchuser/model", "x" * 300])
def test_what_can_be_no_folder(name: str) -> None:
    with pytest.raises(InputError, match="is not a folder: ") as caught:
        read_base(name)
    assert "OWNER/NAME" in str(caught.value.hint)


def test_a_folder_without_a_config(model: Path) -> None:
    (model / "config.json").unlink()
    with pytest.raises(InputError, match=r"has no config\.json"):
        read_base(str(model))
