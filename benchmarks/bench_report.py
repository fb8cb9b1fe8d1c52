"""Size of the page of a long run, and seconds until Chromium has drawn it: `make bench-report`."""

import tempfile
from pathlib import Path
from time import perf_counter

from browser import Browser
from make_report import make_report

from cloudrl.report.page import page

STEPS, KEYS, ROUNDS = 10_000, 50, 5


def main() -> None:
    """Print both."""
    report = make_report(steps=STEPS, keys=KEYS)
    began = perf_counter()
    text = page(report)
    print(f"{STEPS} steps of {KEYS} metrics: {len(text.encode()) / 1e6:.2f} MB, made in {perf_counter() - began:.1f} s")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "report.html")
        path.write_text(text, encoding="utf-8")
        with Browser(Path(folder, "profile")) as chromium:
            for _ in range(ROUNDS):
                chromium.open(path.as_uri())
                print(f"drawn after {chromium.evaluate('document.body.dataset.drawn')} ms")


if __name__ == "__main__":
    main()
