"""What is published: builds wheel and sdist, reads them as an index does, and uses the wheel away from the checkout.

`make dist` runs this file; a test runs its parts. Nothing is downloaded: the empty environment finds the dependencies
in the one that runs this.
"""

import email
import os
import re
import site
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from email.message import Message
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)")
_FIELDS = ("Summary", "Requires-Python", "License-Expression", "Author", "Classifier")
BESIDE = ("constraints.txt", "skills/cloudrl/SKILL.md")
"""What a wheel brings besides its packages: in the environment's `share/cloudrl`."""
COMMANDS: tuple[Sequence[str], ...] = (
    ("--version",),
    ("--help",),
    ("demo", "--help"),
    ("check", "grpo", "--gpu", "H100:8", "--nodes", "2"),
    ("task", "create", "ray-cluster", "--gpu", "80GB:8", "--nodes", "2", "-o", "ray-cluster.dstack.yml"),
    ("slurm", "script", "grpo-tiny", "--nodes", "2", "--set", "slurm.volumes=[/s:/checkpoints]"),
)  # fmt: skip
"""What has to work away from a checkout."""


def build(folder: Path) -> tuple[Path, Path]:
    """Build the sdist, and the wheel from it.

    Returns:
        The wheel and the sdist.
    """
    _run(sys.executable, "-m", "build", "--no-isolation", "--outdir", folder, cwd=ROOT)
    [wheel], [sdist] = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return wheel, sdist


def metadata_of(wheel: Path) -> Message:
    """The fields that an index shows, with the README as payload."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        return email.message_from_bytes(archive.read(name))


def faults(wheel: Path, sdist: Path) -> Iterator[str]:
    """What an index or a user of the files would miss, a sentence each."""
    fields = metadata_of(wheel)
    for name in _FIELDS:
        if not fields[name]:
            yield f"the wheel has no {name}"
    readme = (ROOT / "README.md").read_text()
    if fields["Description-Content-Type"] != "text/markdown" or _description(fields).strip() != readme.strip():
        yield "the description of the wheel is not README.md as Markdown"
    with tarfile.open(sdist) as archive:
        inside = {name.partition("/")[2] for name in archive.getnames()}
    for target in sorted(set(_LINK.findall(readme)) - inside):
        if not (ROOT / target).is_dir():
            yield f"README.md links to {target}, which the sdist lacks"
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    yield from (f"the wheel lacks {name}" for name in sorted(_tracked() - packed))
    yield from (f"the wheel has {name}, which git does not" for name in sorted(_packages(packed) - _tracked()))
    yield from (f"the wheel lacks {name}" for name in BESIDE if not any(each.endswith(name) for each in packed))


def _description(fields: Message) -> str:
    payload = fields.get_payload(decode=True)
    return payload.decode() if isinstance(payload, bytes) else ""


def _tracked() -> set[str]:
    listed = _run("git", "ls-files", "--cached", "--others", "--exclude-standard", "cloudrl", cwd=ROOT).splitlines()
    return {name for name in listed if (ROOT / name).exists()}


def _packages(names: set[str]) -> set[str]:
    return {name for name in names if name.startswith("cloudrl/")}


def install(wheel: Path, folder: Path) -> Path:
    """Install the wheel into an empty environment, which sees the dependencies of this one.

    Returns:
        The environment's `cloudrl`.
    """
    _run(sys.executable, "-m", "venv", "--without-pip", folder, cwd=ROOT)
    python = folder / "bin" / "python"
    _run(
        sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-index", "--no-deps", wheel,
        cwd=folder,
    )  # fmt: skip
    [packages] = folder.glob("lib/python3*/site-packages")
    (packages / "dependencies.pth").write_text("".join(f"{path}\n" for path in site.getsitepackages()))
    where = _run(python, "-c", "import cloudrl; print(cloudrl.__file__)", cwd=folder).strip()
    if not where.startswith(str(folder)):
        raise SystemExit(f"the environment imports {where} in place of the wheel")
    return folder / "bin" / "cloudrl"


def use(cloudrl: Path, words: Sequence[str], folder: Path) -> str:
    """What a command prints, in a folder and a home that know nothing of the checkout."""
    return _run(cloudrl, *words, cwd=folder, home=folder)


def _run(*words: object, cwd: Path, home: Path | None = None) -> str:
    env = {name: value for name, value in os.environ.items() if name not in ("PYTHONPATH", "VIRTUAL_ENV")}
    env |= {"HOME": str(home)} if home is not None else {}
    done = subprocess.run(
        [*map(str, words)], capture_output=True, text=True, cwd=cwd, env=env, timeout=600, check=False
    )
    if done.returncode != 0:
        raise SystemExit(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{done.stdout}{done.stderr}")
    return done.stdout


def main(target: Path) -> None:
    """Build into a folder, check, install, and use."""
    for old in [*target.glob("*.whl"), *target.glob("*.tar.gz")]:
        old.unlink()
    wheel, sdist = build(target)
    if found := list(faults(wheel, sdist)):
        raise SystemExit("\n".join(found))
    print(f"{wheel}\n{sdist}")
    with tempfile.TemporaryDirectory(prefix="cloudrl-dist-") as folder:
        cloudrl, place = install(wheel, Path(folder) / "venv"), Path(folder) / "place"
        place.mkdir()
        for words in COMMANDS:
            use(cloudrl, words, place)
            print(f"works away from the checkout: cloudrl {' '.join(words)}")


if __name__ == "__main__":
    main(ROOT / sys.argv[1])
