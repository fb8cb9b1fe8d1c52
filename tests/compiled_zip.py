"""A zipapp with its modules compiled beside their sources, as an installed package has them.

An agent takes half a second of CPU time to start, two thirds of it to compile; tests start hundreds. Another release of
Python than ours reads the sources. Clusters on this machine and in the labs run the file as it is sent.
"""

import io
import zipfile
from functools import cache
from importlib._bootstrap_external import _code_to_hash_pyc  # type: ignore[attr-defined]

NO_HASH = bytes(8)


@cache
def compiled(zipapp: bytes) -> bytes:
    """The same program."""
    made = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(zipapp)) as sources, zipfile.ZipFile(made, "w") as archive:
        for name in sources.namelist():
            text = sources.read(name)
            archive.writestr(name, text)
            if name.endswith(".py"):
                code = compile(text, name, "exec", dont_inherit=True)
                archive.writestr(f"{name}c", _code_to_hash_pyc(code, NO_HASH, False))  # never compared
    return made.getvalue()
