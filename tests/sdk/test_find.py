"""Which cluster is meant."""

from urllib.parse import urlsplit

import pytest
from fake_cluster import FakeCluster
from fake_local import FakeLocal

from cloudrl.sdk.find import find_job

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
