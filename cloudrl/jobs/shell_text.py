"""Text that only a shell understands, left in a recipe or an override: nothing expands it on the way to verl.

`${key}` and `${oc.env:NAME}` are OmegaConf's and stay. Real scripts that were copied have the rest (`$MODEL`,
`$((4096 * 4))`, a backslash at the end, a comment behind it, `2>&1 | tee log`, quotes within quotes); `cloudrl import`
runs a script instead of copying it.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.jobs.findings import Finding
from cloudrl.protocol.secret_names import is_secret, is_secret_override
from cloudrl.spec.hydra import hydra_text, override_argument, split_key, unquoted
from cloudrl.verl.composition import keys_of_engine
from cloudrl.verl.keys import EXPERIMENT, HOME_EXPANDED, LOCAL_DIR, PROJECT, kind_of

_CONTINUED = re.compile(r"\s*\\\s*(?:\n.*|#.*)?\Z", re.DOTALL)
_BEHIND = re.compile(r"\s+(?:2>&1|&>|[12]>|>>|\|\s*tee\b|&&\s|#\s).*\Z")
_COMMAND = re.compile(r"(?<!\\)\$\(\(?[^)]*\)*|`[^`\s]+[^`]*`")
_ARITHMETIC = re.compile(r"(?<!\\)\$\(\((?P<text>.*?)\)\)", re.DOTALL)
_OPERATORS: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: lambda left, right: left + right,
    ast.Sub: lambda left, right: left - right,
    ast.Mult: lambda left, right: left * right,
    ast.Div: lambda left, right: int(left / right),  # towards zero, as in C
    ast.Mod: lambda left, right: left - right * int(left / right),
}
_PLAIN = re.compile(r"(?<!\\)\$(?:(?P<bare>[A-Za-z_]\w*)|\{(?P<name>[A-Za-z_]\w*)\})")
_EXPANSION = re.compile(
    r"(?<!\\)\$\{(?P<name>[A-Za-z_]\w*)(?:(?P<usual>:?-)(?P<default>[^}$]*)|(?::?[=+?]|[#%/^,])[^}]*)\}"
)
_TWICE_QUOTED = re.compile(r"""(['"])(?P<inside>[^'"]*)\1""")
_FREE_TEXT = re.compile(r"(^|[._])(template|prompt)s?\b")
"""Keys whose values are for a model or for Jinja, and may hold anything."""
_UNQUOTED = re.compile(r"[\w./:+\-\[\],$=@%~]+")
_TEXTS = (PROJECT, EXPERIMENT, LOCAL_DIR)
"""What `oc.env` gives is text, also where verl needs a number; these take text, and so do paths."""
_HOME = re.compile(r"\$(?:HOME|\{HOME\})/")


@dataclass(frozen=True)
class Leftover:
    """What a value has of a shell.

    Attributes:
        why: half a sentence.
        value: the text that is meant; None if only the user knows.
        names: of the variables in it.
        reference: the value with those in OmegaConf's words.
    """

    why: str
    value: str | None = None
    names: tuple[str, ...] = ()
    reference: str = ""


def check_shell_text(draft: JobDraft, snapshot: Snapshot) -> JobDraft:
    """Pass: name what a shell would have expanded. Such a key counts as not set, so that it is reported once."""
    typed = {split_key(key)[1] for key in draft.overrides}
    release, arguments = draft.cluster.verl_version, draft.asked.overrides
    own = {split_key(key)[1].partition(".")[0] for key in arguments}
    found = dict[str, Finding]()
    for key, text in arguments.items():
        bare = split_key(key)[1]
        if key.startswith("~") or "." not in bare or _FREE_TEXT.search(bare):  # verl has sections only at the top
            continue
        left = leftover(bare, str(text), lambda name: name in own or _is_section(release, name), snapshot.shell)
        left = left or _home(bare, str(text), draft.cluster.checkpoint_dir)
        if left is not None:
            owner = "" if bare in typed else f"recipe {draft.job.name!r}"
            found[bare] = Finding(_sentence(bare, str(text), left), _hint(key, left), is_about_verl=True, owner=owner)
    if not found:
        return draft
    if draft.options.unchecked:
        return draft.warning(*(finding.sentence for finding in found.values()))
    others = {key: text for key, text in draft.overrides.items() if split_key(key)[1] not in found}
    draft = replace(draft.without(*found), overrides=others, unsettled=draft.unsettled | found.keys())
    return draft.refused(*found.values())


def leftover(key: str, text: str, has_section: Callable[[str], bool], shell: Mapping[str, str]) -> Leftover | None:
    """What a value has of a shell; None if nothing.

    Args:
        key: bare.
        text: as Hydra reads it.
        has_section: whether `${NAME}` is a part of the configuration.
        shell: the variables of this machine, for those whose values are wanted.
    """
    plain = unquoted(text)
    if (match := _CONTINUED.search(plain)) is not None:
        is_whole = "\n" not in match[0].strip()
        return Leftover(
            "a backslash at the end continues a line only in a shell", plain[: match.start()] if is_whole else None
        )
    if "\n" not in plain and (match := _BEHIND.search(plain)) is not None:
        return Leftover(f"{match[0].strip()!r} is for a shell", plain[: match.start()])
    if (match := _ARITHMETIC.search(plain)) is not None:
        result = _computed(plain, shell)
        return Leftover(f"{match[0]} is arithmetic of a shell, and no shell reads it here", result)
    if (match := _COMMAND.search(plain)) is not None:
        return Leftover(f"{match[0]} is a command of a shell, and no shell reads it here")
    if variables := tuple(_variables(plain, has_section)):
        return Leftover(
            f"{variables[0].text} is a variable of a shell, and no shell reads it here",
            _expanded(key, plain, variables, shell),
            tuple(dict.fromkeys(each.name for each in variables)),
            _replaced(plain, {each.text: f"${{oc.env:{each.name}}}" for each in variables}),
        )
    return _quotes(text, plain)


@dataclass(frozen=True)
class _Variable:
    """One that a value names: as it is written, its name, and what stands for it if it is not set."""

    text: str
    name: str
    default: str | None = None


def _variables(plain: str, has_section: Callable[[str], bool]) -> Iterator[_Variable]:
    for match in _PLAIN.finditer(plain):
        if match["bare"] is not None or not has_section(match["name"]):
            yield _Variable(match[0], match["bare"] or match["name"])
    for match in _EXPANSION.finditer(plain):
        yield _Variable(match[0], match["name"], match["default"])


def _expanded(key: str, plain: str, variables: Iterable[_Variable], shell: Mapping[str, str]) -> str | None:
    """The value with this machine's variables in it; None if one of them is not set here, or is a secret."""
    if _HOME.match(plain) and kind_of(key) is not None:  # verl reads it, so it is sent along
        plain = _HOME.sub("~/", plain, count=1)
    wanted = [each for each in variables if each.text in plain]
    values = {each.text: shell.get(each.name) or each.default for each in wanted}
    if None in values.values() or is_secret_override(key) or any(is_secret(each.name) for each in wanted):
        return None
    expanded = _replaced(plain, {text: value or "" for text, value in values.items()})
    return expanded if expanded.isprintable() else None


def _computed(plain: str, shell: Mapping[str, str]) -> str | None:
    """A text with the results of its arithmetic; None if that needs more than numbers and this machine's variables."""

    def result(match: re.Match[str]) -> str:
        names = re.sub(r"\$\{?([A-Za-z_]\w*)\}?", r"\1", match["text"])
        return str(_value(ast.parse(names.strip(), mode="eval").body, shell))

    try:
        text = _ARITHMETIC.sub(result, plain)
    except (SyntaxError, ValueError, ZeroDivisionError, OverflowError, RecursionError):
        return None
    return None if "$" in text or "`" in text else text


def _value(node: ast.expr, shell: Mapping[str, str]) -> int:
    """The number that a part of an expression means.

    Raises:
        ValueError: It is more than the four operations on whole numbers.
    """
    match node:
        case ast.Constant(value=int(number)) if type(number) is int:
            return number
        case ast.Name(id=name) if not is_secret(name):
            return int(shell.get(name, ""))
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            return -_value(operand, shell)
        case ast.BinOp(left=left, op=operator, right=right) if type(operator) in _OPERATORS:
            return _OPERATORS[type(operator)](_value(left, shell), _value(right, shell))
    raise ValueError(ast.dump(node))


def _replaced(plain: str, values: Mapping[str, str]) -> str:
    """A text with its variables in other words, each once."""
    return (
        re.sub("|".join(map(re.escape, sorted(values, key=len, reverse=True))), lambda found: values[found[0]], plain)
        if values
        else plain
    )


def _quotes(text: str, plain: str) -> Leftover | None:
    match = _TWICE_QUOTED.fullmatch(plain)
    if match is not None and plain != text.strip():
        return Leftover("its inner quotes are a part of the value", match["inside"])
    if plain == text.strip() and re.search(r"""\\["']""", plain):
        return Leftover("a backslash before a quote is for a shell", re.sub(r"""\\(["'])""", r"\1", plain))
    return None


def _home(key: str, text: str, checkpoint_dir: str) -> Leftover | None:
    plain = unquoted(text)
    if not plain.startswith("~/") or kind_of(key) is not None or key in (LOCAL_DIR, *HOME_EXPANDED):
        return None
    name = PurePosixPath(plain).name
    meant = f"{checkpoint_dir.rstrip('/')}/{name}" if checkpoint_dir and name != "~" else None
    return Leftover("verl does not expand ~ here, and makes a folder of that name", meant)


def _is_section(release: str | None, name: str) -> bool:
    """Whether a release has a section of that name; of one that is not known, names in capitals are no sections."""
    known = {key.partition(".")[0] for key in keys_of_engine(release, "dp")} if release is not None else set[str]()
    return name in known if known else not name.isupper()


def _sentence(key: str, text: str, left: Leftover) -> str:
    if is_secret_override(key):
        return f"{key}: its value has what only a shell would expand"
    shown = " ".join(text.split())
    return f"{key}: {left.why}" if len(shown) > 200 else f"{key}={shown}: {left.why}"


def _hint(key: str, left: Leftover) -> str:
    bare = split_key(key)[1]
    if is_secret_override(bare):
        return "Write the value itself."
    if left.value is not None and not left.value.strip():
        return f"~{bare}"
    if left.value is not None:
        value = left.value.strip()
        return shlex.quote(override_argument(key, value if _UNQUOTED.fullmatch(value) else _written(value)))
    if left.names and (kind_of(bare) is not None or bare in _TEXTS):
        variables = " ".join(f"--env {name}=VALUE" for name in left.names)
        reference = shlex.quote(f"{key}={left.reference}")
        return f"Write the value itself, or let the nodes look it up: {variables} {reference}"
    return "Write the value itself. A script is run, and its values taken, by: cloudrl import SCRIPT"


def _written(value: str) -> str:
    """A text that Hydra reads as it is, such as a list with quotes in it, or else with quotes around it."""
    return value if value[:1] in "[{" else hydra_text(value)
