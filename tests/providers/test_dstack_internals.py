"""What of dstack is not documented, in the dstack that is installed."""

from pathlib import Path

import pytest

import cloudrl
from cloudrl.errors import CloudrlError
from cloudrl.providers.dstack import internals


@pytest.mark.parametrize("name", internals.NAMES)
def test_each_name_is_there(name):
    assert getattr(internals, name) is not None


def test_one_file_knows_where_dstack_has_its_internals():
    files = Path(cloudrl.__file__).parent.rglob("*.py")
    assert {file.name for file in files if "dstack._internal" in file.read_text()} == {"internals.py"}


@pytest.mark.parametrize("module", ["core.errors", "core.gone"])
def test_another_release_of_dstack_is_named(module, monkeypatch):
    monkeypatch.setitem(internals.NAMES, "Moved", module)
    with pytest.raises(CloudrlError, match=r"made for dstack 0\.22, and [\d.]+ is installed") as caught:
        internals.Moved  # noqa: B018
    assert caught.value.hint == "pip install 'dstack>=0.22,<0.23'"
