"""Trackers such as Weights & Biases: a run that resumes is one curve there, and runs of a group are one group."""

import re
from dataclasses import replace

from cloudrl.jobs.draft import JobDraft, Snapshot
from cloudrl.verl import keys
from cloudrl.verl.loggers import variables_of_files, variables_of_group, variables_of_run


def loggers_of(draft: JobDraft) -> list[str]:
    """The names in `trainer.logger`."""
    return re.findall(r"\w+", draft.values.get(keys.LOGGER, ""))


def continue_tracking(draft: JobDraft, _snapshot: Snapshot) -> JobDraft:
    """Pass: name the tracker's run after the run, unless the job starts anew whatever is saved; its group, its files.

    Variables that the job has already are never replaced.
    """
    values, group = draft.values, draft.options.group
    folder = values.get(keys.LOCAL_DIR, "").rstrip("/")
    resumes = values.get(keys.RESUME_MODE) in ("auto", "resume_path")
    variables: dict[str, str] = {}
    for logger in loggers_of(draft):
        variables |= variables_of_group(logger, group) if group else {}
        if resumes:
            variables |= variables_of_run(logger, draft.name)
        if folder:
            variables |= variables_of_files(logger, folder, draft.variables)
    return replace(draft, variables={**variables, **draft.variables})
