import io
import os
import stat
import zipfile
from pathlib import Path

import pytest
from planning import planned_uploads

from cloudrl.errors import InputError
from cloudrl.jobs import SubmitOptions
from cloudrl.jobs.working_dir import EXCLUDED_FOLDERS, PackagePlan, scan, zip_package
from cloudrl.protocol.facts import ClusterFacts

PLAIN = ClusterFacts("http://x", "", "", 1, gpu_nodes=1, gpus_per_node=1)


def write(folder: Path, *names: str, text: str = "text") -> None:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def plan(folder: Path) -> PackagePlan:
    """What a job without files of its own brings along."""
    package = planned_uploads(PLAIN, SubmitOptions(working_dir=str(folder))).package
    assert package is not None
    return package


def pack(folder: Path) -> bytes:
    return zip_package(plan(folder))


def names(folder: Path, *excludes: str) -> list[str]:
    return [entry.name for entry in scan(folder, excludes)]


def test_files_in_the_order_of_their_names(tmp_path: Path):
    write(tmp_path, "b.py", "a/z.py", "a/b/c.py", "a.py")
    (tmp_path / "empty").mkdir()
    assert names(tmp_path) == ["a/b/c.py", "a/z.py", "a.py", "b.py", "empty/"]


def test_what_never_goes_along(tmp_path: Path):
    for name in EXCLUDED_FOLDERS:
        write(tmp_path, f"{name}/x", f"deep/{name}/x")
    write(tmp_path, "train.py", "venv_tools/x.py", ".gitmodules")
    assert names(tmp_path) == [".gitmodules", "train.py", "venv_tools/x.py"]
    assert plan(tmp_path).excluded == tuple(sorted(EXCLUDED_FOLDERS))


def test_patterns_are_those_of_gitignore(tmp_path: Path):
    write(tmp_path, "keep.py", "a.bin", "deep/b.bin", "deep/keep.bin", "top/x", "deep/top/x", "wandb/code.py")
    kept = ["deep/keep.bin", "deep/top/x", "keep.py", "wandb/code.py"]
    assert names(tmp_path, "*.bin", "!keep.bin", "/top/", "!wandb") == kept


def test_ignore_files_count_where_they_lie(tmp_path: Path):
    write(tmp_path, "data/big", "src/data/small", "src/gen.py", "gen.py", "env/lib/x.py")
    (tmp_path / "env/.gitignore").write_text("*\n")  # a virtual environment
    (tmp_path / ".gitignore").write_text("/data/\n")
    (tmp_path / "src/.rayignore").write_text("# made by us\ngen.py\n")
    assert names(tmp_path) == [".gitignore", "gen.py", "src/.rayignore", "src/data/small"]


def test_links_are_followed_and_circles_end(tmp_path: Path):
    write(tmp_path, "work/a.py", "other/b.py")
    work = tmp_path / "work"
    (work / "linked.py").symlink_to(work / "a.py")
    (work / "outside").symlink_to(tmp_path / "other")
    (work / "circle").symlink_to(work)
    (work / "broken").symlink_to(work / "nothing")
    (work / "self").symlink_to(work / "self")
    os.mkfifo(work / "pipe")
    assert names(work) == ["a.py", "linked.py", "outside/b.py"]


def test_ray_itself_would_send_the_same_files(tmp_path: Path):
    """Against Ray's own packaging, with Ray's default excludes in place of ours."""
    packaging = pytest.importorskip("ray._private.runtime_env.packaging")
    work = tmp_path / "work"
    write(
        work, "a.py", "data/big.bin", "data/keep.bin", "src/data/x", "src/gen.py", "venv/x", "src/__pycache__/y",
        "sub dir/\u4f60.txt", ".git/config", "logs/1/out.log", "logs/keep/out.log", ".hidden", "a.egg-info/x",
    )  # fmt: skip
    (work / ".gitignore").write_text("*.bin\n!keep.bin\n/logs/*\n!/logs/keep\n*.egg-info/\n")
    (work / "src/.rayignore").write_text("gen.py\n")
    (work / "linked").symlink_to(work / "src")
    (work / "broken").symlink_to(work / "nothing")
    excludes = ["/src/data/", ".hid*"]

    theirs = [".git", ".venv", "venv", "__pycache__", *excludes]
    packaging.create_package(str(work), tmp_path / "ray.zip", include_gitignore=True, excludes=theirs)
    with zipfile.ZipFile(tmp_path / "ray.zip") as archive:
        expected = sorted(archive.namelist())

    assert sorted(names(work, *excludes)) == expected


def test_the_same_files_give_the_same_package(tmp_path: Path):
    for folder in ("one", "two"):
        write(tmp_path / folder, "b.py", "a.py", text="same")
    os.utime(tmp_path / "two/a.py", (0, 0))
    (tmp_path / "two/b.py").chmod(0o600)
    one, two = plan(tmp_path / "one"), plan(tmp_path / "two")
    assert one.name == two.name
    assert zip_package(one) == zip_package(two)
    assert one.uri.startswith("gcs://_ray_pkg_")
    assert one.uri.endswith(".zip")
    write(tmp_path / "two", "a.py", text="diff")
    assert plan(tmp_path / "two").name != one.name


def test_what_is_in_the_package(tmp_path: Path):
    write(tmp_path, "run.sh", "täst/你.py", text="content")
    (tmp_path / "run.sh").chmod(0o755)
    (tmp_path / "empty").mkdir()
    package = pack(tmp_path)
    with zipfile.ZipFile(io.BytesIO(package)) as archive:
        found = {name: archive.read(name) for name in archive.namelist()}
        modes = {info.filename: stat.filemode(info.external_attr >> 16) for info in archive.infolist()}
    assert found == {"run.sh": b"content", "täst/你.py": b"content", "empty/": b""}
    assert modes == {"run.sh": "-rwxr-xr-x", "täst/你.py": "-rw-r--r--", "empty/": "drwxr-xr-x"}
    assert plan(tmp_path).files == 2


def test_a_folder_that_is_too_large_is_refused_before_anything_is_read(tmp_path: Path):
    for number in range(12):
        write(tmp_path, f"file-{number:02}", text="")
        os.truncate(tmp_path / f"file-{number:02}", number * 2**30)  # holes: no room, and minutes to read
    with pytest.raises(InputError) as caught:
        plan(tmp_path)
    message = caught.value.message
    assert "has 70.9 GB in 12 files, and Ray takes at most 100 MiB. The largest:" in message
    assert [line.split()[-1] for line in message.splitlines()[1:]] == [f"file-{n:02}" for n in range(11, 1, -1)]
    assert "excludes" in str(caught.value.hint)


def test_incompressible_files_at_the_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("cloudrl.jobs.working_dir.PACKAGE_LIMIT_BYTES", 1000)
    (tmp_path / "noise").write_bytes(os.urandom(1000))
    planned = plan(tmp_path)
    with pytest.raises(InputError, match="Ray takes at most"):
        zip_package(planned)


def test_no_folder(tmp_path: Path):
    write(tmp_path, "file.zip")
    for name, says in (("missing", "does not exist"), ("file.zip", "is not a folder")):
        with pytest.raises(InputError, match=rf"--working-dir .*{name} {says}"):
            pack(tmp_path / name)


@pytest.mark.skipif(os.geteuid() == 0, reason="root can read everything")
def test_a_file_that_cannot_be_read(tmp_path: Path):
    write(tmp_path, "locked")
    (tmp_path / "locked").chmod(0)
    with pytest.raises(InputError, match="locked cannot be read"):
        pack(tmp_path)


def test_a_file_that_changes_before_it_is_packed(tmp_path: Path):
    write(tmp_path, "train.py")
    planned = plan(tmp_path)
    write(tmp_path, "train.py", text="diff")
    with pytest.raises(InputError, match=r"train\.py has changed since it was looked at") as caught:
        zip_package(planned)
    assert "name it in .rayignore" in str(caught.value.hint)


def test_a_name_that_is_no_utf8(tmp_path: Path):
    (tmp_path / os.fsdecode(b"caf\xe9")).write_text("x")
    with pytest.raises(InputError, match="cannot be packed"):
        pack(tmp_path)
