"""The commands of docs/your-own-task.md, one after the other: from questions and a reward to a merged model."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
from patience import SLOWER

pytestmark = pytest.mark.e2e

DOCS = Path(__file__).parents[2] / "docs"
COMMANDS = re.findall(r"^```sh\n(.*?)^```$", (DOCS / "your-own-task.md").read_text(), re.MULTILINE | re.DOTALL)


def test_every_command_of_the_page(shell):
    (shell.home / "docs").symlink_to(DOCS)
    programs = Path(sys.executable).parent
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", "".join(COMMANDS)], cwd=shell.home, capture_output=True, text=True,
        env={**shell.env, "PATH": f"{programs}:{shell.env['PATH']}"}, timeout=900 * SLOWER,
    )  # fmt: skip
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"

    task = shell.home / "my-task"
    assert json.loads((task / "model" / "config.json").read_text())["model_type"] == "qwen2"
    assert (task / "model" / "model.safetensors").stat().st_size > 0
    assert "sums" in (task / "report.html").read_text()
    assert re.search(r"^sums +12\b|sums step 12", done.stdout, re.MULTILINE), done.stdout
    assert shell.leftovers() == []
    rows = (shell.home / "home" / "data").glob("*/train.parquet")
    assert len(list(rows)) == 1
