"""Files that were sent with a job, in texts of the job: by the names that their owner knows."""

import re

from cloudrl.protocol.folders import USER_FILES

PACKAGE_FOLDER = "cloudrl_files"
"""Folder of a job's package, in which files of the command line are below the beginnings of their addresses."""
_MARKS = ("_ray_pkg_", PACKAGE_FOLDER, USER_FILES)
_SENT = re.compile(
    rf"(?<![\w/:.~-])(?:{PACKAGE_FOLDER}/[0-9a-f]{{8}}/|/[^\s\"']{{0,400}}?/"
    rf"(?:_ray_pkg_[0-9a-f]{{1,40}}/(?:{PACKAGE_FOLDER}/[0-9a-f]{{8}}/)?|{USER_FILES}/[0-9a-f]{{64}}/))"
)
"""In a job's package, as overrides name it; where Ray unpacks that (Ray 2.60, _private/runtime_env/packaging.py); and
where agents keep files, below their SHA-256."""


def by_own_names(text: str) -> str:
    """The same text with `./reward.py` in place of the path of a file that was sent, which is gone after the job."""
    is_there = any(name in text for name in _MARKS)  # this is quick, and logs have millions of lines
    return _SENT.sub("./", text) if is_there else text
