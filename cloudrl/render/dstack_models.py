"""dstack's own models as the judges of what is rendered. Facts are from dstack 0.22.5."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from cloudrl.errors import SpecError
from cloudrl.spec import did_you_mean

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from pydantic_core import ErrorDetails

_PAGES = "https://dstack.ai/docs/reference/dstack.yml"


def refuse_rendered(section: Mapping[str, Any], rendered: Collection[str]) -> None:
    """Refuse a section that says again what is rendered from other fields.

    Raises:
        SpecError: it does.
    """
    for name in section:
        if name in rendered:
            raise SpecError(
                f"dstack.{name}: cloudrl writes {name!r} itself, from fields outside the section",
                hint=f"Leave it out of dstack: {{{name}: ...}}",
            )


def check_with_dstack(text: str, section: Collection[str] = ()) -> None:
    """Let dstack read a rendered file.

    Args:
        text: YAML of a task, a fleet or a volume.
        section: what of it stands in the declaration's section `dstack`.

    Raises:
        SpecError: dstack refuses it. The message names each field and has dstack's own words; what stands under
            `registry_auth` is not repeated.
    """
    import yaml
    from dstack._internal.core.errors import ConfigurationError
    from dstack._internal.core.models.configurations import parse_apply_configuration
    from pydantic import ValidationError

    values = yaml.safe_load(text)
    try:
        parse_apply_configuration(values)
    except ConfigurationError as error:
        cause = error.__context__
        errors = cause.errors(include_url=False) if isinstance(cause, ValidationError) else []
        lines = _lines(errors, values["type"], section) or [str(error)]
        raise SpecError("\n".join(lines), hint=_fields_hint(values["type"])) from None
    except TypeError as error:  # utils/tags.py matches values that are no text
        raise SpecError(f"dstack cannot read it: {error}", hint=_fields_hint(values["type"])) from None


def _lines(errors: list[ErrorDetails], kind: str, section: Collection[str]) -> list[str]:
    """One line a field: of a union dstack gives an error for each member, and the first says most."""
    lines: dict[str, str] = {}
    for error in errors:
        # ('task', 'retry', 'function-after[...]', 'duration'): kind first, then fields and what pydantic puts between
        path = [str(part) for part in error["loc"][1:] if re.fullmatch(r"[a-z_]+|[0-9]+", str(part))]
        field = path[0] if path else kind
        lines.setdefault(field, _line(error, path, kind, section))
    return list(lines.values())


def _line(error: ErrorDetails, path: list[str], kind: str, section: Collection[str]) -> str:
    where = ".".join(["dstack", *path] if path and path[0] in section else path or ["dstack"])
    if error["type"] == "extra_forbidden":
        meant = did_you_mean(path[-1], _fields(kind)) if len(path) == 1 else ""
        return f"{where}: dstack knows no {path[-1]!r} of a {kind}{meant}"
    said = error["msg"].removeprefix("Value error, ")
    shown = "" if error["type"] == "missing" or "registry_auth" in path else f"{error['input']!r}: "
    return f"{where}: {shown}{said}"


def _fields(kind: str) -> list[str]:
    from dstack._internal.core.models.configurations import TaskConfiguration
    from dstack._internal.core.models.fleets import FleetConfiguration
    from dstack._internal.core.models.volumes import KubernetesVolumeConfiguration

    model: Any = {"task": TaskConfiguration, "fleet": FleetConfiguration}.get(
        kind, KubernetesVolumeConfiguration
    )
    return list(model.model_fields)


def _fields_hint(kind: str) -> str:
    return f"What dstack knows of a {kind}: {_PAGES}/{kind}"
