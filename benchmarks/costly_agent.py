"""The node agent with slow downloads: a copy of `cloudrl-node.pyz` that differs in `__main__.py` alone."""

from __future__ import annotations

import io
import zipfile
from pathlib import Path

from cloudrl.render.agent import AGENT_FILE, build_agent

_MAIN = """\
import sys, time

time.sleep({costs}.get(sys.argv[1], 0.0))

from cloudrl.node.main import main

sys.exit(main())
"""


def write_costly_agent(folder: Path, *, data_s: float, model_s: float) -> Path:
    """Write an agent whose children `data` and `model` sleep before they do their work.

    Args:
        folder: Where to write; the file has the agent's own name, by which its processes are known.
        data_s: What preparing a data set costs more, in seconds.
        model_s: What fetching a model costs more, in seconds.
    """
    path = folder / AGENT_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    main = _MAIN.format(costs={"data": data_s, "model": model_s})
    with zipfile.ZipFile(io.BytesIO(build_agent())) as agent, zipfile.ZipFile(path, "w") as costly:
        for entry in agent.infolist():
            costly.writestr(entry, main if entry.filename == "__main__.py" else agent.read(entry))
    return path
