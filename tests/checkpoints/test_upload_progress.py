"""How far an upload is, read from the bars that huggingface_hub itself draws."""

import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_hub import FakeHub
from huggingface_hub import HfApi
from huggingface_hub.utils import tqdm
from huggingface_hub.utils._xet_progress_reporting import XetUploadProgressReporter
from patience import SLOWER

from cloudrl.checkpoints.publishing import Publication, upload
from cloudrl.checkpoints.upload_progress import sent_bytes, upload_progress

pytestmark = pytest.mark.io

WEIGHTS = ("model-1.safetensors", "model-2.safetensors")
EACH_BYTES = 4 << 20


@pytest.mark.filterwarnings("ignore:Use 'content=:DeprecationWarning")  # huggingface_hub 1.33, lfs.py
def test_bytes_are_told_while_files_are_on_their_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_DISABLE_XET", True)  # its storage has no open protocol
    for name in WEIGHTS:
        (tmp_path / name).write_bytes(os.urandom(EACH_BYTES))
    total, told, has_told = len(WEIGHTS) * EACH_BYTES, list[tuple[int, int]](), threading.Event()

    def tell(sent: int, of: int) -> None:
        told.append((sent, of))
        has_told.set()

    with FakeHub() as hub:
        hub.lfs.update(WEIGHTS)
        hub.on_object = lambda: has_told.wait(10 * SLOWER)  # bytes wait in the connection meanwhile
        with upload_progress(total, tell, every_s=0.02):
            upload(Publication("me/tiny", private=True, card="", message="step 7"), tmp_path, HfApi(hub.url, "hf_x"))
        assert len(hub.objects) == len(WEIGHTS)
    assert 0 < told[0][0] < total
    assert told == sorted(told)
    assert told[-1] == (total, total)


def test_an_upload_that_fails_never_counts_as_whole() -> None:
    told: list[tuple[int, int]] = []
    with pytest.raises(ConnectionError), upload_progress(10, lambda *at: told.append(at), every_s=0.01):
        raise ConnectionError
    assert told == []


def test_of_an_upload_to_xet_the_bar_of_all_files_counts() -> None:
    """Beside it there are bars of single files and of what travels after deduplication."""

    def report(name: str, done: int) -> SimpleNamespace:
        return SimpleNamespace(item_name=name, bytes_completed=done, total_bytes=1000)

    bars = XetUploadProgressReporter()
    try:
        group = SimpleNamespace(
            total_bytes=2000, total_bytes_completed=900, total_bytes_completion_rate=None,
            total_transfer_bytes=1500, total_transfer_bytes_completed=400, total_transfer_bytes_completion_rate=None,
        )  # fmt: skip
        bars.update_progress(group, {0: report("one", 600), 1: report("two", 300)})
        assert sent_bytes(tqdm._instances.copy()) == 900
    finally:
        bars.close()
