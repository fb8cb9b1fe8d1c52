"""`cloudrl import`: a script, or a task of dstack or SkyPilot, as recipes and a cluster."""

from pathlib import Path
from typing import Annotated, Any

import typer

from cloudrl.cli import _output
from cloudrl.cli._options import DryRunOption, JsonOption, YesOption, declared_options, option, with_options
from cloudrl.cli._terminal import Terminal
from cloudrl.options.importing import ImportOptions


@with_options(options=declared_options(ImportOptions))
def import_script(
    script: Annotated[Path, typer.Argument(metavar="SCRIPT", help="Shell script, dstack.yml or sky.yml.")],
    arguments: Annotated[
        list[str] | None, typer.Argument(metavar="[-- ARGS]", help="Arguments for the script.")
    ] = None,
    *,
    options: dict[str, Any],
    output: Annotated[Path, option("DIR", "Folder for the files.", "--output", "-o")] = Path(),
    dry_run: DryRunOption = False,
    as_json: JsonOption = False,
    yes: YesOption = False,
) -> None:
    """Turn a script into recipes and a cluster file, and say what became of each line.

    The script is run in bash, with stand-ins for python, ray, srun, pip, docker and others. It can neither change nor
    read this machine, and has no network. Its training commands become recipes; `check` and `submit` also take a
    script itself.
    """
    from cloudrl.sdk.importing import import_script as take_over

    with Terminal(yes=yes, prints_job=False) as terminal:
        imported = take_over(script, arguments or (), confirm=terminal.confirm, **options)
        if not as_json:
            for line in imported.lines:
                _output.note(str(line))
        if not imported.trainings:
            _output.note(f"{imported.shown} starts no training of verl's: there is no recipe")
        files = {output / name: text for name, text in imported.files.items()}
        if not dry_run:
            _output.write_files(files, confirm=terminal.confirm)
    if as_json:
        _output.as_json(_fields(imported, files, output))
    elif dry_run:
        _output.data("\n".join(f"# {path}\n{text}" for path, text in files.items()))
    else:
        _output.data("\n".join(map(str, files)))
    if not as_json and (commands := imported.commands(str(output))):
        _output.hint("\n".join(commands))


def _fields(imported: Any, files: dict[Path, str], output: Path) -> dict[str, Any]:
    return {
        "lines": [
            {
                "line": each.number,
                "file": each.file or None,
                "fate": each.fate.value,
                "text": each.text,
                "why": each.why,
            }
            for each in imported.lines
        ],
        "files": {str(path): text for path, text in files.items()},
        "recipes": [dict(each.fields) for each in imported.trainings],
        "cluster": dict(imported.cluster),
        "commands": list(imported.commands(str(output))),
    }
