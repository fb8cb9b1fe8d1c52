"""Why a job failed: the first root cause over all nodes, from what Ray's state API and the logs have of it."""

from cloudrl.jobs.causes.budget import Budget as Budget
from cloudrl.jobs.causes.cause import Cause as Cause
from cloudrl.jobs.causes.cause import Finding as Finding
from cloudrl.jobs.causes.cause import Sighting as Sighting
from cloudrl.jobs.causes.evidence import Evidence as Evidence
from cloudrl.jobs.causes.evidence import LogTail as LogTail
from cloudrl.jobs.causes.finder import find_cause as find_cause
from cloudrl.jobs.causes.finder import search as search
