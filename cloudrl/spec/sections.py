"""The sections of a declaration: fields that one provider alone understands, under its name."""

from typing import Any, TypeVar

from pydantic import create_model

from cloudrl.plugins import providers
from cloudrl.spec.base import FrozenDict, Spec
from cloudrl.spec.fields import Section

S = TypeVar("S", bound=Spec)


def with_sections(model: type[S]) -> type[S]:
    """Decorator: a model with a section for each provider that is installed, read by that provider alone."""
    sections = tuple(name for name in providers() if name not in model.model_fields)
    fields: dict[str, Any] = {name: (Section, FrozenDict()) for name in sections}
    made = create_model(model.__name__, __base__=model, __module__=model.__module__, __doc__=model.__doc__, **fields)
    made.sections = sections
    return made
