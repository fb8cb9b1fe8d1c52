"""The user's own files: which of them are sent with a job, how, and where they are put on the nodes.

Small ones travel in the job's Ray package and are named relative to the job's working directory, which is the
package on every node, for the entry point and for every actor (verified with Ray 2.60; verl's Hydra does not change
the directory). Larger ones go through the agents and are below the same absolute path on every node. Both places are
named after the content, so nothing is sent twice and a run that is continued finds the same names.
Python files are checked first: a typo would show minutes later.
"""

import ast
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from cloudrl.errors import InputError, Refusals, did_you_mean
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.local_files import LocalFile, LocalFiles, LocalPath, find_local_paths
from cloudrl.jobs.submission import Upload
from cloudrl.jobs.working_dir import EXCLUDED_FOLDERS, PackagePlan, too_large
from cloudrl.logs.sent_files import PACKAGE_FOLDER
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.protocol.manifest import Manifest, Part
from cloudrl.spec.hydra import HydraText, hydra_text, items, split_key
from cloudrl.transport.ray_client import PACKAGE_LIMIT_BYTES
from cloudrl.units import size_text
from cloudrl.verl.keys import REWARD_FUNCTION, REWARD_NAME, PathKind, name_key

SMALL_BYTES = 10 * 2**20
"""What is larger goes through the agents where there are some: a package is sent again whenever a line of code in
it has changed."""
_NEVER_BESIDE = frozenset({"verl", "torch", "ray", "transformers", "cloudrl"})
"""Packages of the image: a checkout of one that is beside the file is not what it imports on the nodes."""


def plan_uploads(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: decide how the job's own files travel, and name the places on the nodes in its overrides.

    A path that does not exist and Python code that is not what verl needs are refused, each with its reason.

    Raises:
        InputError: There is no way for something large.
    """
    files, folder, refused = snapshot.files, snapshot.files.working_dir, Refusals()
    paths, notes = find_local_paths(draft.arguments, files, nodes_are_here=snapshot.nodes_are_here, refused=refused)
    inside = {path.file.path: name for path in paths if (name := files.name_inside(path.file)) is not None}
    _check_all_code(paths, draft.values, files, refused)
    draft = draft.refused(*refused)
    if folder is not None and folder.size_bytes > PACKAGE_LIMIT_BYTES:
        return draft.refused(too_large(f"--working-dir {folder.path}", folder.entries))
    outside: dict[Path, LocalPath] = {}
    for path in paths:
        if path.file.path not in inside:
            outside.setdefault(path.file.path, path)
    room_bytes = PACKAGE_LIMIT_BYTES - (folder.size_bytes if folder is not None else 0)
    by_agents = _choose_for_agents(
        list(outside.values()), draft.cluster, None if files.working_dir_is_remote else room_bytes
    )
    uploads = {path: _upload(local, draft.cluster, files, path in by_agents) for path, local in outside.items()}
    places = {**inside, **{path: upload.to for path, upload in uploads.items()}}
    sent = tuple(uploads.values())
    draft = draft.noting(*notes, uploads=sent, package=_package(files, sent))
    return draft.overriding(_rewrite(draft.arguments, paths, places))


def _check_all_code(
    paths: Iterable[LocalPath], values: Mapping[str, str], files: LocalFiles, refused: Refusals
) -> None:
    for path in paths:
        name = name_key(split_key(path.key)[1])
        if path.kind is PathKind.CODE and name is not None:
            wanted = values.get(name) or (REWARD_FUNCTION if name == REWARD_NAME else None)
            with refused.collect():
                check_code(path.file, wanted, option=str(path), is_in_root=files.is_in_root(path.file))


def _choose_for_agents(paths: list[LocalPath], cluster: ClusterFacts, package_room_bytes: int | None) -> set[Path]:
    """Those for which the package has no room, the largest first; None is a package that takes nothing at all."""
    has_agents = cluster.files_dir is not None
    chosen, room_bytes = set(), -1 if package_room_bytes is None else package_room_bytes
    paths = sorted(paths, key=lambda path: path.file.size_bytes)
    for path in paths:
        size_bytes = path.file.size_bytes
        if size_bytes <= room_bytes and (size_bytes <= SMALL_BYTES or not has_agents):
            room_bytes -= size_bytes
        elif has_agents:
            chosen.add(path.file.path)
        else:
            if package_room_bytes is None:
                reason = "the working directory is a URL, to which nothing can be added"
            else:
                reason = f"Ray's package has room for {size_text(package_room_bytes)} of the job's own files"
            raise InputError(
                f"{paths[-1]} has {size_text(paths[-1].file.size_bytes)}; {reason}, and what answers at "
                f"{cluster.name!r} is a plain Ray cluster without agents that could take it",
                hint="Copy it to the same place on every node and give that absolute path, or a model on the Hub, or "
                "use a cluster that cloudrl has started",
            )
    return chosen


def _upload(local: LocalPath, cluster: ClusterFacts, files: LocalFiles, by_agents: bool) -> Upload:
    entries, name = local.file.entries, local.file.path.name
    if not entries:
        raise InputError(f"{local} is an empty folder")
    try:
        parts = tuple(Part(entry.name, entry.size_bytes, files.digest(entry.path)) for entry in entries)
        manifest = Manifest.from_json(Manifest(parts).to_json())
    except ValueError as failure:
        raise InputError(f"{local} cannot be sent: {failure}") from failure
    folder = f"{cluster.files_dir}/{manifest.address}" if by_agents else f"{PACKAGE_FOLDER}/{manifest.address[:8]}"
    return Upload(local.text, f"{folder}/{name}", manifest, entries)


def _package(files: LocalFiles, uploads: tuple[Upload, ...]) -> PackagePlan | None:
    """In an order that depends on nothing but content and names."""
    folder = files.working_dir
    added = sorted((entry for item in uploads for entry in item.packed), key=lambda packed: packed.name)
    if folder is None and not added:
        return None
    entries = (*(folder.entries if folder is not None else ()), *added)
    digests = tuple(files.digest(entry.path) for entry in entries)
    children = folder.children if folder is not None else ()
    excluded = tuple(sorted(name for name in EXCLUDED_FOLDERS if f"{name}/" in children))
    return PackagePlan(entries, digests, excluded)


def _rewrite(
    overrides: Mapping[str, str], paths: Iterable[LocalPath], places: Mapping[Path, str]
) -> dict[str, HydraText]:
    moved = {(path.key, path.text): places[path.file.path] for path in paths}
    rewritten = {}
    for key in dict.fromkeys(key for key, _ in moved):
        texts = [moved.get((key, text), text) for text in items(overrides[key])]
        rewritten[key] = hydra_text(texts if overrides[key].strip().startswith("[") else texts[0])
    return rewritten


def check_code(file: LocalFile, name: str | None, *, option: str, is_in_root: bool = False) -> None:
    """Refuse a file that verl could not load on the nodes.

    verl executes the file by its path (verl 0.9.1, utils/import_utils.py: load_module): its folder is not on
    `sys.path`, and a relative import has no package to start from. On the nodes the working directory is on it.

    Args:
        file: The file.
        name: What has to be defined in it; None when verl asks for nothing.
        option: The option or override, for the message.
        is_in_root: Whether it is in the root of the working directory that is sent along.

    Raises:
        InputError: It is not Python, does not define `name`, or imports a file that does not come along.
    """
    tree = _parsed(file, option)
    if name is not None:
        _check_defined(tree, name, file.path, option)
    if not is_in_root:
        _check_imports(tree, file, option)


def _parsed(file: LocalFile, option: str) -> ast.Module:
    try:
        return ast.parse(file.source, filename=str(file.path))
    except SyntaxError as failure:
        where = f"line {failure.lineno}: {failure.msg}"
        compile_it = f"python3 -m py_compile {shlex.quote(str(file.path))}"
        raise InputError(f"{option}: {file.path} is not Python: {where}", hint=compile_it) from failure
    except ValueError as failure:
        raise InputError(f"{option}: {file.path} cannot be read: {failure}") from failure


def _check_defined(tree: ast.Module, name: str, path: Path, option: str) -> None:
    defined = list(dict.fromkeys(_defined(tree.body)))
    if name in defined or "*" in defined:
        return
    functions = [node.name for node in tree.body if isinstance(node, _FUNCTIONS)]
    has = ", ".join(functions) or "none"
    raise InputError(
        f"{option}: {path.name} defines no {name!r}{did_you_mean(name, defined)} (its functions: {has})",
        hint=f"Name the function for verl to call: {path.name}:{functions[0]}"
        if functions
        else f"Write one: def {name}(data_source, solution_str, ground_truth, extra_info=None):",
    )


_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def _defined(body: list[ast.stmt]) -> Iterator[str]:
    """Names that a module has after its top level ran, as far as reading can tell."""
    for node in body:
        if isinstance(node, (*_FUNCTIONS, ast.ClassDef)):
            yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((name.asname or name.name).split(".")[0] for name in node.names)
        elif isinstance(node, (ast.Assign, ast.AnnAssign)):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            yield from (node.id for target in targets for node in ast.walk(target) if isinstance(node, ast.Name))
        else:
            for inner in ("body", "orelse", "finalbody"):
                yield from _defined(getattr(node, inner, []))
            for handler in getattr(node, "handlers", []):
                yield from _defined(handler.body)


def _check_imports(tree: ast.Module, file: LocalFile, option: str) -> None:
    path, beside = file.path, file.modules_beside
    folder = f"--working-dir {shlex.quote(str(path.parent))}"
    for module, dots in _imported(tree):
        top = module.split(".")[0]
        if dots or (top in beside - _NEVER_BESIDE - {path.stem}):
            written = f"{'.' * dots}{module}"
            raise InputError(
                f"{option}: {path.name} imports {written!r}, which is beside it and is not sent with it",
                hint=f"Send its folder with it: {folder}"
                if not dots
                else f"verl loads a single file. Write `import {top or 'module'}` in it, and send its folder: {folder}",
            )


def _imported(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((name.name, 0) for name in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield node.module or "", node.level
