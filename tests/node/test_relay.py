"""How many debuggers an agent passes on at once."""

import pytest

from cloudrl.node.relay import Relays
from cloudrl.protocol.failures import ApiError, ErrorCode


def test_there_are_few_at_once():
    relays = Relays(1)
    with relays.slot():
        with pytest.raises(ApiError, match="1 debuggers are connected") as refused, relays.slot():
            pass
        assert refused.value.code is ErrorCode.TOO_MANY
    with relays.slot():
        pass
