"""The options of `cloudrl import`."""

from collections.abc import Mapping
from typing import Annotated, TypedDict

from cloudrl.options.declaration import Option
from cloudrl.options.job import variables


class ImportOptions(TypedDict, total=False):
    """How a script is run to see what it starts: keywords of `cloudrl.import_script`."""

    env: Annotated[
        Mapping[str, str],
        Option("Variable that the script wants; K alone copies this shell's. Repeatable.", "K[=V]", ("--env", "-e"),
               typed=list[str], read=variables),
    ]  # fmt: skip
    isolated: Annotated[
        bool, Option("Run the script with your own rights where Linux offers no isolation.", names=("--no-sandbox",),
                     sets=False),
    ]  # fmt: skip
