"""A recipe moved to another engine from the command line: `model_engine=megatron`."""

from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.spec.hydra import parse_overrides, split_key, unquoted
from cloudrl.verl.composition import has_engine, keys_of_engine
from cloudrl.verl.keys import MODEL_ENGINE

_SECTIONS = ("fsdp_config", "fsdp", "megatron", "veomni", "torchtitan")
"""Of an engine's own settings below a role."""


def change_engine(draft: JobDraft, _snapshot: Snapshot) -> JobDraft:
    """Pass: with another engine, leave out what the recipe sets for its own, or set it in the new engine's section.

    What the user has typed stays as it is; a recipe that names its engine itself is left alone.
    """
    engine = unquoted(str(draft.options.overrides.get(MODEL_ENGINE, "")))
    release = draft.cluster.verl_version
    if not engine or release is None or not has_engine(release, engine):
        return draft
    here = keys_of_engine(release, engine)
    typed = parse_overrides({key: str(value) for key, value in draft.overrides.items()})
    deleted = {split_key(key)[1] for key in draft.overrides if key.startswith("~")}
    gone, moved = list[str](), dict[str, str]()
    for key, text in draft.job.overrides.items():
        bare = split_key(key)[1]
        if bare == MODEL_ENGINE or bare in typed or bare in deleted:
            continue
        if bare.endswith(".strategy") and bare in here:
            gone.append(bare)
        elif bare not in here and (_is_engines(bare) or bare in keys_of_engine(release, "dp")):
            gone.append(bare)
            new = _in_new_section(bare, here)
            if new is not None and new not in typed:
                moved[new] = text
    if not gone:
        return draft
    instead = f"; in their place: {', '.join(f'{key}={text}' for key, text in moved.items())}" if moved else ""
    note = f"{MODEL_ENGINE}={engine} leaves out what recipe {draft.job.name!r} sets for {', '.join(gone)}{instead}"
    draft = draft.without(*gone).noting(note)
    return draft.overriding({**moved, **draft.overrides})


def _is_engines(key: str) -> bool:
    return any(section in key.split(".") for section in _SECTIONS)


def _in_new_section(key: str, here: frozenset[str]) -> str | None:
    """The key of that name in the section of the same role that the new engine has."""
    names = key.split(".")
    at = next((index for index, name in enumerate(names) if name in _SECTIONS), None)
    if at is None:
        return None
    places = (".".join([*names[:at], section, *names[at + 1 :]]) for section in _SECTIONS)
    return next((place for place in places if place in here), None)
