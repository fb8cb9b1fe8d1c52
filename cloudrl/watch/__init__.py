"""Events of a job as text: what a person or a program reads of it."""

from cloudrl.watch.text import as_fields as as_fields
from cloudrl.watch.text import describe as describe
from cloudrl.watch.text import duration as duration
