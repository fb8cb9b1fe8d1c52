"""Whether a model can call its tools as the job sets verl's tool agent up.

What is wrong here ends no run: verl makes text of it for the model, or cuts it off, and trains on.
"""

from collections.abc import Iterator, Mapping

from cloudrl.errors import InputError
from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.spec.hydra import integer
from cloudrl.spec.yaml_core import load_yaml_1_1
from cloudrl.verl.keys import release_number
from cloudrl.verl.tools import GONE_FORMATS, TOOL_CLASSES, TOOL_CLASSES_UNTIL, TOOL_FORMATS

_ROLLOUT = "actor_rollout_ref.rollout"
_LOOP, _WORKERS = f"{_ROLLOUT}.agent.default_agent_loop", f"{_ROLLOUT}.agent.num_workers"
_OWN_LOOPS = f"{_ROLLOUT}.agent.agent_loop_config_path"
_FUNCTIONS, _CLASSES = f"{_ROLLOUT}.multi_turn.function_tool_path", f"{_ROLLOUT}.multi_turn.tool_config_path"
_FORMAT, _TURNS = f"{_ROLLOUT}.multi_turn.format", f"{_ROLLOUT}.multi_turn.max_assistant_turns"
_LENGTH, _SIDE = f"{_ROLLOUT}.multi_turn.max_tool_response_length", f"{_ROLLOUT}.multi_turn.tool_response_truncate_side"
_RESPONSE = "data.max_response_length"
_DEFAULTS = {_WORKERS: "8", _LENGTH: "256", _RESPONSE: "512"}
"""Of verl 0.9.1 (trainer/config/rollout/rollout.yaml, data/legacy_data.yaml)."""
_SEARCH = "cloudrl://tools/search.py"
_PASSAGES = 1000
"""Characters that three passages of 100 words do not fit into."""


def check_tool_agent(draft: JobDraft, snapshot: Snapshot) -> list[str]:
    """What the user should know of a job whose model calls tools; nothing of any other.

    Raises:
        InputError: No call can work, or what it finds would not reach the model.
    """
    values = draft.values
    paths = {key: values[key] for key in (_FUNCTIONS, _CLASSES) if values.get(key, "null") != "null"}
    if not paths and values.get(_LOOP) != "tool_agent":
        return []
    if not paths and _OWN_LOOPS not in values:
        raise InputError(
            f"{_LOOP}=tool_agent has no tools: whatever the model calls is unknown",
            hint=f"{_FUNCTIONS}=cloudrl://tools/search.py, or a file of your own: ./tools.py",
        )
    release = release_number(draft.cluster.verl_version)
    _check_format(values, release)
    if integer(values.get(_TURNS)) == 1:
        raise InputError(
            f"{_TURNS}=1: verl executes no call of the last turn, so no tool is ever used",
            hint=f"One more than calls: {_TURNS}=5",
        )
    sent = {upload.to: upload.text for upload in draft.uploads}
    typed = {key: sent.get(path, path) for key, path in paths.items()}
    classes = _classes(snapshot, typed[_CLASSES]) if _CLASSES in typed else []
    if release >= TOOL_CLASSES_UNTIL:
        _check_classes(typed.get(_CLASSES), classes)
    notes = []
    if _FUNCTIONS in typed and _LOOP not in values and _OWN_LOOPS not in values:
        notes.append(
            f"{_FUNCTIONS}={typed[_FUNCTIONS]} is used only with {_LOOP}=tool_agent, or where rows of the "
            "data name their agent"
        )
    if typed.get(_FUNCTIONS) == _SEARCH or any(
        name.startswith(TOOL_CLASSES) and "search" in name.lower() for name in classes
    ):
        _check_length(values)
        notes += _idle_servers(values, draft.cluster.nodes)
    return notes


def _check_format(values: Mapping[str, str], release: tuple[int, ...]) -> None:
    if values.get(_FORMAT) in GONE_FORMATS and release >= (0, 9):
        raise InputError(
            f"{_FORMAT}={values[_FORMAT]}: verl has no such parser of calls any more",
            hint=f"For Qwen 2.5 and 3 it is {_FORMAT}=hermes; others: {', '.join(TOOL_FORMATS)}",
        )


def _classes(snapshot: Snapshot, path: str) -> list[str]:
    """That a file of this machine names."""
    try:
        declared = load_yaml_1_1(snapshot.files.at(path).source.decode(), path)
        return [str(each["class_name"]) for each in declared["tools"]]
    except (InputError, ValueError, LookupError, TypeError):
        return []  # not here, or not in this form, which verl will say


def _check_classes(path: str | None, names: list[str]) -> None:
    gone = next((name for name in names if name.startswith(TOOL_CLASSES)), None)
    if gone is not None:
        raise InputError(
            f"{_CLASSES}={path} names {gone}, which verl has no more since 0.8",
            hint=f"Search without it: {_FUNCTIONS}=cloudrl://tools/search.py, and ~{_CLASSES}",
        )


def _check_length(values: Mapping[str, str]) -> None:
    length, room = (integer(values.get(key, _DEFAULTS[key])) for key in (_LENGTH, _RESPONSE))
    if length is not None and room is not None and length < min(_PASSAGES, room):
        said = "" if _LENGTH in values else ", verl's default,"
        raise InputError(
            f"{_LENGTH}={length}{said} counts characters, not tokens: verl cuts up the passages that a search finds",
            hint=f"For three passages of 100 words: {_LENGTH}=2400 {_SIDE}=right",
        )


def _idle_servers(values: Mapping[str, str], nodes: int) -> Iterator[str]:
    nodes = integer(values.get("trainer.nnodes")) or nodes
    workers = integer(values.get(_WORKERS, _DEFAULTS[_WORKERS]))
    if workers is not None and workers < nodes:
        yield (
            f"{_WORKERS}={workers} asks the retrieval servers of {workers} of {nodes} nodes alone; "
            f"all are asked with {_WORKERS}={nodes}"
        )
