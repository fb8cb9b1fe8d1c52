"""Which architectures a rollout engine can serve, read from its wheel without running it.

    pip download --no-deps vllm==0.24.0 sglang==0.5.12 ...
    python benchmarks/engine_classes.py *.whl > cloudrl/verl/engine_classes.json

vLLM names them in `model_executor/models/registry.py`; those of tasks that generate no text are left out. SGLang takes
the `EntryClass` of each module in `srt/models`.
"""

from __future__ import annotations

import ast
import json
import re
import sys
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REGISTRY, MODELS = "vllm/model_executor/models/registry.py", "sglang/srt/models/"
GENERATES = (
    "_TEXT_GENERATION_MODELS", "_MULTIMODAL_MODELS", "_TRANSFORMERS_SUPPORTED_MODELS", "_TRANSFORMERS_BACKEND_MODELS",
)  # fmt: skip
REMOVED = "_PREVIOUSLY_SUPPORTED_MODELS"
ABOUT = "Architectures that rollout engines can serve; made by benchmarks/engine_classes.py"


def main(wheels: list[str]) -> None:
    """Print what the wheels say as JSON, a class a line."""
    engines = [engine for wheel in wheels if (engine := read(Path(wheel))) is not None]
    rows = sorted(engines, key=lambda row: (row["engine"], tuple(map(int, row["version"].split(".")))))
    print(json.dumps({"about": ABOUT, "engines": rows}, indent=0, sort_keys=True))


def read(wheel: Path) -> dict[str, Any] | None:
    """One engine's classes; None for a wheel of something else."""
    found = re.match(r"(vllm|sglang)-(\d+(?:\.\d+)*)", wheel.name)
    if found is None:
        return None
    name, version = found.groups()
    with zipfile.ZipFile(wheel) as files:
        if name == "vllm":
            tables = tables_of(files.read(REGISTRY).decode("utf-8-sig"))
            classes = {each for table in GENERATES for each in tables[table]}
            removed, source = dict(tables[REMOVED]), REGISTRY
        else:
            names = [each for each in files.namelist() if re.fullmatch(rf"{MODELS}\w+\.py", each)]
            classes = {each for file in names for each in entry_classes(files.read(file).decode("utf-8-sig"))}
            removed, source = {}, f"{MODELS}*.py: EntryClass"
    return {"engine": name, "version": version, "source": source, "classes": sorted(classes), "removed": removed}


def tables_of(text: str) -> dict[str, dict[str, Any]]:
    """The module's dictionaries with literal keys; a value that is no literal is None."""
    found: dict[str, dict[str, Any]] = {}
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Dict) and isinstance(node.targets[0], ast.Name):
            rows = zip(node.value.keys, node.value.values, strict=True)
            found[node.targets[0].id] = {
                key.value: value.value if isinstance(value, ast.Constant) else None
                for key, value in rows
                if isinstance(key, ast.Constant)
            }
    return found


def entry_classes(text: str) -> Iterator[str]:
    """What a module of SGLang offers."""
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], "id", "") == "EntryClass":
            values = node.value.elts if isinstance(node.value, (ast.List, ast.Tuple)) else [node.value]
            yield from (each.id for each in values if isinstance(each, ast.Name))


if __name__ == "__main__":
    main(sys.argv[1:])
