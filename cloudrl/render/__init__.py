"""Spec -> text. Pure functions: the same value always gives the same bytes."""

from cloudrl.render.dstack import to_dstack as to_dstack
