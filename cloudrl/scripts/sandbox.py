"""Runs a script in bash where it can harm nothing, with stand-ins for the programs that it calls.

The script is not parsed: bash itself expands its variables, arrays, functions and conditions. What it calls is written
down, with arguments and environment. The isolation itself is that of `cloudrl.scripts.isolation`.
"""

import contextlib
import functools
import shlex
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cloudrl.protocol.secret_names import MASK, is_secret, mask_by_form
from cloudrl.scripts import jail
from cloudrl.scripts.isolation import (
    LOADER_CACHE,
    Ended,
    NotIsolated,
    latin_of,
    limits_here,
    run_isolated,
    run_jail,
    system_libraries,
)
from cloudrl.scripts.project import Project
from cloudrl.scripts.syscalls import script_filter
from cloudrl.spec.yaml_core import load_value

HOSTNAME = "node-0"
HOME = "/root"
"""Where scripts have their home: that of the containers of rented machines."""
SCRATCH = "/tmp"  # noqa: S108 - of a file system of its own
_HERE = Path(__file__).parent
SECONDS = 20.0
_MEMORY_BYTES, _FILES_BYTES, _FILES = 768 << 20, 96 << 20, 30_000
_LIMITS = {"NPROC": 256, "NOFILE": 256, "FSIZE": 16 << 20, "AS": 512 << 20, "CORE": 0, "CPU": 20, "MSGQUEUE": 0}
"""For each process (getrlimit(2)); NPROC for all of them together."""
_PROGRAMS = load_value((_HERE / "programs.yml").read_text(encoding="utf-8"), "programs.yml")
_REAL, _CHANGING, _STAND_INS = (_PROGRAMS[name].split() for name in ("real", "changing", "stand_ins"))
_BIN = "/usr/bin"


@dataclass(frozen=True)
class Call:
    """A program that the script has called.

    Attributes:
        name: As it was called: `python3`, `/opt/conda/bin/python`.
        arguments: Without the name.
        cwd: The current folder.
        line: Of the script, or of another file that it runs; None where bash did not say.
        file: That file.
        via: Programs that run this one, such as `srun docker`.
        env: Its whole environment.
        attached: What was read with it: `stdin`, or the text of a `runtime-env`.
    """

    name: str
    arguments: tuple[str, ...]
    cwd: str = "/"
    line: int | None = None
    file: str = ""
    via: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    attached: Mapping[str, str] = field(default_factory=dict, repr=False)

    @property
    def program(self) -> str:
        """The name without its folder."""
        return self.name.rpartition("/")[2]


@dataclass(frozen=True)
class Recording:
    """What a script has done.

    Attributes:
        calls: In the order of time.
        status: Its exit status; None if it was ended.
        over: `time` or `memory`, at whose limit it was ended; else empty.
        output: The end of what it has written, both streams.
    """

    calls: tuple[Call, ...]
    status: int | None
    over: str = ""
    output: str = ""


@dataclass(frozen=True)
class Play:
    """How a script is run.

    Attributes:
        script: Its absolute path, where it appears in its file system, too.
        content: Of the script.
        arguments: For the script.
        cwd: The current folder.
        env: Variables, beside the few that every shell has.
        project: The files that it finds.
        missing: Paths that it asked for in vain -> `folder`, `file` or `program`.
        present: Whether every file that it asks for is there, once it has asked.
        gpus: What it hears of a node's GPUs.
        nodes: What it hears of the nodes.
    """

    script: str
    content: bytes
    arguments: tuple[str, ...] = ()
    cwd: str = "/"
    env: Mapping[str, str] = field(default_factory=dict, repr=False)
    project: Project = field(default_factory=lambda: Project(Path("/nonexistent")))
    missing: Mapping[str, str] = field(default_factory=dict)
    present: bool = False
    gpus: int = 8
    nodes: int = 2


def run(play: Play, *, isolated: bool = True, seconds: float = SECONDS) -> Recording:
    """Run a script and write down what it calls.

    Args:
        play: The script.
        isolated: Refuse where the kernel gives no isolation; False runs it with the user's rights, with stand-ins for
            the programs that it calls by name as the only protection.
        seconds: After which it is ended.

    Raises:
        NotIsolated: There is no isolation here.
        CloudrlError: The child that runs it has failed.
    """
    if not isolated:
        with tempfile.TemporaryDirectory(prefix="cloudrl-script-") as folder:
            return _recording(run_jail(_alone(play, Path(folder)), seconds, _MEMORY_BYTES))
    try:
        return _recording(run_isolated(_request(play), seconds, _MEMORY_BYTES))
    except NotIsolated as error:
        hints = ["Read the script first; then --no-sandbox runs it with your own rights"]
        hints = [error.hint, *hints] if error.hint else hints
        raise NotIsolated(
            f"this machine offers no isolation for a script ({error.message}), so that it was not run",
            hint="\n".join(hints),
        ) from error


def _recording(ended: Ended) -> Recording:
    calls = tuple(call for call in map(_call, ended.records) if call is not None)
    return Recording(calls, ended.status, ended.over, ended.output)


def _call(record: str) -> Call | None:
    """One record of `stand_in.sh`; None for what is not one, which a script may have written."""
    words = iter(record.split("\0"))
    try:
        name, cwd, line, file, via = (next(words) for _ in range(5))
        arguments, variables, attached = ([next(words) for _ in range(int(next(words)))] for _ in range(3))
        env = dict(variable.split("=", 1) for variable in variables)
        number = int(line) if line.isdecimal() else None
        pairs = dict(zip(attached[::2], attached[1::2], strict=True))
        return Call(name, tuple(arguments), cwd, number, file, tuple(via.split()), env, pairs)
    except (RuntimeError, StopIteration, ValueError):
        return None


@functools.cache
def _system() -> tuple[dict[str, str], tuple[str, ...], dict[str, str]]:
    """Programs by their place in the sandbox, folders of libraries, and links."""
    tools = {}
    for name in (*_REAL, "bash"):
        if found := shutil.which(name, path="/usr/bin:/bin:/usr/local/bin:/run/current-system/sw/bin"):
            tools[f"{_BIN}/{name}"] = str(Path(found).resolve())
    if f"{_BIN}/bash" not in tools:
        raise NotIsolated("there is no bash here")
    tools[f"{jail.OWN}/real/bash"] = tools[f"{_BIN}/bash"]
    if found := shutil.which("tee", path="/usr/bin:/bin"):
        tools[f"{jail.OWN}/real/tee"] = str(Path(found).resolve())
    if Path(LOADER_CACHE).exists():
        tools[LOADER_CACHE] = LOADER_CACHE
    libraries, links = system_libraries()
    for name in ("/bin", "/sbin", "/usr/sbin", "/usr/local/bin"):
        links[name] = _BIN
    return tools, libraries, links


def _request(play: Play) -> dict[str, Any]:
    tools, libraries, links = _system()
    own = {f"{jail.OWN}/stand-in": _HERE / "stand_in.sh", f"{jail.OWN}/prelude": _HERE / "prelude.sh"}
    contents = [[path, latin_of(file.read_bytes()), 0o755] for path, file in own.items()]
    contents.append(["/etc/passwd", f"root:x:0:0:root:{HOME}:/bin/bash\n", 0o644])
    given = dict(play.project.contents)
    given[play.script] = play.content, 0o755
    contents += [[path, latin_of(content), mode] for path, (content, mode) in given.items()]
    stand_ins = {f"{_BIN}/{name}": f"{jail.OWN}/stand-in" for name in _STAND_INS}
    folders = [HOME, play.cwd, *play.project.folders]
    for path, kind in play.missing.items():
        if kind == "folder":
            folders.append(path)
        elif kind == "file":
            contents.append([path, "", 0o644])
        else:
            stand_ins[path] = f"{jail.OWN}/stand-in"
    return {
        "tools": tools, "libraries": libraries, "links": {**links, **stand_ins}, "contents": contents,
        "folders": folders, "hostname": HOSTNAME, "cwd": play.cwd, "files": _FILES, "files_bytes": _FILES_BYTES,
        "argv": [f"{_BIN}/bash", play.script, *play.arguments], "system_calls": script_filter(),
        "env": _environment(play, jail.OWN, jail.RECORDS, f"{_BIN}:/bin", HOME), "limits": limits_here(_LIMITS),
    }  # fmt: skip


def _environment(play: Play, own: str, records: str, path: str, home: str) -> dict[str, str]:
    """The variables of a shell on a node, and nothing of this one: that may hold secrets."""
    ours = {
        "BASH_ENV": f"{own}/prelude", "CLOUDRL_OWN": own, "CLOUDRL_RECORDS": records, "CLOUDRL_REAL": f"{own}/real",
        "CLOUDRL_GPUS": str(play.gpus), "CLOUDRL_NODES": str(play.nodes), "CLOUDRL_PROJECT": str(play.project.root),
        "CLOUDRL_PRESENT": "1" if play.present else "", "CLOUDRL_LINE": "", "CLOUDRL_SCRIPT": "", "CLOUDRL_VIA": "",
    }  # fmt: skip
    usual = {"HOME": home, "USER": "root", "LOGNAME": "root", "SHELL": "/bin/bash", "TERM": "dumb", "LC_ALL": "C"}
    return {"PATH": path, "HOSTNAME": HOSTNAME, **usual, **play.env, **ours}


def usual_variables(env: Mapping[str, str]) -> Iterator[str]:
    """Names of variables that a shell of the sandbox has by itself, with the value that it gave them."""
    given = _environment(Play("", b""), jail.OWN, jail.RECORDS, f"{_BIN}:/bin", HOME)
    return (name for name, value in env.items() if given.get(name) == value)


def _alone(play: Play, folder: Path) -> dict[str, Any]:
    """The same with the user's rights, in folders of this machine that go away."""
    tools = _system()[0]
    own, records, home = folder / "own", folder / "records", folder / "home"
    for each in (own / "real", own / "bin", records, home):
        each.mkdir(parents=True)
    for name, text in (("stand-in", "stand_in.sh"), ("prelude", "prelude.sh")):
        (own / name).write_bytes((_HERE / text).read_bytes())
        (own / name).chmod(0o755)
    for place, path in tools.items():
        name = place.rpartition("/")[2]
        if place.startswith((f"{_BIN}/", f"{jail.OWN}/real/")):
            folder_of = own / ("bin" if place.startswith(_BIN) else "real")
            is_safe = name not in _CHANGING
            with contextlib.suppress(FileExistsError):
                (folder_of / name).symlink_to(path if is_safe else own / "stand-in")
    for name in _STAND_INS:
        with contextlib.suppress(FileExistsError):
            (own / "bin" / name).symlink_to(own / "stand-in")
    (folder / "script").write_bytes(play.content)
    there = replace(play, cwd=play.cwd if Path(play.cwd).is_dir() else str(folder))
    return {
        "isolated": False, "limits": {name: _LIMITS[name] for name in ("FSIZE", "CPU", "CORE")},
        "cwd": there.cwd, "records": str(records), "output": str(folder / "output"),
        "argv": [tools[f"{_BIN}/bash"], play.script, *play.arguments],
        "env": _environment(there, str(own), str(records), str(own / "bin"), str(home)),
    }  # fmt: skip


def words_of(arguments: Sequence[str]) -> str:
    """Arguments as one would type them, cut where they are long, without secrets."""
    shown, hides = list[str](), False
    for word in arguments:
        name, equals, _ = word.partition("=")
        is_option = is_secret(name.lstrip("-").replace("-", "_"))
        shown.append(MASK if hides else f"{name}={MASK}" if equals and is_option else mask_by_form(word))
        hides = word == "login" or (is_option and word.startswith("--") and not equals)
    text = " ".join(shlex.join(shown).replace(f"'{MASK}'", MASK).split())
    return text if len(text) <= 100 else f"{text[:97]}..."
