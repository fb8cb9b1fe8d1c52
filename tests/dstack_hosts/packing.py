"""The stand-in as one file: a zip that starts itself with one particular Python."""

import io
import py_compile
import tempfile
import zipfile
from pathlib import Path

_MAIN = "import sys\n\nfrom standin.main import main\n\nsys.exit(main(sys.argv))\n"


def pack(python: str) -> bytes:
    """The bytes of `standin.pyz`.

    Args:
        python: path of an interpreter that the hosts see. It runs isolated, without site packages.
    """
    buffer = io.BytesIO()
    buffer.write(f"#!{python} -IS\n".encode())
    with zipfile.ZipFile(buffer, "a") as archive:
        archive.writestr("__main__.py", _MAIN)
        for path in sorted((Path(__file__).parent / "standin").glob("*.py")):
            archive.write(path, f"standin/{path.name}")
            archive.writestr(f"standin/{path.name}c", _compiled(path))
    return buffer.getvalue()


def _compiled(path: Path) -> bytes:
    """Bytecode that is taken without a look at the source: to compile it at each start would take longer."""
    with tempfile.NamedTemporaryFile(suffix=".pyc") as file:
        mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
        py_compile.compile(str(path), file.name, doraise=True, invalidation_mode=mode)
        return Path(file.name).read_bytes()
