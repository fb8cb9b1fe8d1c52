"""Containers that a script starts: their image, the hosts' folders in them, and their shared memory.

Sources: docker 27, `docker run`; Apptainer 1.3, `apptainer exec`; pyxis 0.20, README (options of srun and sbatch).
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cloudrl.errors import SpecError
from cloudrl.scripts.lines import Fate
from cloudrl.scripts.sandbox import HOME, Call
from cloudrl.spec.names import image_name
from cloudrl.spec.volume import parse_mount

_APPTAINER, _DOCKER = ("singularity", "apptainer"), ("docker", "podman")
_PYXIS = ("container-image", "container-mounts")
OF_PYXIS = (
    "container-workdir", "container-name", "container-save", "container-env", "container-mount-home",
    "no-container-mount-home", "container-remap-root", "no-container-remap-root", "container-entrypoint",
    "no-container-entrypoint", "container-writable", "container-readonly",
)  # fmt: skip
"""Options of pyxis that say how a container runs."""
_IMAGE_FILE = re.compile(r".*\.(sif|simg|sqsh|squashfs|img)")
_IN_REGISTRY = re.compile(r"(?:docker|dockerd|podman)://(.+)")
_OF_ENROOT = re.compile(r"(?:[^@#]+@)?(?P<registry>[^#]+)#(?P<image>.+)")
_SWITCHES = re.compile(
    r"-[ditqP]+|--(rm|init|detach|interactive|tty|privileged|read-only|publish-all|quiet|no-healthcheck|oom-kill-disable)"
)
"""Options of `docker run` that take no value."""
_BINDS = ("-v", "--volume", "-B", "--bind", "--container-mounts")


@dataclass(frozen=True)
class Container:
    """What a call starts a container with.

    Attributes:
        runtime: As `slurm.container` names it: docker, podman, apptainer or pyxis.
        image: Of a registry, as docker writes it; None for a file, or if the call names none.
        file: The image as a file of the machines; None for one of a registry.
        volumes: The hosts' folders that it gets, as `/host:/container`.
        shm_size: Of its /dev/shm, such as `128GB`.
    """

    runtime: str
    image: str | None = None
    file: str | None = None
    volumes: tuple[str, ...] = ()
    shm_size: str | None = None

    @property
    def has_verl(self) -> bool:
        """Whether the image is one with verl by its name: the script's own installation of it is not taken over."""
        return self.image is not None and "verl" in self.image.lower()

    @property
    def kept_volumes(self) -> tuple[str, ...]:
        """The volumes but those of the home folder, which is the sandbox's and not the user's."""
        return tuple(each for each in self.volumes if not f"{each.partition(':')[0]}/".startswith(f"{HOME}/"))


def read_container(call: Call) -> Container | None:
    """The container that a call starts; None for one that starts none, or enters one that runs."""
    words = list(call.arguments)
    if call.program == "srun":
        return container_of_options(_long_options(words))
    if call.program in _DOCKER and words[:1] == ["run"]:
        image, size = _image_of_docker(words[1:]), _shared_memory(words)
        return Container(call.program, image, None, _volumes(words), size)
    if call.program in _APPTAINER and words[:1] and words[0] in ("exec", "run", "shell", "instance"):
        image = next((word for word in words if _IMAGE_FILE.fullmatch(word) or "://" in word), None)
        return Container("apptainer", *_place(image), _volumes(words))
    return None


def container_of_options(options: Mapping[str, str | None]) -> Container | None:
    """The container that options of pyxis ask for, by their long names; None without one."""
    image, mounts = (options.get(name) for name in _PYXIS)
    if not image and not mounts:
        return None
    return Container("pyxis", *_place(image), _volumes([f"--container-mounts={mounts}"] if mounts else []))


def starts_pyxis(calls: Iterable[Call]) -> bool:
    """Whether a script is one for Slurm by its calls: srun with a container."""
    return any(call.program == "srun" and read_container(call) is not None for call in calls)


def container_fields(containers: Iterable[Container], *, same_machines: bool) -> dict[str, Any]:
    """Fields of a cluster that containers become; on the script's own machines also of its section `slurm`."""
    fields, slurm, volumes = dict[str, Any](), dict[str, Any](), list[str]()
    for each in containers:
        fields |= {"image": each.image} if each.has_verl and _is_image(each.image) else {}
        fields |= {"shm_size": each.shm_size} if each.shm_size else {}
        slurm |= {"container": each.runtime} | ({"image": each.file} if each.file else {})
        volumes += [mount for mount in each.kept_volumes if _is_mount(mount) and mount not in volumes]
    if not same_machines or not slurm:
        return fields
    return {**fields, "slurm": {**slurm, **({"volumes": volumes} if volumes else {})}}


def container_sentence(container: Container, *, same_machines: bool) -> tuple[Fate, str]:
    """What becomes of a container, and why."""
    taken, others = list[str](), list[str]()
    if container.has_verl and _is_image(container.image):
        taken.append(f"image: {container.image}")
    elif container.image:
        others.append(f"cloudrl takes the image of its verl; another one that has verl: --image {container.image}")
    elif container.file and same_machines:
        taken.append(f"slurm.image: {container.file}")
    elif container.file:
        others.append(f"{container.file} is a file of the script's machines; the same in a registry: --image IMAGE")
    if container.shm_size:
        taken.append(f"shm_size: {container.shm_size}")
    if same_machines:
        taken.insert(0, f"slurm.container: {container.runtime}")
        taken += [f"slurm.volumes: {' '.join(container.kept_volumes)}"] if container.kept_volumes else []
        own = [mount for mount in container.volumes if mount not in container.kept_volumes]
    else:
        own = list(container.volumes)
    others += [f"its volumes: {' '.join(f'--volume {mount}' for mount in own)}"] if own else []
    if not taken and not others:
        others.append("the cluster's image: --image IMAGE")
    return Fate.TAKEN if taken else Fate.DROPPED, "; ".join([", ".join(taken), *others] if taken else others)


def _place(image: str | None) -> tuple[str | None, str | None]:
    """An image as a name in a registry, or as a file."""
    if not image:
        return None, None
    if _IMAGE_FILE.fullmatch(image) or image.startswith(("/", "./")):
        return None, image
    name = match[1] if (match := _IN_REGISTRY.fullmatch(image)) else image
    if match := _OF_ENROOT.fullmatch(name):  # [USER@][REGISTRY#]IMAGE[:TAG]
        name = f"{match['registry']}/{match['image']}"
    return name, None


def _image_of_docker(words: Sequence[str]) -> str | None:
    """The first word that is neither an option of `docker run` nor the value of one."""
    waiting = list(words)
    while waiting:
        word = waiting.pop(0)
        if not word.startswith("-"):
            return word
        holds_value = "=" in word or re.fullmatch(r"-[A-Za-z]\S+", word)
        if not _SWITCHES.fullmatch(word) and not holds_value and waiting:
            waiting.pop(0)
    return None


def _volumes(words: Sequence[str]) -> tuple[str, ...]:
    found = [part for option in _BINDS for value in _values(words, option) for part in value.split(",")]
    for value in _values(words, "--mount"):
        fields = dict(part.partition("=")[::2] for part in value.split(","))
        source, target = (fields.get("source") or fields.get("src"), fields.get("target") or fields.get("dst"))
        found += [f"{source}:{target}"] if source and target else []
    pairs = (each.split(":") for each in found if each.startswith("/"))
    return tuple(dict.fromkeys(f"{parts[0]}:{parts[1] if len(parts) > 1 else parts[0]}" for parts in pairs))


def _shared_memory(words: Sequence[str]) -> str | None:
    match = re.fullmatch(r"(\d+)([GgTt])[Bb]?", next(_values(words, "--shm-size"), ""))
    return f"{match[1]}{match[2].upper()}B" if match else None


def _values(words: Sequence[str], option: str) -> Iterator[str]:
    for index, word in enumerate(words):
        if word.startswith(f"{option}="):
            yield word.partition("=")[2]
        elif word == option and index + 1 < len(words):
            yield words[index + 1]


def _long_options(words: Sequence[str]) -> dict[str, str | None]:
    """Those of pyxis among the options of srun."""
    return {name: next(_values(words, f"--{name}"), None) for name in _PYXIS}


def _is_image(name: str | None) -> bool:
    try:
        return bool(image_name(name))
    except SpecError:
        return False


def _is_mount(mount: str) -> bool:
    try:
        return bool(parse_mount(mount))
    except SpecError:
        return False
