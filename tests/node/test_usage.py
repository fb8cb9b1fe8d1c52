"""What a node says of its CPUs, memory, disk and network, on a made-up machine and on this one."""

import shutil
from pathlib import Path

import pytest
from fake_clock import Clock

from cloudrl.node.usage import HostSampler
from cloudrl.protocol.report import Usage

STAT = "cpu  {busy} 0 0 {idle} 0 0 0 0 0 0\ncpu0 1 2 3 4 5 6 7 8 9 10\n"
MEMORY = "MemTotal:  1000 kB\nMemFree:  100 kB\nMemAvailable:  400 kB\n"
_OTHERS = "1 0 0 0 0 0 0"  # packets, errors, ...
NETWORK = f"""\
Inter-|   Receive ...
 face |bytes    packets ...
    lo: 9000000 {_OTHERS} 9000000 {_OTHERS}
  eth0: {{received}} {_OTHERS} {{sent}} {_OTHERS}
   ib0:    1000 {_OTHERS}    2000 {_OTHERS}
docker0: 9000000 {_OTHERS} 9000000 {_OTHERS}
"""


class Machine:
    """Files of a kernel."""

    def __init__(self, root: Path) -> None:
        self.root, self.clock = root, Clock()
        self.sampler = HostSampler(root, root, clock=self.clock, now=lambda: 1000.0 + self.clock())
        self.write("proc/meminfo", MEMORY)
        self.counts(busy=0, idle=0)

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def counts(self, *, busy: int, idle: int, received: int = 0, sent: int = 0) -> None:
        self.write("proc/stat", STAT.format(busy=busy, idle=idle))
        self.write("proc/net/dev", NETWORK.format(received=received, sent=sent))

    def sample(self, after_s: float = 5.0) -> Usage:
        self.clock.sleep(after_s)
        return self.sampler.sample()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_rates_are_those_since_the_sample_before(machine: Machine) -> None:
    first = machine.sample()
    machine.counts(busy=30, idle=70, received=5000, sent=500)
    second = machine.sample()
    machine.counts(busy=40, idle=80, received=5000, sent=500)
    third = machine.sample(2.0)

    assert (first.cpu_percent, first.received_bytes_per_s, first.sent_bytes_per_s) == (None, None, None)
    assert (second.sampled_at, second.cpu_percent) == (1010.0, 30.0)
    assert (second.received_bytes_per_s, second.sent_bytes_per_s) == (1000.0, 100.0)
    assert (third.cpu_percent, third.received_bytes_per_s, third.sent_bytes_per_s) == (50.0, 0.0, 0.0)


def test_counters_that_begin_anew_give_no_negative_rate(machine: Machine) -> None:
    machine.counts(busy=100, idle=100, received=5000)
    machine.sample()
    machine.counts(busy=0, idle=0)
    usage = machine.sample()

    assert (usage.cpu_percent, usage.received_bytes_per_s) == (None, 0.0)


def test_memory_of_the_machine(machine: Machine) -> None:
    usage = machine.sample()
    assert (usage.memory_used_bytes, usage.memory_total_bytes) == (600 * 1024, 1000 * 1024)


@pytest.mark.parametrize(
    ("limit", "memory"),
    [("512000", (100_000, 512_000)), ("max", (614_400, 1_024_000)), ("99999999", (614_400, 1_024_000))],
)
def test_memory_of_a_container(machine: Machine, limit: str, memory: tuple[int, int]) -> None:
    machine.write("sys/fs/cgroup/memory.max", f"{limit}\n")
    machine.write("sys/fs/cgroup/memory.current", "150000\n")
    machine.write("sys/fs/cgroup/memory.stat", "anon 90000\nactive_file 20000\ninactive_file 30000\n")
    usage = machine.sample()
    assert (usage.memory_used_bytes, usage.memory_total_bytes) == memory


def test_the_disk_of_a_folder_that_is_yet_to_be_made(tmp_path: Path) -> None:
    usage = HostSampler(tmp_path / "not" / "yet").sample()
    disk = shutil.disk_usage(tmp_path)
    assert usage.disk_total_bytes == disk.used + disk.free
    assert 0 < usage.disk_used_bytes <= usage.disk_total_bytes


def test_a_kernel_that_says_nothing(tmp_path: Path) -> None:
    usage = HostSampler(tmp_path, tmp_path / "empty").sample()
    assert (usage.cpu_percent, usage.memory_total_bytes, usage.received_bytes_per_s) == (None, None, None)


def test_this_machine(tmp_path: Path) -> None:
    sampler = HostSampler(tmp_path)
    sampler.sample()
    sum(range(1_000_000))
    usage = sampler.sample()
    assert usage.cpu_percent is None or 0 <= usage.cpu_percent <= 100
    assert 0 < usage.memory_used_bytes < usage.memory_total_bytes
    assert usage.received_bytes_per_s >= 0


def test_what_ray_needs_of_a_disk_that_it_shares_with_the_checkpoints(tmp_path: Path) -> None:
    total = shutil.disk_usage(tmp_path).total
    alone, shared = HostSampler(tmp_path).sample(), HostSampler(tmp_path, ray_folder=tmp_path / "ray").sample()
    elsewhere = HostSampler(tmp_path, ray_folder=Path("/proc")).sample()
    assert (alone.disk_kept_bytes, shared.disk_kept_bytes, elsewhere.disk_kept_bytes) == (0, int(0.05 * total), 0)


def test_memory_that_processes_share(machine: Machine) -> None:
    assert machine.sample().shm_total_bytes is None, "there is no /dev/shm"
    (machine.root / "dev/shm").mkdir(parents=True)
    shared = shutil.disk_usage(machine.root)
    assert machine.sample().shm_total_bytes == shared.total
