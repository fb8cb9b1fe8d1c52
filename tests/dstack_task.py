"""A cluster's YAML, as dstack and the agent read it."""

import shlex

import yaml
from dstack._internal.core.models.configurations import TaskConfiguration, parse_apply_configuration

from cloudrl.protocol.options import AgentOptions
from cloudrl.providers.dstack.task import to_dstack
from cloudrl.spec import Cluster


def parsed(cluster: Cluster) -> TaskConfiguration:
    configuration = parse_apply_configuration(yaml.safe_load(to_dstack(cluster)))
    assert isinstance(configuration, TaskConfiguration)
    return configuration


def agent_options(task: TaskConfiguration) -> AgentOptions:
    *_, command = task.commands
    return AgentOptions.from_argv(shlex.split(command.replace("\\\n", ""))[4:])
