"""Phases: every source's words, and which are the end."""

import pytest
from dstack._internal.core.models.runs import JobStatus, RunStatus

from cloudrl.protocol.phases import Phase


def test_terminal_phases() -> None:
    over = {"failed", "ended", "down", "terminated", "aborted", "done"}
    assert {str(phase) for phase in Phase if phase.is_terminal} == over
    assert not Phase("a word of next year").is_terminal
    assert Phase("a word of next year") is Phase.UNKNOWN


@pytest.mark.parametrize("status", [*JobStatus, *RunStatus])
def test_every_word_of_dstack_is_known(status: JobStatus | RunStatus) -> None:
    phase = Phase(status.value)
    assert phase is not Phase.UNKNOWN
    assert phase.is_terminal == status.is_finished()
