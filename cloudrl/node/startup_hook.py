"""A folder that, on the PYTHONPATH of a process, runs code of ours before the process's own first line."""

from pathlib import Path

_SITECUSTOMIZE = '''\
"""Calls {module}, and then does what the next `sitecustomize` on the path does."""
import os
import sys

try:
    import {module}
    {module}.install(os.environ)
except Exception as error:
    try:
        os.write(sys.stderr.fileno(), f"cloudrl: {complaint}: {{error!r}}\\n".encode())
    except Exception:
        pass  # its stderr is closed or broken


def _next():
    import importlib.machinery
    import importlib.util
    here = os.path.dirname(os.path.abspath(__file__))
    places = [os.path.abspath(place) for place in sys.path]
    others = sys.path[places.index(here) + 1 :] if here in places else []
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", others)
    if spec is not None and spec.loader is not None:
        module = importlib.util.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_next()
'''


def write_sitecustomize(folder: Path, module: str, complaint: str) -> None:
    """Have Python call `install(os.environ)` of a module beside it; then comes who would have been called without us.

    Args:
        folder: goes before the others on PYTHONPATH; two such folders on one path are both called.
        module: in that folder.
        complaint: what a process says where the module fails, such as "this process cannot be debugged".
    """
    (folder / "sitecustomize.py").write_text(_SITECUSTOMIZE.format(module=module, complaint=complaint))
