"""A cluster's YAML, as dstack reads it."""

from __future__ import annotations

import yaml
from dstack._internal.core.models.configurations import TaskConfiguration, parse_apply_configuration

from cloudrl.render import to_dstack
from cloudrl.spec import Cluster


def parsed(cluster: Cluster) -> TaskConfiguration:
    configuration = parse_apply_configuration(yaml.safe_load(to_dstack(cluster)))
    assert isinstance(configuration, TaskConfiguration)
    return configuration
