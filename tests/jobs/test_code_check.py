from pathlib import Path

import pytest

from cloudrl.errors import InputError
from cloudrl.jobs.local_files import inspect_path
from cloudrl.jobs.uploads import check_code
from cloudrl.verl.keys import PathKind


def check(folder: Path, source: str | bytes, name: str | None = "compute_score", *, is_in_root: bool = False) -> None:
    (folder / "reward.py").write_bytes(source if isinstance(source, bytes) else source.encode())
    file = inspect_path(folder, "reward.py", {PathKind.CODE})
    check_code(file, name, option="--reward ./reward.py", is_in_root=is_in_root)


@pytest.mark.parametrize(
    "source",
    [
        "def compute_score(*a, **k): return 1.0",
        "async def compute_score(*a, **k): return 1.0",
        "class compute_score: pass",
        "compute_score = lambda *a: 1.0",
        "compute_score: object = print",
        "a, (compute_score, b) = 1, (2, 3)",
        "from somewhere import compute_score",
        "from somewhere import other as compute_score",
        "import somewhere as compute_score",
        "from somewhere import *",
        "try:\n    from fast import compute_score\nexcept ImportError:\n    def compute_score(): ...",
        "try:\n    pass\nexcept ImportError:\n    compute_score = 1",
        "if True:\n    pass\nelse:\n    def compute_score(): ...",
        "with open('x') as f:\n    compute_score = 1",
        "# -*- coding: latin-1 -*-\ndef compute_score(): return '\xe9'".encode("latin-1"),
    ],
)
def test_files_that_verl_can_load(tmp_path: Path, source: str | bytes):
    check(tmp_path, source)


def test_a_function_that_is_not_there(tmp_path: Path):
    source = "import os\ndef compute_scores(x):\n    def compute_score(): ...\ndef other(): ...\n"
    with pytest.raises(InputError) as caught:
        check(tmp_path, source)
    assert caught.value.message == (
        "--reward ./reward.py: reward.py defines no 'compute_score'; did you mean 'compute_scores'? "
        "(its functions: compute_scores, other)"
    )
    assert caught.value.hint == "Name the function for verl to call: reward.py:compute_scores"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("x = 1", "its functions: none"),
        ("def compute_score(:\n", "line 1: "),
        ("x = 1\n  y = 2\n", "line 2: unexpected indent"),
        (b"a\0b", "null byte"),
        ("from . import helper\nfrom .x import y\ndef compute_score(): ...\n", r"imports '\.'"),
    ],
)
def test_what_verl_cannot_load(tmp_path: Path, source: str | bytes, reason: str):
    with pytest.raises(InputError, match=reason):
        check(tmp_path, source)


@pytest.mark.parametrize(
    "line",
    ["import helper", "import helper.deep", "from helper import x", "from package import x", "import os, helper"],
)
def test_a_file_beside_it_is_not_sent(tmp_path: Path, line: str):
    (tmp_path / "helper.py").touch()
    (tmp_path / "package").mkdir()
    (tmp_path / "package" / "part.py").touch()
    source = f"def compute_score():\n    {line}\n"
    with pytest.raises(InputError, match="is beside it and is not sent with it") as caught:
        check(tmp_path, source)
    assert caught.value.hint == f"Send its folder with it: --working-dir {tmp_path}"
    check(tmp_path, source, is_in_root=True)


def test_what_the_image_has_may_lie_beside_it(tmp_path: Path):
    (tmp_path / "verl").mkdir()
    (tmp_path / "verl" / "__init__.py").touch()
    check(tmp_path, "import verl, re, reward\nfrom torch import nn\ndef compute_score(): ...\n")


def test_a_file_that_nothing_is_asked_of(tmp_path: Path):
    check(tmp_path, "x = 1", name=None)
