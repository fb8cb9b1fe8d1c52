"""The run's key and the files of a task."""

import io
import os
import pwd
import stat
import tarfile

import pytest

from dstack_hosts.standin.home import expand, extract, job_user, write_cluster_key

KEY = {"private": "PRIVATE\n", "public": "ssh-ed25519 AAA"}


@pytest.fixture
def user(tmp_path):
    me = pwd.getpwuid(os.getuid())
    return pwd.struct_passwd((*me[:5], str(tmp_path), me[6]))


def archive(path, *members):
    with tarfile.open(path, "w") as tar:
        for name, content in members:
            info = tarfile.TarInfo(name)
            info.type = tarfile.DIRTYPE if content is None else tarfile.REGTYPE
            info.mode = 0o755
            info.size = len(content or b"")
            tar.addfile(info, io.BytesIO(content or b""))
    return path


def test_two_nodes_share_a_key_that_ssh_uses(user, tmp_path):
    assert write_cluster_key(user, KEY, ["10.0.0.1", "10.0.0.2"], 10022)
    key, conf = tmp_path / ".ssh/dstack_job", (tmp_path / ".ssh/config").read_text()
    assert key.read_text() == "PRIVATE\n"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    assert conf.count("Port 10022") == 2
    assert "Host 10.0.0.2\n    Port 10022\n    StrictHostKeyChecking no\n" in conf
    assert f"IdentityFile {key}" in conf


def test_a_new_submission_replaces_the_key(user, tmp_path):
    write_cluster_key(user, {**KEY, "private": "a longer, earlier one"}, ["a", "b"], 1)
    write_cluster_key(user, KEY, ["a", "b"], 1)
    assert (tmp_path / ".ssh/dstack_job").read_text() == "PRIVATE\n"


@pytest.mark.parametrize(
    ("key", "addresses"), [(KEY, ["10.0.0.1"]), ({}, ["a", "b"])], ids=["one node", "no key"]
)
def test_there_is_no_key_at_one_node(user, tmp_path, key, addresses):
    assert not write_cluster_key(user, key, addresses, 10022)
    assert not (tmp_path / ".ssh").exists()


def test_one_file_goes_to_its_absolute_path(user, tmp_path):
    extract(archive(tmp_path / "a", ("node.pyz", b"zip")), f"{tmp_path}/opt/new/other.pyz", user)
    assert (tmp_path / "opt/new/other.pyz").read_bytes() == b"zip"


def test_a_folder_keeps_what_is_in_it_and_gets_the_new_name(user, tmp_path):
    source = archive(tmp_path / "a", ("src", None), ("src/x.py", b"1"), ("src/src/y.py", b"2"))
    extract(source, f"{tmp_path}/code", user)
    assert sorted(str(path.relative_to(tmp_path / "code")) for path in (tmp_path / "code").rglob("*.py")) == [
        "src/y.py",
        "x.py",
    ]


def test_what_lay_at_the_target_is_gone(user, tmp_path):
    (tmp_path / "code").mkdir()
    (tmp_path / "code/old.py").touch()
    extract(archive(tmp_path / "a", ("src", None), ("src/x.py", b"1")), f"{tmp_path}/code", user)
    assert [path.name for path in (tmp_path / "code").iterdir()] == ["x.py"]


@pytest.mark.parametrize(
    ("path", "absolute"),
    [
        ("/opt/x", "/opt/x"),
        ("x", "/repo/x"),
        ("./x/../y", "/repo/y"),
        ("~", "/home/me"),
        ("~/x", "/home/me/x"),
    ],
)
def test_expand(path, absolute):
    assert expand(path, "/repo", "/home/me") == absolute


def test_the_user_of_a_job():
    assert job_user({}).pw_uid == 0
    assert job_user({"user": {"username": "root"}}).pw_name == "root"
    assert job_user({"user": {"uid": 0, "username": None}}).pw_name == "root"
    with pytest.raises(KeyError):
        job_user({"user": {"username": "nobody-of-that-name"}})
