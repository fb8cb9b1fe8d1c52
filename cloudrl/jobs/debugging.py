"""What a job is given so that `cloudrl debug` can reach it: variables, and the folder that readies its processes."""

from dataclasses import replace

from cloudrl.errors import InputError
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.local_files import LocalFiles
from cloudrl.options.job import SubmitOptions
from cloudrl.protocol.ranks import ranks_text
from cloudrl.protocol.stops import DEBUGPY, PDB

DEBUGPY_VERSION = "1.8.22"
"""The one that was tested; Ray 2.60 takes 1.8.0 and later."""
_INSTALL = f"pip install debugpy=={DEBUGPY_VERSION}"
NODES_PATH = "${CLOUDRL_DEBUGGER_PYTHONPATH}"
"""PYTHONPATH of a job that is debugged and has none of its own: that of the nodes, behind the debugger's folder."""
_IMAGES = {"container", "image_uri"}
"""Fields of a runtime environment with which Ray runs the driver in a container of its own (image_uri.py)."""
_HIDES_OURS = {"sitecustomize.py", "sitecustomize/__init__.py"}
_HINT = f"""\
As a line of `setup:` in the cluster's file, or when you start it: --setup '{_INSTALL}'
Here: {_INSTALL}
The legacy debugger needs nothing: --legacy-debugger"""


def sees_nodes_path(draft: JobDraft) -> bool:
    """Whether the job finds the modules that the agents lay onto its nodes' PYTHONPATH."""
    return draft.variables.get("PYTHONPATH", NODES_PATH) == NODES_PATH and not _IMAGES & {*draft.runtime_env}


def debugger_of(options: SubmitOptions) -> str | None:
    """Which debugger is asked for, if any; a post-mortem needs one.

    Raises:
        InputError: It is not valid.
    """
    if options.debug not in (None, DEBUGPY, PDB):
        raise InputError(f"debug={options.debug!r} is not a debugger", hint=f"One of: {DEBUGPY}, {PDB}")
    return options.debug or (DEBUGPY if options.post_mortem else None)


def set_debugger(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: the variables of a job that is debugged. See `cloudrl.node.stop_hook` for what acts on them.

    RAY_DEBUG is 0: Ray's own debuggers listen on the cluster address, without a password. `${...}` is expanded by Ray
    on each node, where the agent has set it.

    Raises:
        InputError: A debugger could not be reached there, a node has none installed, or the working directory hides it.
    """
    debugger, asked = debugger_of(draft.options), draft.variables
    if debugger is None:
        return draft
    _check_nodes(draft, debugger, is_expected=snapshot.is_expected)
    _check_files(snapshot.files)
    own_path = asked.get("PYTHONPATH")
    variables = {
        "RAY_DEDUP_LOGS": "0",  # of what several ranks say alike, Ray would show the first one's alone
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        **asked,
        "RAY_DEBUG": "0",
        "CLOUDRL_DEBUGGER": debugger,
        "CLOUDRL_DEBUGGER_JOB": draft.submission_id,
        "PYTHONPATH": f"${{CLOUDRL_DEBUGGER_DIR}}:{own_path}" if own_path else NODES_PATH,
    }
    if draft.options.post_mortem:
        # on Python 3.12 and later debugpy 1.8.22 shows a frame of its own in place of the one that failed
        variables = {"PYDEVD_USE_SYS_MONITORING": "0", **variables, "CLOUDRL_DEBUGGER_POST_MORTEM": "1"}
    notes = ["a stopped process waits for cloudrl debug, and its GPUs cost money meanwhile"]
    if snapshot.is_expected and debugger == DEBUGPY:
        notes.append(f"every node needs debugpy, for example by --setup '{_INSTALL}'")
    return replace(draft, variables=variables).noting(*notes)


def _check_nodes(draft: JobDraft, debugger: str, *, is_expected: bool) -> None:
    cluster = draft.cluster
    if is_expected:
        return
    if not cluster.has_agents:
        raise InputError(
            f"what answers at {cluster.name!r} is a plain Ray cluster: without cloudrl's agents no debugger is reached",
            hint="Ray's own way: https://docs.ray.io/en/latest/ray-observability/ray-distributed-debugger.html",
        )
    by_rank = list(enumerate(cluster.debuggers))
    unable = [rank for rank, debuggers in by_rank if not debuggers]  # Python's own is missing nowhere
    if unable:
        raise InputError(
            f"{ranks_text(unable, 'node')} of cluster {cluster.name!r}: an agent of a release without debuggers, or "
            "without a folder for them, of which its log has a warning",
            hint=f"Start the cluster anew: cloudrl down {cluster.name}\n"
            f"Then, with its options: cloudrl up {cluster.name}",
        )
    without = [rank for rank, debuggers in by_rank if debugger not in debuggers]
    if without:
        raise InputError(
            f"{ranks_text(without, 'node')} of cluster {cluster.name!r}: no {debugger} in the Python of jobs",
            hint=_HINT,
        )


def _check_files(files: LocalFiles) -> None:
    """Ray puts the working directory before all else on PYTHONPATH, and Python runs one `sitecustomize`."""
    sent = files.working_dir.entries if files.working_dir is not None else ()
    hiding = next((entry.name for entry in sent if entry.name in _HIDES_OURS), None)
    if hiding is not None:
        raise InputError(
            f"{hiding} in the working directory would run in place of the one that readies processes for a debugger",
            hint=f"Rename it, or leave it out: /{hiding} as a line of .rayignore",
        )
