"""dstack-shim: the agent of a host, which starts a container for each job.

Source: dstack, runner/internal/shim/api/handlers.go, runner/docs/shim.openapi.yaml.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

from . import bridge, config, gpus
from .config import SYSTEM_PATH, HostConfig, ImageConfig
from .container import CAPABILITIES, DEFAULT_SHM_BYTES, ContainerSpec
from .http_api import ApiError, Request, Route, serve
from .root import run
from .tasks import CREATING, PREPARING, PULLING, RUNNING, TERMINATED, Task, container_name, version_of

_PROGRAM = "/usr/local/bin/dstack-shim"
_RUNNER = "/usr/local/bin/dstack-runner"


class Shim:
    """The tasks of this host and the HTTP API over them."""

    def __init__(self, environment: dict[str, str], host: HostConfig) -> None:
        self.host = host
        self.home = Path(environment.get("DSTACK_SHIM_HOME", "/root/.dstack"))
        self.port = int(environment.get("DSTACK_SHIM_HTTP_PORT", "10998"))
        self.runner = environment.get("DSTACK_RUNNER_BINARY_PATH", _RUNNER)
        self.runner_url = environment.get("DSTACK_RUNNER_DOWNLOAD_URL", "")
        self.runner_ports = (
            environment.get("DSTACK_RUNNER_HTTP_PORT", "10999"),
            environment.get("DSTACK_RUNNER_SSH_PORT", "10022"),
        )
        self.keys_lock = threading.Lock()
        self.resources_lock = threading.Lock()
        self.tasks: dict[str, Task] = {}

    def routes(self) -> list[Route]:
        """All paths that the server calls."""
        task = "/api/tasks/([^/]+)"
        return [
            ("GET", "/api/healthcheck", lambda _: {"service": "dstack-shim", "version": self.host.version}),
            ("GET", "/api/instance/health", lambda _: {"dcgm": None}),
            ("GET", "/api/instance/info", lambda _: {}),
            ("GET", "/api/components", self.components),
            ("GET", "/api/tasks", self.list_tasks),
            ("POST", "/api/tasks", self.submit),
            ("GET", task, lambda _, task_id: self.task(task_id).info()),
            ("POST", f"{task}/terminate", self.terminate),
            ("POST", f"{task}/remove", self.remove),
        ]

    def restore(self) -> None:
        """Take over the containers of an earlier shim."""
        for path in sorted(self.home.glob("runners/*/task.json")):
            task = Task.restore(path.parent)
            self.tasks[task.id] = task

    def task(self, task_id: str) -> Task:
        """Raises ApiError 404."""
        if task_id not in self.tasks:
            raise ApiError(404, f"task {task_id}: not found")
        return self.tasks[task_id]

    def list_tasks(self, _request: Request) -> dict[str, Any]:
        """Ids and statuses; the server removes what it does not know."""
        return {"tasks": [{"id": task.id, "status": task.status} for task in list(self.tasks.values())]}

    def submit(self, request: Request) -> dict[str, Any]:
        """Accept a task and start it; 409 for one that is known."""
        body = request.json()
        for key in ("id", "name", "image_name"):
            if not body.get(key):
                raise ApiError(400, f"empty {key}")
        if body["id"] in self.tasks:
            raise ApiError(409, f"task {body['id']} is already submitted")
        task = Task(body, self.home / "runners" / container_name(body["name"], body["id"]))
        self.tasks[task.id] = task
        threading.Thread(target=self._run, args=(task,), daemon=True).start()
        return task.info()

    def terminate(self, request: Request, task_id: str) -> dict[str, Any]:
        """Stop the container, if it runs, and set the reason, if it is empty."""
        body, task = request.json(), self.task(task_id)
        task.terminated(body.get("termination_reason") or "", body.get("termination_message") or "")
        task.stop(float(body.get("timeout") or 0))
        return task.info()

    def remove(self, _request: Request, task_id: str) -> None:
        """Forget a terminated task; 409 for another."""
        task = self.task(task_id)
        if task.status != TERMINATED:
            raise ApiError(409, f"cannot remove task {task_id} with {task.status} status")
        task.stop(0)
        shutil.rmtree(task.folder, ignore_errors=True)
        del self.tasks[task_id]

    def components(self, _request: Request) -> dict[str, Any]:
        """Versions of shim and runner; while they match, the server installs nothing."""
        programs = (("dstack-runner", self.runner), ("dstack-shim", _PROGRAM))
        return {"components": [component(name, program) for name, program in programs]}

    def _run(self, task: Task) -> None:
        try:
            self._start_and_wait(task)
        except (OSError, subprocess.SubprocessError, ValueError) as error:
            task.terminated("executor_error", str(error))
        print(f"task {task.id}: {task.status} {task.reason} {task.message}", file=sys.stderr, flush=True)

    def _start_and_wait(self, task: Task) -> None:
        request = task.request
        if not task.advance(PREPARING):
            return
        task.folder.mkdir(parents=True, exist_ok=True)
        if request.get("volume_mounts"):
            raise ValueError("prepareVolumes error: stand-in hosts have no network volumes")
        with self.resources_lock:
            tasks = list(self.tasks.values())
            taken = {gpu for each in tasks if each.status != TERMINATED for gpu in each.gpus}
            task.gpus = gpus.acquire(self.host, count, taken) if (count := request.get("gpu", 0)) else []
            if request.get("network_mode") == "bridge":
                task.address = bridge.free_address(each.address for each in tasks)
        with self._host_keys(request.get("host_ssh_user") or "root", request.get("host_ssh_keys") or []):
            if not (task.advance(PULLING) and self._pull(task) and task.advance(CREATING)):
                return
            spec = self._container(task)
            if task.advance(RUNNING):
                status = task.run(spec, self.runner_ports)
                ended = "container_exited_with_error" if status else "done_by_runner"
                task.terminated(ended, task.last_lines() if status else "")

    def _pull(self, task: Task) -> bool:
        image = self._image(task)
        deadline = time.monotonic() + image.pull_s
        while time.monotonic() < deadline:
            if task.status == TERMINATED:
                return False  # the pull is cancelled, and what came of it is lost
            time.sleep(0.05)
        if image.pull_error:
            task.terminated("creating_container_error", f"pullImage error: pull image: {image.pull_error}")
        return not image.pull_error

    def _image(self, task: Task) -> ImageConfig:
        return self.host.images.get(task.request["image_name"], ImageConfig())

    def _container(self, task: Task) -> ContainerSpec:
        request = task.request
        mounts = [(mount["instance_path"], mount["path"]) for mount in request.get("instance_mounts") or []]
        for source, _ in mounts:
            self._make_folder(source)
        http_port, ssh_port = self.runner_ports
        command = [
            self.runner, "--log-level", "5", "start", "--temp-dir", "/tmp/runner", "--http-port", http_port,
            "--ssh-port", ssh_port,
        ]  # fmt: skip
        if not task.address:
            command += ["--http-address", "localhost"]
        for key in request.get("container_ssh_keys") or []:
            command += ["--ssh-authorized-key", key]
        image = self._image(task)
        if not image.sshd:  # what is left of `apt-get update && apt-get install -y openssh-server && ...`
            command = ["sh", "-c", "echo 'E: Unable to locate package openssh-server' >&2; exit 100"]
        path_first = image.path_first or self.host.path_first
        path = f"{path_first}:{SYSTEM_PATH}" if path_first else SYSTEM_PATH
        if not image.python3:
            path = programs_without_python(task.folder, "/tmp/runner")
        files = (self.runner, str(config.PATH), str(config.PROGRAM))
        mounts += [(path, path) for path in gpus.in_container(self.host, task.gpus)]
        capabilities = [*CAPABILITIES, *(["sys_ptrace"] if task.gpus and self.host.gpu_vendor == "amd" else [])]
        return ContainerSpec(
            disk=f"/run/containers/{task.id}",
            command=command,
            environment={"PATH": path, "HOME": "/root"},
            binds=[*mounts, (str(task.folder), "/tmp/runner"), *((path, path) for path in files)],
            read_only=self.host.binds,
            shm_bytes=int(request.get("shm_size") or DEFAULT_SHM_BYTES),
            capabilities=None if request.get("privileged") else capabilities,
            address=task.address,
            host_name=task.id.replace("-", "")[:12],  # Docker takes the container's id
        )

    def _make_folder(self, folder: str) -> None:
        """One of the host for an instance mount. Words as in dstack, runner/internal/shim/volumes.go."""
        if os.path.exists(folder):
            return
        if self.host.writable and not folder.startswith(tuple(f"{path}/" for path in self.host.writable)):
            failure = f"mkdir {folder}: read-only file system"
            raise OSError(f"prepareInstanceMountPoints error: create instance mount directory: {failure}")
        os.makedirs(folder)
        if self.host.system_disk_bytes:
            run("mount", "-t", "tmpfs", "-o", f"size={self.host.system_disk_bytes}", "tmpfs", folder)
        os.chmod(folder, 0o777)

    @contextlib.contextmanager
    def _host_keys(self, user: str, keys: list[str]) -> Iterator[None]:
        """The users' keys in the file of the host's own user for as long as the task runs: they jump through the host.

        A key that two tasks bring is there twice, and both go with the first of them. Source: dstack,
        runner/internal/shim/authorized_keys.go.
        """
        path = Path(pwd.getpwnam(user).pw_dir) / ".ssh/authorized_keys"
        with self.keys_lock:
            lines = [*path.read_text().splitlines(), *(key.strip() for key in keys)]
            path.write_text("".join(f"{line}\n" for line in lines))
        try:
            yield
        finally:
            own = {_key_of(key) for key in keys}
            with self.keys_lock:
                lines = [line for line in path.read_text().splitlines() if _key_of(line) not in own]
                path.write_text("".join(f"{line}\n" for line in lines))


def programs_without_python(folder: Path, seen_as: str) -> str:
    """A PATH of all usual programs but Python's: links in `folder`, which the container has as `seen_as`."""
    links = folder / "programs"
    links.mkdir(exist_ok=True)
    for program in (each for place in ("/usr/bin", "/bin") for each in Path(place).iterdir()):
        if not program.name.startswith("python") and not os.path.lexists(links / program.name):
            (links / program.name).symlink_to(program)
    return f"{seen_as}/programs"


def _key_of(line: str) -> str:
    words = line.split()
    return words[1] if len(words) > 1 else line


def component(name: str, program: str) -> dict[str, str]:
    """Name, version and status of an installed program."""
    words = version_of(program)
    if words is None:
        return {"name": name, "version": "", "status": "not-installed"}
    return {"name": name, "version": words[-1], "status": "installed" if words[0] == name else "error"}


def install(url: str, program: str) -> None:
    """Fetch a program to where it belongs, at once whole."""
    part = f"{program}.part"
    with urllib.request.urlopen(url, timeout=60) as source, open(part, "wb") as target:
        shutil.copyfileobj(source, target)
    os.chmod(part, 0o755)
    os.replace(part, program)


def host_info(host: HostConfig) -> dict[str, Any]:
    """`host_info.json`: what the server takes for the host's shape."""
    return {
        "gpu_vendor": host.gpu_vendor if host.gpus else "none",
        "gpu_name": host.gpu_name if host.gpus else "",
        "gpu_memory": host.gpu_memory_mib if host.gpus else 0,
        "gpu_count": host.gpus,
        "addresses": [f"{host.address}/{host.network_bits}"],
        "disk_size": host.disk_bytes,
        "cpus": host.cpus,
        "memory": host.memory_bytes,
    }  # fmt: skip


def main(_words: list[str]) -> NoReturn:
    """Serve until SIGTERM. Containers go on."""
    shim = Shim(dict(os.environ), HostConfig.load())
    if component("dstack-runner", shim.runner)["version"] != shim.host.version:
        install(shim.runner_url, shim.runner)
    shim.restore()
    serve(shim.port, shim.routes())
    facts = shim.home / "host_info.json"
    if os.environ.get("DSTACK_SERVICE_MODE") and not facts.exists():
        part = shim.home / "host_info.json.part"
        part.write_text(json.dumps(host_info(shim.host)))
        part.replace(facts)
    print(f"shim {shim.host.version} on {shim.port}", file=sys.stderr, flush=True)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    while True:
        signal.pause()
