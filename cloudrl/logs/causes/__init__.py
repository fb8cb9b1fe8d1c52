"""Why a job failed: the first root cause over all nodes, from what Ray's state API and the logs have of it."""

from cloudrl.logs.causes.budget import Budget as Budget
from cloudrl.logs.causes.cause import Cause as Cause
from cloudrl.logs.causes.cause import Finding as Finding
from cloudrl.logs.causes.cause import Sighting as Sighting
from cloudrl.logs.causes.evidence import Evidence as Evidence
from cloudrl.logs.causes.evidence import LogTail as LogTail
