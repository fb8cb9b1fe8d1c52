"""dstack's own models as the judges of what is rendered. Facts are from dstack 0.22.5."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import TYPE_CHECKING, Any

from cloudrl.errors import SpecError, did_you_mean
from cloudrl.protocol.secret_names import is_secret
from cloudrl.spec.quoting import quoted
from cloudrl.verl.async_modes import ALL_ALIKE_HINT, NOT_KEPT_APART

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

_PAGES = "https://dstack.ai/docs/reference/dstack.yml"


def refuse_rendered(section: Mapping[str, Any], rendered: Collection[str]) -> None:
    """Refuse a section that says again what is rendered from other fields.

    Raises:
        SpecError: it does.
    """
    if "groups" in section and "groups" in rendered:
        raise SpecError(f"dstack.groups: {NOT_KEPT_APART}; dstack has one spot policy for them", hint=ALL_ALIKE_HINT)
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
    from pydantic import ValidationError

    from cloudrl.providers.dstack.internals import ConfigurationError, parse_apply_configuration

    values = yaml.safe_load(text)
    hint = f"What dstack knows of a {values['type']}: {_PAGES}/{values['type']}"
    try:
        parse_apply_configuration(values)
    except ConfigurationError as error:
        cause = error.__context__
        errors = cause.errors(include_url=False) if isinstance(cause, ValidationError) else []
        raise SpecError("\n".join(_lines(errors, values["type"], section)) or str(error), hint=hint) from None
    except TypeError as error:  # utils/tags.py matches values that are not text
        raise SpecError(f"dstack cannot read it: {error}", hint=hint) from None


def _lines(errors: list[ErrorDetails], kind: str, section: Collection[str]) -> list[str]:
    """One line a field: of a union dstack gives an error for each member, and the first says most."""
    lines: dict[str, str] = {}
    for error in errors:
        # ('task', 'retry', 'function-after[...]', 'duration'): kind first, then fields and what pydantic puts between
        path = [str(part) for part in error["loc"][1:] if re.fullmatch(r"[a-z_]+|[0-9]+", str(part))] or [kind]
        field = f"{'dstack.' if path[0] in section else ''}{'.'.join(path)}"
        lines.setdefault(path[0], f"{field}: {_reason(error, path, kind)}")
    return list(lines.values())


def _reason(error: ErrorDetails, path: list[str], kind: str) -> str:
    if error["type"] == "extra_forbidden":
        meant = did_you_mean(path[-1], _fields(kind)) if len(path) == 1 else ""
        return f"dstack knows no {path[-1]!r} of a {kind}{meant}"
    is_hidden = error["type"] == "missing" or "registry_auth" in path or any(map(is_secret, path))
    shown = "" if is_hidden else f"{quoted(error['input'])}: "
    return shown + error["msg"].removeprefix("Value error, ")


def _fields(kind: str) -> Collection[str]:
    from cloudrl.providers.dstack.internals import (
        FleetConfiguration,
        KubernetesVolumeConfiguration,
        TaskConfiguration,
    )

    models = {"task": TaskConfiguration, "fleet": FleetConfiguration, "volume": KubernetesVolumeConfiguration}
    return list(models[kind].model_fields)
