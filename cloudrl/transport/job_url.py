"""The URL of a job: one word that names a job and its cluster, made and read here."""

import re
from urllib.parse import urlsplit

from cloudrl.errors import without_login

JOB_URL = re.compile(r"ray(?P<secure>\+https)?://(?P<place>.+)/(?P<id>[^/]+)")


def job_url(submission_id: str, ray_url: str, cluster: str | None = None) -> str:
    """`ray://cluster/submission_id`, or `ray://host:port/submission_id` for a plain Ray cluster.

    A cluster of ours is named: the local port that leads to it today is another one tomorrow.

    Args:
        submission_id: Ray's id of the job.
        ray_url: the address of its dashboard.
        cluster: the cluster's name; None for a plain Ray cluster.
    """
    if cluster is not None:
        return f"ray://{cluster}/{submission_id}"
    at = urlsplit(without_login(ray_url))
    secure = "+https" if at.scheme == "https" else ""
    return f"ray{secure}://{at.netloc}{at.path.rstrip('/')}/{submission_id}"
