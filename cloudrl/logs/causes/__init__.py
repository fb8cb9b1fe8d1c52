"""Why a job failed: the first root cause over all nodes, from what Ray's state API and the logs have of it."""

from typing import TYPE_CHECKING

from cloudrl.lazy_names import lazy_names
from cloudrl.logs.causes.budget import Budget as Budget
from cloudrl.logs.causes.cause import Cause as Cause
from cloudrl.logs.causes.cause import Finding as Finding
from cloudrl.logs.causes.cause import Sighting as Sighting
from cloudrl.logs.causes.evidence import Evidence as Evidence
from cloudrl.logs.causes.evidence import LogTail as LogTail

if TYPE_CHECKING:  # the table of known failures is read only where a job has failed
    from cloudrl.logs.causes.finder import find_cause as find_cause
    from cloudrl.logs.causes.finder import search as search

__getattr__ = lazy_names(__name__, {"cloudrl.logs.causes.finder": ("find_cause", "search")})
