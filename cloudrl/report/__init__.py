"""What a run has done, as a page that needs no network and as numbers. Pure, but for the server of `--serve`."""

from cloudrl.report.model import Report as Report
from cloudrl.report.model import RunReport as RunReport
from cloudrl.report.model import Sample as Sample
from cloudrl.report.model import StepAnswers as StepAnswers
from cloudrl.report.model import Table as Table
