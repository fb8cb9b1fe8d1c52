import pytest
from dstack._internal.core.models.volumes import InstanceMountPoint, VolumeMountPoint, parse_mount_point
from dstack._internal.server.services.jobs.configurators.base import interpolate_job_volumes
from hypothesis import given
from hypothesis import strategies as st

from cloudrl.errors import SpecError
from cloudrl.spec import NetworkMount, Volume
from cloudrl.spec.volume import parse_mount

paths = st.lists(st.text("ab ._-'\"$#é", min_size=1, max_size=4), max_size=3).map(lambda parts: "/" + "/".join(parts))


@given(paths, paths)
def test_a_volume_means_to_dstack_what_it_means_to_us(host, container):
    try:
        ours = parse_mount(f"{host}:{container}")
    except SpecError as error:
        assert "'..' in it" in error.message  # noqa: PT017
        return
    theirs = parse_mount_point(str(ours))
    assert theirs == InstanceMountPoint(instance_path=ours.instance_path, path=ours.path)
    assert parse_mount(str(ours)) == ours


def test_paths_are_kept_in_their_shortest_spelling():
    assert str(parse_mount("//data/./x/:/y//z/")) == "/data/x:/y/z"
    assert Volume(instance_path="/a/", path="/b") == parse_mount("/a:/b")


@pytest.mark.parametrize(("path", "holds"), [("/b", True), ("/b/c", True), ("/bc", False), ("/", False), ("/a", False)])
def test_a_volume_knows_what_lies_on_it(path, holds):
    assert parse_mount("/a:/b").holds(path) is holds
    assert parse_mount("/a:/").holds(path)


names = st.lists(
    st.sampled_from(["data", "ckpt", "-", "0", "${{ dstack.node_rank }}", "${{dstack.job_num}}"]), min_size=1
).map("".join)


@given(names, paths)
def test_a_network_volume_means_to_dstack_what_it_means_to_us(name, container):
    try:
        ours = parse_mount(f"{name}:{container}")
    except SpecError as error:
        assert "is not the name of a network volume" in error.message or "'..' in it" in error.message  # noqa: PT017
        return
    theirs = parse_mount_point(str(ours))
    assert theirs == VolumeMountPoint(name=ours.name[0], path=ours.path)
    assert parse_mount(str(ours)) == ours
    (third,) = interpolate_job_volumes([theirs], 3)
    (wanted,) = interpolate_job_volumes([parse_mount_point(f"{name}:/x")], 3)
    assert third.name == wanted.name


def test_a_network_volume_of_several_names():
    mount = parse_mount({"name": ["aws-data", "gcp-data"], "path": "/data/"})
    assert mount == NetworkMount(name=["aws-data", "gcp-data"], path="/data")
    assert str(mount) == "aws-data,gcp-data:/data"
    assert mount.holds("/data/x")
    assert parse_mount(mount) is mount
