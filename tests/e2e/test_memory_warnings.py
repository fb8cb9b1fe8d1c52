"""Memory that fills while a real training runs on two nodes: `status` warns before anything ends."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from limited_memory import little_memory, until
from planted_training import NAME, Training, start_training

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.root]

MEMORY_BYTES = 14 << 30
GROWTH_BYTES_PER_S = 4 << 20
"""Of all processes: the limit is far away when the warning comes, after six minutes at the earliest."""
SHARED_BYTES = 2 << 30
OWN_SHARED_MEMORY = ("unshare", "--mount", "sh", "-c", 'mount -t tmpfs -o size=2g tmpfs /dev/shm; exec "$@"', "sh")


@pytest.fixture(scope="module")
def training(shell) -> Iterator[Training]:
    with little_memory(MEMORY_BYTES):
        yield start_training(shell, *OWN_SHARED_MEMORY)
        shell.run("down", NAME, "-y")


def status(training: Training) -> str:
    """What `cloudrl status` shows, with its warnings."""
    done = training.shell.run("status", NAME)
    return done.stdout + done.stderr


def wait_for_warning(training: Training, words: str, limit_s: float) -> str:
    """The lines of `status` with the warning."""
    seen: list[str] = []

    def is_told() -> bool:
        seen.append(status(training))
        return words in " ".join(seen[-1].split())

    until(is_told, limit_s)
    return seen[-1]


def test_shared_memory_that_is_full(training: Training):
    before = training.shell.run("status", NAME).stdout
    assert "/dev/shm" not in before
    (training.plants / "shm").write_text(str(SHARED_BYTES - (64 << 20)))
    print(wait_for_warning(training, "/dev/shm of rank", 90))
    (training.plants / "shm").unlink()


def test_a_reward_function_that_keeps_what_it_has_seen(training: Training):
    workers = [process for rank in (0, 1) for process in training.agent.look(rank) if "RewardLoop" in process.title]
    (training.plants / "memory").write_text(str(GROWTH_BYTES_PER_S // len(workers)))
    said = wait_for_warning(training, "the memory of rank 0 will be full in", 900)
    (training.plants / "memory").unlink()
    print(said)
    assert "a reward function or a tool that keeps what it has seen" in " ".join(said.split())
    assert training.agent.status().job is not None
