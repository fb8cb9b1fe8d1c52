"""Which commands start verl's trainer with its TransferQueue, of which a cluster has one."""

from importlib.util import find_spec
from pathlib import Path

import pytest

from cloudrl.verl.transfer_queue import CONTROLLER, uses_transfer_queue

MAIN = "python3 -m verl.trainer.main_ppo"


@pytest.mark.parametrize(
    "command",
    [
        MAIN,
        f"{MAIN} trainer.use_v1=True",
        f"{MAIN} trainer.use_v1=False trainer.use_v1=True",
        f"{MAIN} data.train_files=/d/not.trainer.use_v1=False",
        "/bin/sh /dev/shm/cloudrl-0-x/job python3 -m verl.trainer.main_ppo trainer.nnodes=2",
        "cd /w && PYTHONUNBUFFERED=1 python -um verl.trainer.main_ppo 2>&1 | tee log",
        "python3 -mverl.trainer.main_ppo",
        "python3 -umverl.trainer.main_ppo",
        "bash -c 'exec python3 -m verl.trainer.main_ppo'",
        "python3 /opt/verl/verl/trainer/main_ppo.py",
        "python3 verl/trainer/main_ppo.py --config-name ppo_trainer",
    ],
)
@pytest.mark.parametrize("verl", ["0.9.0", "0.9.1", "0.10", None])
def test_these_use_it(command: str, verl: str | None) -> None:
    assert uses_transfer_queue(command, verl)


@pytest.mark.parametrize(
    "command",
    [
        f"{MAIN} trainer.use_v1=False",
        f"{MAIN} +trainer.use_v1=false",
        f"{MAIN} ++trainer.use_v1='False' a=b",
        f"{MAIN} trainer.use_v1=True trainer.use_v1=False",
        "python3 -m verl.trainer.main_generation",
        "python3 -m verl.trainer.main_ppo_v0",
        "python3 -m verl.experimental.one_step_off_policy.main_ppo",
        "python3 -m my.verl.trainer.main_ppo",
        "bash train.sh",
        "python3 train.py verl",
        "",
    ],
)
def test_these_do_not_or_do_not_say_so(command: str) -> None:
    assert not uses_transfer_queue(command, "0.9.1")


@pytest.mark.parametrize("verl", ["0.1", "0.7.0", "0.8.0"])
def test_releases_before_it(verl: str) -> None:
    assert not uses_transfer_queue(MAIN, verl)


def test_what_verl_and_its_queue_do() -> None:
    """The facts that this stands on, in the installed packages."""
    queue, verl = (find_spec(package) for package in ("transfer_queue", "verl"))
    if queue is None or verl is None:
        pytest.skip("verl is not installed")
    interface = Path(str(queue.origin)).with_name("interface.py").read_text()
    runner = Path(str(verl.origin)).with_name("trainer").joinpath("main_ppo.py").read_text()
    assert f'name="{CONTROLLER}", namespace="transfer_queue"' in interface
    assert "finally:\n                tq.close()" in runner
    assert "if config.trainer.use_v1:" in runner
