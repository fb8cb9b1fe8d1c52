"""The node agent as one file: the same bytes everywhere, small, and in need of nothing."""

import ast
import io
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from cloudrl.render.agent import AGENT_FILE, CPU_AGENT_FILE, build_agent, write_agent

pytestmark = pytest.mark.io

TABLE = "cloudrl/verl/releases.yml"
BUILD = """
import importlib.util, pathlib, sys, cloudrl
# by its path: the room around it wants pydantic and yaml, which a bare Python does not have
path = pathlib.Path(cloudrl.__file__).parent / "render" / "agent.py"
spec = importlib.util.spec_from_file_location("agent", path)
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.stdout.buffer.write(module.build_agent())
"""
VERSIONS = ("3.9", "3.10", "3.13")


def _pythons() -> dict[str, str]:
    """The Pythons of this machine, by version."""
    kept = Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser() / "versions"
    found = {}
    for version in VERSIONS:
        of_pyenv = sorted(map(str, kept.glob(f"{version}.*/bin/python{version}")))
        beside = of_pyenv[-1] if of_pyenv else shutil.which(f"python{version}")
        if beside and subprocess.run([beside, "-c", ""], check=False, timeout=60).returncode == 0:
            found[version] = beside
    return found


PYTHONS = _pythons()


def _run(*words: str | Path, umask: int = -1, **more: object) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(list(map(str, words)), capture_output=True, timeout=120, check=True, umask=umask, **more)  # type: ignore[call-overload, no-any-return]


def test_make_agent_writes_what_the_ready_tasks_need(repository: Path, tmp_path: Path) -> None:
    """`dstack apply -f tasks/...` sends them to the nodes. They are not in git, where each change would be a copy."""
    lines = (repository / "Makefile").read_text().partition("\nagent:")[2].splitlines()
    command = lines[1].strip().replace("$(PYTHON)", sys.executable)
    for part in ("cloudrl", "tasks"):
        shutil.copytree(repository / part, tmp_path / part, ignore=shutil.ignore_patterns("*.pyz", "__pycache__"))
    _run("sh", "-c", command, cwd=tmp_path)
    for task in (tmp_path / "tasks").glob("*.dstack.yml"):
        for entry in yaml.safe_load(task.read_text())["files"]:
            name = entry.partition(":")[0]
            assert (task.parent / name).read_bytes() == build_agent(for_cpu=name == CPU_AGENT_FILE), name


@pytest.mark.parametrize(("for_cpu", "limit_bytes"), [(False, 795_000), (True, 845_000)])
def test_it_is_small(for_cpu: bool, limit_bytes: int) -> None:
    """dstack sends up to 2 MiB for an entry of `files:`; that for CPUs also holds a plug-in, a table and data.

    10 KB of it write mirrors to Google's storage, 8 KB keep every N-th step and the best.
    """
    assert len(build_agent(for_cpu=for_cpu)) < limit_bytes


def test_it_is_the_program_line_by_line_without_comments(repository: Path) -> None:
    with zipfile.ZipFile(io.BytesIO(build_agent(for_cpu=True))) as archive:
        for name in archive.namelist():
            if name not in ("__main__.py", TABLE):
                source, sent = (repository / name).read_text(), archive.read(name).decode()
                assert _without_strings(sent) == _without_strings(source), name
                assert source.count("\n") == sent.count("\n"), name


def _without_strings(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            node.value.value = ""
    return ast.dump(tree)


PASSAGES = "cloudrl/data/capitals.jsonl"
CPU_ALONE = {"cloudrl/data/addition.py", "cloudrl/data/capitals.py", "cloudrl/verl_cpu/plugin.py", PASSAGES, TABLE}


@pytest.mark.parametrize("for_cpu", [False, True])
def test_it_holds_what_it_needs_and_nothing_else(for_cpu: bool) -> None:
    with zipfile.ZipFile(io.BytesIO(build_agent(for_cpu=for_cpu))) as archive:
        names = archive.namelist()
        infos = archive.infolist()
    assert names == sorted(names)
    folders = {name.rpartition("/")[0] for name in names}
    parts = (
        "listening",
        "protocol",
        "hangs",
        "saves",
        "durable",
        "node",
        "data",
        *(["verl", "verl_cpu"] if for_cpu else []),
    )
    assert folders == {"", "cloudrl", *(f"cloudrl/{part}" for part in parts), "cloudrl/node/stop_hook"}
    assert {"__main__.py", "cloudrl/errors.py", "cloudrl/node/main.py", "cloudrl/data/gsm8k.py"} <= set(names)
    assert CPU_ALONE & set(names) == (CPU_ALONE if for_cpu else set())
    assert all(name.endswith(".py") or name in (PASSAGES, TABLE) for name in names)
    assert {(info.date_time, info.external_attr, info.create_system, info.compress_type) for info in infos} == {
        ((1980, 1, 1, 0, 0, 0), 0o644 << 16, 3, zipfile.ZIP_STORED)
    }


@pytest.mark.parametrize("umask", [0o022, 0o077])
def test_the_same_bytes_from_another_folder_and_another_umask(tmp_path: Path, umask: int) -> None:
    other = {"TZ": "Pacific/Kiritimati", "LC_ALL": "C", "PYTHONHASHSEED": "1", "SOURCE_DATE_EPOCH": "0"}
    env = {**os.environ, **other}
    assert _run(sys.executable, "-c", BUILD, cwd=tmp_path, env=env, umask=umask).stdout == build_agent()


@pytest.mark.parametrize("version", [each for each in PYTHONS if each != "3.9"])
def test_the_same_bytes_from_another_python(version: str, repository: Path, tmp_path: Path) -> None:
    """Building needs nothing but the standard library."""
    env = {"PYTHONPATH": str(repository), "PATH": os.environ["PATH"], "PYTHONDONTWRITEBYTECODE": "1"}
    assert _run(PYTHONS[version], "-S", "-c", BUILD, cwd=tmp_path, env=env).stdout == build_agent()


def test_it_is_written_whole_and_only_when_it_differs(tmp_path: Path) -> None:
    path = write_agent(tmp_path / "deep")
    before = path.stat().st_mtime_ns, path.stat().st_ino
    assert write_agent(tmp_path / "deep") == path
    assert (path.stat().st_mtime_ns, path.stat().st_ino) == before
    path.write_bytes(b"old")
    write_agent(tmp_path / "deep")
    assert path.read_bytes() == build_agent()
    assert [each.name for each in path.parent.iterdir()] == [AGENT_FILE]


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_agent(tmp_path_factory.mktemp("agent"), for_cpu=True)


IMPORT_ALL = """
import sys, zipfile
sys.path.insert(0, sys.argv[1])
for name in zipfile.ZipFile(sys.argv[1]).namelist():
    # of the plug-in, jobs import the rest, under a Python that has verl
    bare = ("__init__.py", "tiny_model.py", "pretraining.py", "texts.py")
    if name.endswith(".py") and name != "__main__.py" and ("verl_cpu" not in name or name.endswith(bare)):
        __import__(name[:-3].replace("/", ".").replace(".__init__", "").replace(".__main__", ".main"))
"""


@pytest.mark.parametrize("version", VERSIONS)
def test_it_starts_under_a_bare_python(version: str, agent: Path) -> None:
    """Without site-packages (-S) and without the user's folders (-I): nothing but the standard library is there."""
    if version not in PYTHONS:
        pytest.skip(f"no Python {version} on this machine")
    done = _run(PYTHONS[version], "-I", "-S", "-W", "error", agent, "run", "--help")
    assert b"usage: cloudrl-node.pyz run" in done.stdout
    assert done.stderr == b""
    _run(PYTHONS[version], "-I", "-S", "-W", "error", "-c", IMPORT_ALL, agent)


def test_a_wheel_in_an_environment_that_git_ignores_gives_the_same_bytes(repository: Path, tmp_path: Path) -> None:
    """dstack obeys .gitignore when it sends a folder, and a virtual environment's own one says `*`."""
    _run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", tmp_path / "wheels", cwd=repository)
    [wheel] = (tmp_path / "wheels").glob("*.whl")
    _run(sys.executable, "-m", "venv", "--without-pip", tmp_path / "venv")
    (tmp_path / "venv" / ".gitignore").write_text("*\n")
    python = tmp_path / "venv" / "bin" / "python"
    pip = (sys.executable, "-m", "pip", "--python", python)
    _run(*pip, "install", "--no-index", "--no-deps", "--quiet", wheel)
    where = _run(python, "-c", "import cloudrl; print(cloudrl.__file__)", cwd=tmp_path).stdout.decode()
    assert where.startswith(str(tmp_path / "venv"))
    assert _run(python, "-c", BUILD, cwd=tmp_path).stdout == build_agent()
