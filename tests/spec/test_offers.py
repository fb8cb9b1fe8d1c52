from __future__ import annotations

import pytest
from dstack._internal.core.models.backends.base import BackendType
from dstack._internal.core.models.profiles import CreationPolicy, SpotPolicy, StartupOrder, StopCriteria
from dstack._internal.utils.tags import is_valid_tag_key, is_valid_tag_value
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.spec import Cluster, Fleet
from cloudrl.spec.cluster import CREATION_POLICIES, STARTUP_ORDERS, STOP_CRITERIA
from cloudrl.spec.offers import BACKENDS, SPOT_POLICIES


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (BACKENDS, BackendType),
        (SPOT_POLICIES, SpotPolicy),
        (CREATION_POLICIES, CreationPolicy),
        (STARTUP_ORDERS, StartupOrder),
        (STOP_CRITERIA, StopCriteria),
    ],
)
def test_the_words_are_dstacks(ours, theirs):
    assert sorted(ours) == sorted(word.value for word in theirs)


@given(st.dictionaries(st.text(max_size=4), st.text(max_size=4), min_size=1, max_size=2))
def test_tags_that_we_take_dstack_takes_too(tags):
    try:
        kept = Fleet(tags=tags).tags
    except SpecError:
        assert not all(is_valid_tag_key(name) and is_valid_tag_value(tags[name]) for name in tags) or any(
            text.endswith("\n") for pair in tags.items() for text in pair
        )
        return
    assert kept == tags
    assert all(is_valid_tag_key(name) and is_valid_tag_value(value) for name, value in tags.items())


def test_a_cluster_and_a_fleet_ask_for_machines_in_the_same_words():
    wishes = {
        "backends": ["aws", "gcp"],
        "regions": ["us-east-1", "Sweden Central"],
        "availability_zones": ["us-east-1a"],
        "instance_types": ["p5.48xlarge"],
        "reservation": "cr-0123",
        "spot_policy": "auto",
        "max_price": 24,
        "idle_duration": "30m",
        "tags": {"team": "rl"},
    }
    cluster, fleet = Cluster(name="one", **wishes), Fleet(**wishes)
    for name in wishes:
        assert getattr(cluster, name) == getattr(fleet, name)
    assert cluster.max_price == 24.0
    assert cluster.regions == ("us-east-1", "Sweden Central")
