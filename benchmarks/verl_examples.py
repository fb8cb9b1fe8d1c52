"""The commands of verl's own example scripts: each script runs in bash, with stand-ins as the only programs on PATH."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

_RECORDS = f"""#!{sys.executable}
import json, os, sys
with open(os.environ["RECORDED"], "a") as file:
    file.write(json.dumps(sys.argv) + "\\n")
"""
_SILENT = "#!/bin/sh\nexit 0\n"
_PROGRAMS = ("pip", "pip3", "nvidia-smi", "srun", "sbatch", "docker", "git", "wget", "curl", "sleep", "tee",
             "huggingface-cli",
             "hf", "npu-smi", "mkdir", "rm", "cp", "ls", "sysctl", "killall", "pkill", "conda", "source")  # fmt: skip
_NEEDED = ("bash", "dirname", "basename", "date", "pwd", "cat", "echo", "expr", "env", "head", "tail", "tr", "wc",
           "grep", "sed", "cut", "realpath", "readlink", "seq", "hostname")  # fmt: skip
_VARIABLES = {"HOME": "/home/me", "USER": "me", "HDFS_ROOT": "/hdfs", "RAY_DATA_HOME": "/data", "INFER_BACKEND": "vllm",
              "LORA_ADAPTER_PATH": "/adapter", "MODEL_PATH": "/model", "ckpts_home": "/checkpoints"}  # fmt: skip
"""What scripts ask for."""
_MODULE = "verl.trainer.main_ppo"


def commands(checkouts: Sequence[Path]) -> Iterator[tuple[str, str, list[str], int]]:
    """Script, name of the configuration, overrides, and the GPUs that it asks for; each command once."""
    seen: set[tuple[str, ...]] = set()
    with tempfile.TemporaryDirectory() as folder:
        programs = Path(folder) / "bin"
        _stand_ins(programs)
        scripts = [(each, script) for each in checkouts for script in sorted((each / "examples").rglob("*.sh"))]
        for checkout, script in scripts:
            record = Path(folder) / "record"
            record.write_text("")
            environment = {
                "PATH": str(programs),
                "RECORDED": str(record),
                "BASH_ENV": str(programs / "limits"),
                **_VARIABLES,
            }
            try:
                subprocess.run(
                    ["/bin/bash", str(script)],
                    cwd=checkout,
                    env=environment,
                    capture_output=True,
                    check=False,
                    timeout=20,
                )
            except subprocess.TimeoutExpired:
                continue
            for line in record.read_text().splitlines():
                words = json.loads(line)
                if _MODULE in words:
                    name, overrides = _parsed(words[words.index(_MODULE) + 1 :])
                    if tuple(overrides) not in seen:
                        seen.add(tuple(overrides))
                        yield str(script.relative_to(checkout)), name, overrides, 4096


def _stand_ins(folder: Path) -> None:
    folder.mkdir()
    (folder / "limits").write_text("ulimit() { :; }\n")
    texts = {
        **dict.fromkeys(("python", "python3", "uv", "ray", "torchrun"), _RECORDS),
        **dict.fromkeys(_PROGRAMS, _SILENT),
    }
    for name, text in texts.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    for name in _NEEDED:
        for place in ("/bin", "/usr/bin"):
            if (Path(place) / name).exists() and not (folder / name).exists():
                (folder / name).symlink_to(Path(place) / name)


def _parsed(words: list[str]) -> tuple[str, list[str]]:
    """The configuration's name, and what is left: overrides."""
    name, overrides = "ppo_trainer", []
    rest = iter(words)
    for word in rest:
        option, _, value = word.partition("=")
        if option in ("--config-name", "--config-path"):
            value = value or next(rest, "")
            name = value.strip("'\"").removesuffix(".yaml") if option == "--config-name" else name
        else:
            overrides.append(word)
    return name, overrides
