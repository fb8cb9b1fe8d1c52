"""How far an upload to the Hugging Face Hub is, read from the progress bars of its client.

huggingface_hub offers no callback for an upload. Its bars that count bytes are of its own class: one for all files
where it sends to Xet, with others beside it for single files (huggingface_hub 1.33, utils/_xet_progress_reporting.py),
and one for each file that goes elsewhere (utils/tqdm.py: tqdm_stream_file). A client that draws none, as
HF_HUB_DISABLE_PROGRESS_BARS wants it, shows only when the upload has ended.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from cloudrl.shards.progress import OnProgress

_ALL_FILES = "Processing Files"
"""How the text of the bar begins that counts the bytes of all files."""
_LOOK_EVERY_S = 1.0


@contextmanager
def upload_progress(total_bytes: int, on_progress: OnProgress, *, every_s: float = _LOOK_EVERY_S) -> Iterator[None]:
    """Report the bytes that an upload in this block has sent, and all of them when the block has ended well.

    What the Hub has already counts as sent once the upload gets to it, with Xet, or at the end.

    Args:
        total_bytes: of all files.
        on_progress: called from a thread of its own, and at the end from this one.
        every_s: seconds from one look at the bars to the next.
    """
    from huggingface_hub.utils import tqdm

    bars: dict[int, Any] = {}
    has_ended = threading.Event()

    def look() -> None:
        told = 0
        while not has_ended.wait(every_s):
            with tqdm.get_lock():  # as tqdm's own monitor does (tqdm 4.67, _monitor.py)
                bars.update((id(bar), bar) for bar in tqdm._instances.copy())  # noqa: SLF001
            sent = min(sent_bytes(bars.values()), total_bytes - 1)
            if sent > told:
                told = sent
                on_progress(sent, total_bytes)

    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        has_ended.set()
        thread.join()
    on_progress(total_bytes, total_bytes)


def sent_bytes(bars: Iterable[Any]) -> int:
    """What progress bars of huggingface_hub have counted, those that are closed included."""
    counting = [bar for bar in bars if getattr(bar, "unit", None) == "B"]
    of_all = [bar for bar in counting if str(getattr(bar, "desc", "")).startswith(_ALL_FILES)]
    return int(sum(bar.n for bar in of_all or counting))
