"""What the fixture `take_over` is."""

from collections.abc import Callable

from cloudrl.scripts.imported import Imported

TakeOver = Callable[..., Imported]
