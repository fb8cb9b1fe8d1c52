"""What runs under the image's Python, with the image's packages: one data set, one model."""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import sys
from importlib import metadata
from pathlib import Path
from typing import Optional, Sequence, Tuple, Type

from cloudrl.errors import CloudrlError
from cloudrl.node import transient
from cloudrl.node.failure import error_code
from cloudrl.protocol.options import MADE_ON_NODES


def data(argv: Sequence[str]) -> int:
    """`data TEXT --to DIR --error FILE`: prepare one data set, a name or JSON text, and say how far it is."""
    parser = argparse.ArgumentParser(prog="cloudrl-node.pyz data")
    parser.add_argument("text")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--error", type=Path)
    args = parser.parse_args(argv)
    from cloudrl.data import prepare

    # the default would end it at once, and leave half a file behind
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        prepare(args.text, args.to, say=lambda line: print(line, file=sys.stderr, flush=True))
    except _expected() as error:
        return _say(error, args.error)
    except Exception as error:
        _write_code(error, args.error)
        raise
    finally:
        signal.signal(signal.SIGTERM, before)
    return 0


def model(argv: Sequence[str]) -> int:
    """`model NAME --to DIR --result FILE --error FILE`: have one model on this node, and write where it lies."""
    parser = argparse.ArgumentParser(prog="cloudrl-node.pyz model")
    parser.add_argument("name")
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--error", type=Path)
    args = parser.parse_args(argv)
    try:
        path = _model_path(args.name, args.to)
    except _expected() as error:
        return _say(error, args.error)
    except Exception as error:
        _write_code(error, args.error)
        raise
    args.result.write_text(json.dumps({"path": str(path)}))
    return 0


def _model_path(name: str, folder: Path) -> Path:
    if name in MADE_ON_NODES:
        from cloudrl.verl_cpu.tiny_model import make_tiny_model

        make_tiny_model(str(folder / name), pretrained=name == "tiny-adder")
        return folder / name
    if name.startswith("/"):
        path = Path(name)
        if not (path / "config.json").is_file():
            raise FileNotFoundError(f"{path} has no config.json, so it is no Hugging Face model folder")
        return path
    return _download(name)


def _download(name: str) -> Path:
    # hub versions before 1.0 download through hf_transfer where it is installed, and read the switch when they
    # are imported; later ones use Xet by themselves
    if int(metadata.version("huggingface_hub").split(".")[0]) < 1 and importlib.util.find_spec("hf_transfer"):
        os.environ["HF_HUB_ENABLE_HF_TRANSFER"] = "1"
    import huggingface_hub

    skip = ["*.pth", "*.gguf", "*.onnx", "original/*", "consolidated*"]  # other formats of the same weights
    return Path(huggingface_hub.snapshot_download(name, ignore_patterns=skip))


def _expected() -> Tuple[Type[Exception], ...]:
    """What is said in one line. Errors of httpx, which huggingface_hub uses from 1.0 on, are no OSError."""
    errors = (CloudrlError, OSError, ValueError, ImportError, RuntimeError)
    httpx = sys.modules.get("httpx")
    return errors if httpx is None else (*errors, httpx.HTTPError)


def _say(error: Exception, code_to: Optional[Path]) -> int:
    """One last line that says it all: the agent quotes it, and reads the error's code from a file.

    Returns the exit status, which blames the network or not.
    """
    name = "" if isinstance(error, CloudrlError) else f"{type(error).__name__}: "
    print(name + " ".join(str(error).split())[:400], file=sys.stderr)
    _write_code(error, code_to)
    return transient.EXIT_STATUS if transient.is_transient(error) else 1


def _write_code(error: Exception, code_to: Optional[Path]) -> None:
    if code_to is not None:
        with contextlib.suppress(OSError):  # a full disk may be what is to be said
            code_to.write_text(error_code(error))
