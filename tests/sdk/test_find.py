"""Which cluster is meant."""

from pathlib import Path
from urllib.parse import urlsplit

import pytest
from fake_cluster import FakeCluster
from fake_local import FakeLocal

from cloudrl.errors import InputError
from cloudrl.sdk.find import find, find_job

pytestmark = pytest.mark.io


class TestAJobByTheAddressOfItsCluster:
    @pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
    def test_takes_the_token_of_ones_own(self, lab: FakeLocal, host: str) -> None:
        lab.cluster.add("one")
        job = find_job(f"ray://{host}:{urlsplit(lab.cluster.url).port}/one")
        assert (job.submission_id, job.connection.name) == ("one", "lab")

    def test_is_of_any_ray_otherwise(self, lab: FakeLocal) -> None:
        with FakeCluster(None) as plain:
            plain.add("one")
            assert find_job(f"ray://{urlsplit(plain.url).netloc}/one").connection.ray_token is None


@pytest.mark.parametrize(("content", "reason"), [(None, "No such file"), (b"\xff\xfe", "it is not text")])
def test_a_file_of_the_token_that_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None, reason: str
) -> None:
    if content is not None:
        (tmp_path / "token").write_bytes(content)
    monkeypatch.delenv("RAY_AUTH_TOKEN", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN_PATH", str(tmp_path / "token"))
    with FakeCluster(None) as plain, pytest.raises(InputError, match=reason) as caught:
        find(None, plain.url)
    assert "unset RAY_AUTH_TOKEN_PATH" in str(caught.value.hint)
