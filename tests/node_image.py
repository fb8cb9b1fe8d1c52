"""An image for whole agents: a folder that looks like a virtual environment, with a stand-in for Ray.

It has `ray` beside its Python and the metadata that preflight reads.
"""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from patience import SLOWER

from cloudrl.verl.releases import RELEASE, release

_FAKE_RAY = Path(__file__).parent / "node" / "fake_ray.py"
_FAKE_TORCH = _FAKE_RAY.with_name("fake_torch.py")
_PYARROW = """\
class ArrowException(Exception):
    pass
class Table(list):
    schema = ()
    @classmethod
    def from_pylist(cls, rows, schema=None):
        return cls(rows)
"""
_PARQUET = """\
import json
class ParquetWriter:
    def __init__(self, path, schema):
        self.file, self.schema = open(path, "w"), schema
    def write_table(self, table):
        self.file.write(json.dumps(table))
    def __enter__(self):
        return self
    def __exit__(self, *_):
        self.file.close()
"""
_GATE = """\
import os, time
while not os.path.exists(os.environ["GATE"]):
    time.sleep(0.02)
"""


def link_numpy(packages: Path) -> None:
    """Have a folder of packages hold this Python's numpy."""
    import numpy as np

    source = Path(np.__file__).parent
    for each in (source, source.with_name("numpy.libs")):
        if each.exists() and not (packages / each.name).exists():
            (packages / each.name).symlink_to(each)


_NVIDIA_SMI = """\
#!/bin/sh
for n in 0 1 2 3 4 5 6 7; do echo "GPU $n: NVIDIA H100 80GB HBM3 (UUID: GPU-$n)"; done
"""
_HUB = """\
import pathlib
def snapshot_download(name, ignore_patterns=()):
    folder = pathlib.Path("/tmp/hub") / name
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text("{}")
    return str(folder)
"""
_DATASETS = """\
import json, pathlib
def load_dataset(hub_id, config):
    name = "gsm8k" if "gsm8k" in hub_id else "math"
    folder = pathlib.Path("RAW") / name
    return {split: [json.loads(line) for line in (folder / f"{split}.jsonl").open()] for split in ("train", "test")}
"""
_ERRORS = "class DatasetNotFoundError(Exception): pass\nclass DatasetsError(Exception): pass\n"
_CPUS = "import os\nos.sched_getaffinity = lambda pid: set(range(208))\n"


@dataclass(frozen=True)
class Image:
    """A Python with a stand-in `ray` beside it, and its own packages."""

    python: Path
    packages: Path

    def have(self, package: str, version: str) -> None:
        """Look as if a package were installed."""
        for old in self.packages.glob(f"{package}-*.dist-info"):
            (old / "METADATA").unlink()
            old.rmdir()
        folder = self.packages / f"{package}-{version}.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")

    def look_like_verls(self, *, vendor: str = "nvidia") -> None:
        """Have what the agent looks for in an image of verl, on a machine with eight GPUs and many CPUs.

        Packages are installed at once, models and data sets come from this repository.
        """
        programs = {"pip": "#!/bin/sh\n", **({"nvidia-smi": _NVIDIA_SMI} if vendor == "nvidia" else {})}
        for name, text in programs.items():
            (self.python.parent / name).write_text(text)
            (self.python.parent / name).chmod(0o755)
        self.have("huggingface_hub", "1.33.0")
        self.have("verl", RELEASE.verl)
        datasets = _DATASETS.replace("RAW", str(Path(__file__).parent / "data"))
        sources = {"huggingface_hub": _HUB, "datasets.__init__": datasets, "datasets.exceptions": _ERRORS,
                   "sitecustomize": _CPUS, "torch": _FAKE_TORCH.read_text(),
                   **dict.fromkeys(("numpy", "vllm", "sglang"), "")}  # fmt: skip
        for name, source in sources.items():
            self.module(name, source)

    def without_driver(self) -> None:
        """Leave the driver's programs to the machine."""
        (self.python.parent / "nvidia-smi").unlink()

    def module(self, name: str, source: str) -> None:
        path = self.packages.joinpath(*name.split(".")).with_suffix(".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)


def make_image(folder: Path, base: str = "") -> Image:
    """Make an image on top of a Python; by default the one that runs the tests."""
    base = base or getattr(sys, "_base_executable", sys.executable)
    asked = "import sys; print('python{}.{}'.format(*sys.version_info))"
    version = subprocess.run(
        [base, "-c", asked], capture_output=True, text=True, check=True, timeout=20 * SLOWER
    ).stdout
    bin_dir, packages = folder / "bin", folder / "lib" / version.strip() / "site-packages"
    bin_dir.mkdir(parents=True)
    packages.mkdir(parents=True)
    (folder / "pyvenv.cfg").write_text(f"home = {Path(base).parent}\ninclude-system-site-packages = false\n")
    (bin_dir / "python3").symlink_to(base)
    ray = bin_dir / "ray"
    ray.write_text(f'#!/bin/sh\nexec "{bin_dir}/python3" -IS "{_FAKE_RAY}" "$@"\n')
    ray.chmod(0o755)
    image = Image(bin_dir / "python3", packages)
    image.have("ray", "2.60.0")
    image.module("pyarrow.__init__", _PYARROW)
    image.module("pyarrow.parquet", _PARQUET)
    image.module("gate", _GATE)
    return image


_EITHER = """\
#!/bin/sh
[ "$DSTACK_RUN_NAME" = {run} ] || exec {fake} "$@"
PYTHONPATH={packages} exec {real} "$@"
"""


def with_real_ray(folder: Path, image: Image, run: str) -> Path:
    """Programs of an image that looks like verl's. One run has this Python with a real Ray, and `fake_verl.py`."""
    real = Image(folder / "python3", folder / "packages")
    real.packages.mkdir()
    real.look_like_verls()
    real.without_driver()
    (real.packages / "numpy.py").unlink()
    for pinned in (word for command in release().install for word in command.split() if "==" in word):
        real.have(*pinned.split("=="))  # set-up runs the pip of the real Python, which finds them there
    for name in ("verl.__init__", "verl.trainer.__init__"):
        real.module(name, "")
    (real.packages / "verl/trainer/main_ppo.py").symlink_to(_FAKE_RAY.with_name("fake_verl.py"))
    real.python.write_text(_EITHER.format(run=run, fake=image.python, packages=real.packages, real=sys.executable))
    real.python.chmod(0o755)
    return folder


_UV = """\
#!/bin/sh
for last; do :; done
mkdir -p "$last/bin"
echo "export PATH=$(dirname "$0"):$PATH" >"$last/bin/activate"
"""


def real_python(folder: Path) -> Path:
    """Programs of dstack's own image, with this Python, Ray and verl; packages that are asked for are there."""
    programs = {"pip": "", "sudo": 'exec "$@"\n', "python3": f'exec {sys.executable} "$@"\n'}
    for name, text in programs.items():
        (folder / name).write_text(f"#!/bin/sh\n{text}")
    (folder / "uv").write_text(_UV)
    for each in folder.iterdir():
        each.chmod(0o755)
    return folder
