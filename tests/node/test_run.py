"""The agent's entry: wrong input is one message and final, before anything is started."""

import errno
import threading
import time
from pathlib import Path
from unittest.mock import MagicMock

import pytest
from patience import SLOWER

from cloudrl.node.run import _cannot_listen, _clean_up, run
from cloudrl.protocol.outcome import from_output


@pytest.mark.parametrize(
    ("env", "words", "message"),
    [
        ({"CLOUDRL_NODE_RANK": "2"}, [], "rank 2 does not fit a cluster of 1 nodes"),
        ({"CLOUDRL_NODES_NUM": "two"}, [], "CLOUDRL_NODES_NUM/DSTACK_NODES_NUM/SLURM_JOB_NUM_NODES should be a number"),
        ({}, ["--key-file=/no/such/key"], "the key /no/such/key cannot be read: No such file or directory"),
        ({}, ["--run-dir=/dev/null/run"], "the folder /dev/null/run cannot be written: Not a directory"),
    ],
)
def test_wrong_input(
    env: dict[str, str], words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exit code 0: dstack starts a run again that ends with another one, and each start costs money."""
    assert run([f"--run-dir={tmp_path}", *words], env) == 0
    output = capsys.readouterr().out
    assert output.startswith(f"CLOUDRL FAILED: {message}")
    outcome = from_output(output)
    assert outcome.final
    assert outcome.reason.startswith(message)


def test_a_volume_that_hangs_at_the_end_loses_no_cost_and_leaves_no_secrets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cloudrl.node.run.end_descendants", lambda: None)
    node = MagicMock()
    node.options.ray_temp_dir = None
    _clean_up(node, node.archiver, None, None)
    steps = [each[0] for each in node.method_calls]
    assert steps.index("replication.secrets.forget") < steps.index("cost_record.write") < steps.index("archiver.finish")


def test_a_volume_that_hangs_for_ever_keeps_no_agent_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor Ray, whose GPUs are paid for."""
    monkeypatch.setattr("cloudrl.node.run.end_descendants", lambda: None)
    monkeypatch.setattr("cloudrl.node.run.LAST_S", 0.05)
    node, over = MagicMock(), threading.Event()
    node.options.ray_temp_dir = None
    node.checkpoint_store.close.side_effect = lambda: over.wait(60 * SLOWER)
    before = time.monotonic()
    _clean_up(node, node.archiver, None, None)
    assert time.monotonic() - before < 30
    steps = [each[0] for each in node.method_calls]
    assert steps.index("end_children") < steps.index("checkpoint_store.close") < steps.index("archiver.finish")
    over.set()


def test_why_else_the_agent_cannot_listen() -> None:
    """Ports in use and addresses of others are in `test_cluster_failures.py`."""
    reason = "port 80 of the agent cannot be opened: Permission denied"
    assert _cannot_listen(PermissionError(errno.EACCES, "Permission denied"), "10.0.0.7", 80) == reason
