"""Scripts, taken over in a folder of their own."""

from pathlib import Path

import pytest
from taken_over import TakeOver

from cloudrl.scripts.imported import Imported, import_file


@pytest.fixture
def take_over(tmp_path: Path) -> TakeOver:
    """Writes a script, and takes it over: `take_over(text, "argument", env={...}, name="run.sh", files={...})`."""

    def taken(
        text: str,
        *arguments: str,
        env: dict[str, str] | None = None,
        name: str = "run.sh",
        files: dict[str, str] | None = None,
    ) -> Imported:
        for path, content in {**(files or {}), name: text}.items():
            (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
            (tmp_path / path).write_text(content)
        return import_file(tmp_path / name, arguments, env, here=tmp_path, home=Path("/nonexistent"))

    return taken
