"""Spec -> text. Pure functions: the same value always gives the same bytes."""

from cloudrl.render.dstack import to_dstack as to_dstack
from cloudrl.render.machines import fleet_to_dstack as fleet_to_dstack
from cloudrl.render.machines import volume_to_dstack as volume_to_dstack
