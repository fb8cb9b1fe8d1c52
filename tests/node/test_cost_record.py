"""What the run has cost, on a volume that may hang."""

import threading
import time
from unittest.mock import MagicMock

from patience import SLOWER

from cloudrl.node.cost_record import CostRecord


def test_a_volume_that_hangs_holds_up_nobody_and_is_written_to_once() -> None:
    over, begun, attempts = threading.Event(), threading.Event(), MagicMock()
    attempts.write_cost.side_effect = lambda *_: (begun.set(), over.wait(60 * SLOWER))
    record = CostRecord(attempts, lambda: 1.0, lambda: 0.25, MagicMock())
    now = time.monotonic()
    record.renew(now)
    assert not attempts.write_cost.called
    record.renew(now + 61)
    assert begun.wait(20 * SLOWER)
    record.renew(now + 122)
    assert time.monotonic() - now < 30
    attempts.write_cost.assert_called_once_with(1.0, 0.25)
    over.set()


def test_without_a_price_nothing_is_written() -> None:
    attempts = MagicMock()
    CostRecord(attempts, lambda: None, lambda: 0.0, MagicMock()).write()
    assert not attempts.write_cost.called
