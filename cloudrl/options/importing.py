"""The options of `cloudrl import`, and the one that it shares with `cloudrl reward test`."""

from collections.abc import Mapping
from typing import Annotated, TypedDict

from cloudrl.options.declaration import Option
from cloudrl.options.job import ENV

NO_SANDBOX = Option(
    "Run it with your own rights and network, where Linux offers no isolation.", names=("--no-sandbox",), sets=False
)


class ImportOptions(TypedDict, total=False):
    """How a script is run to see what it starts: keywords of `cloudrl.import_script`."""

    env: Annotated[Mapping[str, str], ENV]
    isolated: Annotated[bool, NO_SANDBOX]
