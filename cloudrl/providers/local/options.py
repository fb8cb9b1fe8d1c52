"""Options of the command line for keys of the section `local`. Standard library only: `cloudrl --help` imports it."""

from typing import Annotated, TypedDict

from cloudrl.options.declaration import Option

_PORT = "Local port for Ray's dashboard, with --on local. Default: as last time, else 8265, if free."


class SectionOptions(TypedDict, total=False):
    """Keys of `LocalSection`."""

    dashboard_port: Annotated[int, Option(_PORT, "PORT")]
