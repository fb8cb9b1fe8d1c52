"""Where the model of a run is going to be, looked at before anything is rented."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_hub import FakeHub
from huggingface_hub import HfApi

from cloudrl.errors import InputError
from cloudrl.sdk.results import advise_push, check_publication, refuse_small_disk

QWEN = "Qwen/Qwen3-32B"  # 65.5 GB when it is merged


@pytest.mark.parametrize(("free_gb", "is_refused"), [(60, True), (70, False)])
def test_a_disk_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, free_gb: int, is_refused: bool
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free_gb * 10**9))
    target = tmp_path / "not" / "there"
    refuse_small_disk("me/model", target)
    if not is_refused:
        refuse_small_disk(QWEN, target)
        return
    with pytest.raises(InputError, match=r"takes 65\.5 GB, and the disk of .* has 60\.0 GB free") as caught:
        refuse_small_disk(QWEN, target)
    assert "--push ORG/NAME" in str(caught.value.hint)


def test_a_large_model_is_better_published_from_the_cluster() -> None:
    notice = advise_push(QWEN, "./model")
    assert notice is not None
    assert "./model gets 65.5 GB over the tunnel" in notice.text
    assert "9 minutes at 1 Gbit/s, 87 at 100 Mbit/s" in notice.text
    assert advise_push("Qwen/Qwen2.5-7B-Instruct", "./model") is None
    assert advise_push(None, "./model") is None


def test_what_the_hub_would_refuse_is_refused_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(InputError, match="is not a repository"):
        check_publication("model")
    with pytest.raises(InputError, match="no token for the Hub") as caught:
        check_publication("me/model")
    assert caught.value.hint == "hf auth login"
    monkeypatch.setattr("huggingface_hub.get_token", lambda: "hf_x")
    with FakeHub() as hub:
        api = HfApi(hub.url, "hf_x")
        for repo in ("me/model", "me/closed"):
            check_publication(repo, api=api)
        with pytest.raises(InputError, match="me/open exists and is PUBLIC"):
            check_publication("me/open", api=api)
        assert not hub.committed
        assert "me/model" not in hub.repos, "nothing is made for a training that may fail"
        hub.role = "read"
        with pytest.raises(InputError, match="may only read") as caught:
            check_publication("me/model", api=api)
        assert "hf auth login" in str(caught.value.hint)
    check_publication("me/open", api=api)  # it does not answer here, and may do so on the head
