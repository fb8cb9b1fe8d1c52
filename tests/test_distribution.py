"""The wheel and the sdist as users get them."""

from pathlib import Path

import distribution
import pytest

import cloudrl

pytestmark = pytest.mark.io


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return distribution.build(tmp_path_factory.mktemp("dist"))


@pytest.fixture(scope="module")
def installed(built: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    return distribution.install(built[0], tmp_path_factory.mktemp("environment") / "venv")


def test_nothing_is_missing(built: tuple[Path, Path]) -> None:
    assert list(distribution.faults(*built)) == []
    fields = distribution.metadata_of(built[0])
    assert (fields["Name"], fields["Version"]) == ("cloudrl", cloudrl.__version__)


@pytest.mark.parametrize("words", distribution.COMMANDS, ids=" ".join)
def test_a_command_works_away_from_the_checkout(installed: Path, tmp_path: Path, words: tuple[str, ...]) -> None:
    assert distribution.use(installed, words, tmp_path).strip() or words[0] in ("check", "task")
    if words[0] == "task":
        assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith(".")) == [
            "cloudrl-node.pyz", "ray-cluster.dstack.yml",
        ]  # fmt: skip


@pytest.mark.parametrize("name", distribution.BESIDE)
def test_what_stands_beside_the_packages(installed: Path, repository: Path, name: str) -> None:
    share = installed.parents[1] / "share" / "cloudrl"
    assert (share / name).read_text() == (repository / name).read_text()
