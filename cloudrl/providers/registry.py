"""Providers by their names, and which of them has the cluster of a name. A provider's module is imported when used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, cast

from cloudrl.errors import CloudrlError, InputError
from cloudrl.plugins import DEFAULT, GROUP, own_providers, providers

if TYPE_CHECKING:
    from cloudrl.providers.model import ClusterRef, Provider, Status


@dataclass(frozen=True)
class Found:
    """Clusters of several providers.

    Attributes:
        clusters: those that were found.
        errors: providers, or places of one, that could not be asked, and why: their clusters are unknown now.
    """

    clusters: tuple[Status, ...]
    errors: Mapping[str, CloudrlError]

    @property
    def running(self) -> tuple[Status, ...]:
        """Those that are up or coming up."""
        return tuple(cluster for cluster in self.clusters if not cluster.is_over)

    def refuse_silent(self) -> None:
        """Raises: CloudrlError: nothing was found, and a provider could not be asked."""
        if self.errors and not self.clusters:
            raise next(iter(self.errors.values()))


def provider(name: str) -> Provider:
    """Look a provider up by name.

    Raises:
        InputError: the name is unknown.
        CloudrlError: that of another package cannot be imported.
    """
    if name not in providers():
        from cloudrl.errors import did_you_mean

        raise InputError(
            f"no provider {name!r}{did_you_mean(name, providers())}; installed: {', '.join(providers())}",
            hint=f"For example: --on {DEFAULT}",
        )
    module, _, of_class = providers()[name].partition(":")
    try:
        return cast("Provider", getattr(import_module(module), of_class)())
    except (ImportError, AttributeError) as error:
        raise CloudrlError(
            f"provider {name} cannot be imported: {error}", hint=f"Its class is {module}:{of_class}"
        ) from error


def section_options() -> dict[str, type]:
    """Provider -> the options that it declares for its section; only those that come with cloudrl have any."""
    declaring = (name for name in own_providers() if (Path(__file__).parent / name / "options.py").is_file())
    return {name: import_module(f"{GROUP}.{name}.options").SectionOptions for name in declaring}


def default_provider(*, gpus: bool) -> Provider:
    """The provider of a cluster for which the user names none: the first that is configured, or else the first."""
    candidates = [candidate for candidate in map(provider, providers()) if candidate.has_gpus == gpus]
    return next((candidate for candidate in candidates if candidate.is_configured()), candidates[0])


def known_names() -> list[str]:
    """Clusters that this machine has started or attached to, up or not. Contacts no cluster."""
    from cloudrl.providers.state_folder import home

    return sorted({folder.name for name in providers() for folder in home().glob(provider(name).state_pattern)})


def find(name: str | None = None) -> Found:
    """One's own clusters with all providers, or those of one name, which may be `dstack/lab`.

    A name that is over with one provider makes room for one that is alive with another. What is another user's, or no
    cluster at all, counts only where one has none of that name, alive or over.
    """
    from cloudrl.providers.model import PartlyListed

    clusters: list[Status] = []
    errors: dict[str, CloudrlError] = {}
    of_provider, _, plain = (name or "").rpartition("/")
    for asked in map(provider, [of_provider] if of_provider else providers()):
        if not asked.is_configured():
            continue
        try:
            clusters += asked.list(plain or None)
        except PartlyListed as error:
            clusters += error.clusters
            errors |= error.silent
        except CloudrlError as error:
            errors[asked.name] = error
    chosen: list[Status] = []
    for name_ in dict.fromkeys(cluster.name for cluster in clusters):
        named = [cluster for cluster in clusters if cluster.name == name_]
        named = [cluster for cluster in named if cluster.is_own] or named
        chosen += [cluster for cluster in named if not cluster.is_over] or named[:1]
    return Found(tuple(chosen), errors)


def locate(name: str) -> ClusterRef:
    """The one cluster that a name means: `ray-cluster`, or `dstack/ray-cluster` where two providers have one.

    Raises:
        InputError: the cluster does not exist, or is alive with two providers.
        ConnectionFailed: the cluster does not exist, as far as the providers that answer know.
    """
    if "/" in name:
        from cloudrl.providers.model import ClusterRef

        of_provider, _, plain = name.partition("/")
        return ClusterRef(provider(of_provider).name, plain)
    named = find(name)
    named.refuse_silent()
    refs = [cluster.ref for cluster in named.clusters]
    if not refs:
        from cloudrl.errors import did_you_mean

        running = names_in_use(find().running)
        others = f"; running: {', '.join(running)}" if running else ""
        meant = did_you_mean(name, [*running, *known_names()])
        unasked = [unconfigured.name for unconfigured in map(provider, providers()) if not unconfigured.is_configured()]
        hint = f"\nNot asked, since it is not configured: {', '.join(unasked)}" if unasked else ""
        raise InputError(
            f"there is no cluster {name!r}{meant}{others}", hint=f"See what there is: cloudrl status{hint}"
        )
    if len(refs) > 1:
        raise ambiguous(name, refs)
    return refs[0]


def ambiguous(name: str, refs: Sequence[ClusterRef]) -> InputError:
    """The error for a name that several providers have."""
    return InputError(
        f"there are {len(refs)} clusters {name}: {', '.join(map(str, refs))}",
        hint="\n".join(f"Choose it: --cluster {ref}" for ref in refs),
    )


def ensure_name_free(name: str, on: str) -> None:
    """One name for one cluster: with two of them a later command would be ambiguous.

    Raises:
        InputError: a cluster of that name is alive with another provider. One that does not answer has none.
    """
    others = [cluster for cluster in find(name).running if cluster.provider != on and cluster.is_own]
    if others:
        raise InputError(
            f"a cluster {name} already exists: {others[0].ref}",
            hint=f"Choose another name: --cluster {name}-2\nOr end it first: cloudrl down {others[0].ref}",
        )


def names_in_use(clusters: Sequence[Status]) -> list[str]:
    """How to call each of them: by its name alone, or with its provider where there are two of a name."""
    names = [cluster.name for cluster in clusters]
    return [cluster.name if names.count(cluster.name) == 1 else str(cluster.ref) for cluster in clusters]
