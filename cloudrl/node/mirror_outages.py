"""Which errors of a mirror are outages, that pass by themselves, and which are mistakes that somebody has to mend."""

from __future__ import annotations

import errno
import http.client
import re
import socket
import ssl

from cloudrl.node.s3_calls import S3Error

_OF_NETWORK = {
    errno.EAGAIN, errno.EBUSY, errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.EHOSTDOWN,
    errno.EHOSTUNREACH, errno.EINTR, errno.EIO, errno.ENETDOWN, errno.ENETUNREACH, errno.ENOTCONN, errno.EPIPE,
    errno.EREMOTEIO, errno.ESTALE, errno.ETIMEDOUT,
}  # fmt: skip
"""Of connections, and of folders whose server is away: a soft mount of NFS fails with EIO or ETIMEDOUT, FUSE with
ENOTCONN."""
_WORDS = re.compile(
    r"\bUNAVAILABLE\b|DEADLINE_EXCEEDED|RESOURCE_EXHAUSTED|\b50[0234]\b|timed? ?out"
    r"|could(?: not|n't) (?:connect|resolve)|connection (?:refused|reset)",
    re.IGNORECASE,
)
"""Words of Google's status codes and libcurl's: pyarrow 25 has one class of error for all of them."""


def is_outage(error: BaseException) -> bool:
    """Whether the same call may work later without a change of the user's.

    A name that DNS says does not exist is a mistake (EAI_NONAME); a DNS server that does not answer is an outage.
    """
    if isinstance(error, S3Error):
        return error.may_pass
    cause = error.__cause__ or error  # `S3Calls` names the call in an error of its own
    if isinstance(cause, socket.gaierror):
        return cause.errno != socket.EAI_NONAME
    if isinstance(cause, ssl.SSLError):
        return not isinstance(cause, ssl.SSLCertVerificationError)
    if isinstance(cause, (http.client.HTTPException, socket.timeout)):  # Python 3.9: no TimeoutError
        return True
    if not isinstance(cause, OSError):
        return False
    return cause.errno in _OF_NETWORK if cause.errno is not None else bool(_WORDS.search(str(cause)))
