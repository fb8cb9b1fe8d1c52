"""Whether a model can call its tools as the job sets verl's tool agent up.

What is wrong here ends no run: verl makes text of it for the model, or cuts it off, and trains on.
"""

from collections.abc import Callable, Iterator, Mapping

from cloudrl.errors import InputError
from cloudrl.protocol.facts import ClusterFacts
from cloudrl.spec.hydra import integer
from cloudrl.spec.yaml_core import load_yaml_1_1
from cloudrl.verl.keys import NODES, RESPONSE_LENGTH, ROLLOUT, release_number

_LOOP, _WORKERS = f"{ROLLOUT}.agent.default_agent_loop", f"{ROLLOUT}.agent.num_workers"
_OWN_LOOPS = f"{ROLLOUT}.agent.agent_loop_config_path"
_FUNCTIONS, _CLASSES = f"{ROLLOUT}.multi_turn.function_tool_path", f"{ROLLOUT}.multi_turn.tool_config_path"
_FORMAT, _TURNS = f"{ROLLOUT}.multi_turn.format", f"{ROLLOUT}.multi_turn.max_assistant_turns"
_LENGTH, _SIDE = f"{ROLLOUT}.multi_turn.max_tool_response_length", f"{ROLLOUT}.multi_turn.tool_response_truncate_side"
_DEFAULTS = {_WORKERS: "8", _LENGTH: "256", RESPONSE_LENGTH: "512"}
"""Of verl 0.9.1 (trainer/config/rollout/rollout.yaml, data/legacy_data.yaml)."""
TOOL_FORMATS = ("hermes", "gpt-oss", "qwen3_coder", "glm", "seed", "minimax", "kimi", "deepseek_v4", "gemma4")
"""Parsers of calls, for `multi_turn.format` (verl 0.9.1, experimental/agent_loop/tool_parser.py). A file that is loaded
into the workers may register more."""

GONE_FORMATS = ("qwen", "llama3_json")
"""Formats of older examples and comments, for which verl 0.9.1 has no parser."""

TOOL_CLASSES = "verl.tools."
"""Begins the names of classes that verl had for search, MCP, code and gsm8k up to 0.7.1. #6126, #6300 and #6302 took
them out before 0.8; what is left there is for deriving one's own (verl 0.9.1, tools/base_tool.py)."""
TOOL_CLASSES_UNTIL = (0, 8)
"""The first release without them."""

_SEARCH = "cloudrl://tools/search.py"
_PASSAGES = 1000
"""Characters that three passages of 100 words do not fit into."""


def check_tool_agent(values: Mapping[str, str], cluster: ClusterFacts, read_file: Callable[[str], bytes]) -> list[str]:
    """What the user should know of a job whose model calls tools; nothing of any other.

    Args:
        values: Bare key -> value of all overrides, paths as the user wrote them.
        cluster: Where the job goes, with the release of verl that is going to run there.
        read_file: Gives the content of a file of this machine; nothing for any other path.

    Raises:
        InputError: No call can work, or what it finds would not reach the model.
    """
    paths = {key: values[key] for key in (_FUNCTIONS, _CLASSES) if values.get(key, "null") != "null"}
    if not paths and values.get(_LOOP) != "tool_agent":
        return []
    if not paths and _OWN_LOOPS not in values:
        raise InputError(
            f"{_LOOP}=tool_agent has no tools: whatever the model calls is unknown",
            hint=f"To search: {_FUNCTIONS}=cloudrl://tools/search.py\nA file of your own: {_FUNCTIONS}=./tools.py",
        )
    release = release_number(cluster.verl_version)
    _check_format(values, release)
    if integer(values.get(_TURNS)) == 1:
        raise InputError(
            f"{_TURNS}=1: verl executes no call of the last turn, so no tool is ever used",
            hint=f"One more than calls: {_TURNS}=5",
        )
    classes = _classes(read_file, paths[_CLASSES]) if _CLASSES in paths else []
    if release >= TOOL_CLASSES_UNTIL:
        _check_classes(paths.get(_CLASSES), classes)
    notes = []
    if _FUNCTIONS in paths and _LOOP not in values and _OWN_LOOPS not in values:
        notes.append(
            f"{_FUNCTIONS}={paths[_FUNCTIONS]} is used only with {_LOOP}=tool_agent, or where rows of the "
            "data name their agent"
        )
    if paths.get(_FUNCTIONS) == _SEARCH or any(
        name.startswith(TOOL_CLASSES) and "search" in name.lower() for name in classes
    ):
        _check_length(values)
        notes += _idle_servers(values, cluster.gpu_nodes)
    return notes


def _check_format(values: Mapping[str, str], release: tuple[int, ...]) -> None:
    if values.get(_FORMAT) in GONE_FORMATS and release >= (0, 9):
        raise InputError(
            f"{_FORMAT}={values[_FORMAT]}: verl has no such parser of calls any more",
            hint=f"For Qwen 2.5 and 3: {_FORMAT}=hermes\nAll: {', '.join(TOOL_FORMATS)}",
        )


def _classes(read_file: Callable[[str], bytes], path: str) -> list[str]:
    """That a file of this machine names."""
    try:
        declared = load_yaml_1_1(read_file(path).decode(), path)
        return [str(each["class_name"]) for each in declared["tools"]]
    except (InputError, ValueError, LookupError, TypeError):
        return []  # not here, or not in this form, which verl will say


def _check_classes(path: str | None, names: list[str]) -> None:
    gone = next((name for name in names if name.startswith(TOOL_CLASSES)), None)
    if gone is not None:
        raise InputError(
            f"{_CLASSES}={path} names {gone}, which verl has no more since 0.8",
            hint=f"Search without it: {_FUNCTIONS}=cloudrl://tools/search.py ~{_CLASSES}",
        )


def _check_length(values: Mapping[str, str]) -> None:
    length, room = (integer(values.get(key, _DEFAULTS[key])) for key in (_LENGTH, RESPONSE_LENGTH))
    if length is not None and room is not None and length < min(_PASSAGES, room):
        note = "" if _LENGTH in values else ", verl's default,"
        raise InputError(
            f"{_LENGTH}={length}{note} counts characters, not tokens: verl cuts up the passages that a search finds",
            hint=f"For three passages of 100 words: {_LENGTH}=2400 {_SIDE}=right",
        )


def _idle_servers(values: Mapping[str, str], nodes: int) -> Iterator[str]:
    nodes = integer(values.get(NODES)) or nodes
    workers = integer(values.get(_WORKERS, _DEFAULTS[_WORKERS]))
    if workers is not None and workers < nodes:
        yield (
            f"{_WORKERS}={workers} asks the retrieval servers of {workers} of {nodes} nodes alone; "
            f"all are asked with {_WORKERS}={nodes}"
        )
