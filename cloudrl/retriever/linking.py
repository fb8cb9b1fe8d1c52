"""A folder that stands for an index elsewhere: it has links to all that is in that."""

from collections.abc import Callable
from pathlib import Path

from cloudrl.errors import InputError
from cloudrl.retriever.build import is_of_build, remove
from cloudrl.retriever.lock import contents, locked


def link(index: Path, folder: Path, say: Callable[[str], object]) -> None:
    """Make the links, in place of what `build` or links to another index have left there.

    Raises:
        InputError: the folder has something else in it, or cannot be written.
    """
    with locked(folder, say):
        if folder.samefile(index):
            return
        wanted = {content.name: str(content.absolute()) for content in contents(index)}
        there = contents(folder)
        links = {path.name: str(path.readlink()) for path in there if path.is_symlink()}
        if links == wanted and len(there) == len(links):
            return
        others = [path for path in there if path.name not in links]
        if any(Path(target).name != name for name, target in links.items()) or (others and not is_of_build(others)):
            raise InputError(f"{folder} has other files in it", hint="Name a new folder: --to DIR")
        remove(there)
        for name, target in wanted.items():
            (folder / name).symlink_to(target)
