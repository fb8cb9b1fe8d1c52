"""`cloudrl verl`, as it is typed, and what `check` knows afterwards."""

import json
from pathlib import Path

import pytest

from cloudrl.verl import release_files
from cloudrl.verl.composition import compose, is_known
from cloudrl.verl.release_files import SHIPPED, source_of
from cloudrl.verl.releases import RELEASE
from cloudrl.verl.source.shapes import FILE_NAME


@pytest.fixture
def fork(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of a fork, with the YAML of the release that it is made from, and a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    release_files._source.cache_clear()
    checkout = tmp_path / "fork" / "verl"
    config = checkout / "trainer/config"
    for path in (SHIPPED / RELEASE.verl).rglob("*.yaml"):
        (config / path.relative_to(SHIPPED / RELEASE.verl)).parent.mkdir(parents=True, exist_ok=True)
        (config / path.relative_to(SHIPPED / RELEASE.verl)).write_bytes(path.read_bytes())
    (checkout / "trainer/main_ppo.py").write_text("raise SystemExit('imported')\n")
    (checkout / "version").mkdir()
    (checkout / "version/version").write_text("0.9.1+mine\n")
    with (config / "ppo_trainer.yaml").open("a") as file:
        file.write("\nmine:\n  key: 3\n")
    return checkout.parent


def test_a_fork_is_known_after_it_was_added(run, fork: Path) -> None:
    assert not is_known("0.9.1+mine")
    code, output, errors = run("verl", "add", str(fork))
    assert (code, errors) == (0, "")
    folder = Path(output.strip())
    assert (folder.name, folder.stat().st_mode & 0o777) == ("0.9.1+mine", 0o700)
    assert compose("0.9.1+mine", ("mine.key=4",)).problems == ()
    source = source_of("0.9.1+mine")
    assert source is not None
    assert source.version == "0.9.1+mine"
    [row] = [row for row in json.loads(run("verl", "list", "--json")[1]) if row["verl"] == "0.9.1+mine"]
    assert row["from"] == "you"


def test_it_can_be_kept_elsewhere_and_as_another_release(run, fork: Path, tmp_path: Path) -> None:
    code, output, _ = run("verl", "add", str(fork), "--version", "1.2", "--into", str(tmp_path), "--json")
    assert code == 0
    assert json.loads(output) == {"verl": "1.2", "folder": str(tmp_path / "1.2")}
    assert (tmp_path / "1.2" / FILE_NAME).exists()


def test_what_is_no_verl(run, tmp_path: Path) -> None:
    code, _, errors = run("verl", "add", str(tmp_path))
    assert code == 2
    assert "has no verl: there is no verl/trainer/main_ppo.py" in errors


def test_what_ships(run) -> None:
    _, output, _ = run("verl", "list")
    assert [line.split()[0] for line in output.splitlines()[1:]][:2] == ["0.7.0", "0.7.1"]
