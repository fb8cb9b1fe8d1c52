"""The options of `cloudrl import`."""

from collections.abc import Mapping
from typing import Annotated, TypedDict

from cloudrl.options.declaration import Option
from cloudrl.options.job import ENV


class ImportOptions(TypedDict, total=False):
    """How a script is run to see what it starts: keywords of `cloudrl.import_script`."""

    env: Annotated[Mapping[str, str], ENV]
    isolated: Annotated[
        bool, Option("Run the script with your own rights where Linux offers no isolation.", names=("--no-sandbox",),
                     sets=False),
    ]  # fmt: skip
