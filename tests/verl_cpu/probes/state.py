"""Import verl and print what it looks like: registries, platform, and every attribute of every module."""

from __future__ import annotations

import json
import os
import re
import sys
import types
from typing import Any

# The variables of the loop in which verl looks for plug-ins (verl/__init__.py).
_VERLS_LOOP = {"_plugins_policy", "_allowed", "_discovered", "_ep", "_entry_points"}


def described(value: object) -> str:
    """A text that is the same in two processes if the value is the same."""
    if isinstance(value, types.ModuleType):
        return f"module {value.__name__}"
    if isinstance(value, type | types.FunctionType | types.MethodType | types.BuiltinFunctionType):
        where = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
        members = sorted(vars(value)) if isinstance(value, type) else []
        return f"{type(value).__name__} {where} {members}"
    if isinstance(value, dict):
        return str({str(key): described(member) for key, member in value.items()})
    if isinstance(value, list | tuple):
        return str([described(member) for member in value])
    if isinstance(value, set | frozenset):
        return str(sorted(described(member) for member in value))
    return re.sub(r" at 0x[0-9a-f]+|\d{9,}", "", f"{type(value).__name__} {value!r}"[:500])


def by_name(registry: dict[Any, object]) -> dict[str, str]:
    return {"/".join(key) if isinstance(key, tuple) else key: described(registry[key]) for key in registry}


def registries() -> dict[str, Any]:
    """verl's registries and the platform in use."""
    import verl  # noqa: F401  verl loads its plug-ins here
    from verl.plugin.platform import get_platform
    from verl.plugin.platform.platform_manager import PlatformRegistry
    from verl.workers.engine import EngineRegistry
    from verl.workers.rollout import base, replica

    found: dict[str, Any] = {
        "platforms": by_name(PlatformRegistry._platforms),
        "replicas": by_name(replica.RolloutReplicaRegistry._registry),
        "adapters": by_name(base._ROLLOUT_REGISTRY),
        "engines": by_name(EngineRegistry._engines),
        "platform in use": type(get_platform()).__name__,
    }
    if "hf" in found["replicas"]:
        found["replica class"] = described(replica.get_rollout_replica_class("hf"))
        found["adapter class"] = described(base.get_rollout_class("hf", "async"))
    return found


def attributes(module: types.ModuleType) -> dict[str, str]:
    return {
        name: described(value)
        for name, value in vars(module).items()
        if not name.startswith("__") and not (module.__name__ == "verl" and name in _VERLS_LOOP)
    }


def main() -> None:
    found = registries()
    from verl.trainer.constants_ppo import get_ppo_ray_runtime_env
    from verl.trainer.ppo import v1  # noqa: F401  so that the trainer is compared as well

    verls = {name: module for name, module in sys.modules.items() if name.partition(".")[0] == "verl"}
    answer = {
        "registries": found,
        "modules": {name: attributes(module) for name, module in sorted(verls.items())},
        "cloudrl": sorted(name for name in sys.modules if name.partition(".")[0] == "cloudrl"),
        "environ": {name: value for name, value in os.environ.items() if name != "VERL_USE_EXTERNAL_PLUGINS"},
        "actor environment": dict(get_ppo_ray_runtime_env()["env_vars"]),
    }
    print(json.dumps(answer))


if __name__ == "__main__":
    main()
