"""Whether a web page may have sent a request: what each server on loopback asks before it answers.

Any page that a user of the machine opens can make the browser send requests to 127.0.0.1, and a page whose name its
owner lets lead to 127.0.0.1 (DNS rebinding) can also read the answers. The first kind names its site in `Origin` or
`Sec-Fetch-Site`, the second its own name in `Host`.
"""

from __future__ import annotations

import ipaddress
from typing import Callable, Optional
from urllib.parse import urlsplit

from cloudrl.listening.heads import Refused

Headers = Callable[[str], Optional[str]]
"""Gives the value of a header, whatever the case of its name; None if it was not sent."""
_FROM_NO_OTHER_SITE = (None, "none", "same-origin")


def refuse_web_pages(headers: Headers, *, port: Optional[int] = None, may_open: bool = False) -> None:
    """Return for a request that a program of this machine has sent.

    Args:
        headers: Of the request.
        port: That `Host` has to name. None: any, as behind a tunnel that has another port.
        may_open: Whether a link on a page elsewhere may open this one. The page learns nothing by that.

    Raises:
        Refused: A page of another site may have sent it, or it was not meant for this machine.
    """
    host = headers("Host")
    if not is_loopback_host(host, port):
        raise Refused(403, f"this address is not served here: {(host or '')[:100]!r}; use 127.0.0.1 or localhost")
    refuse_other_sites(headers, may_open=may_open)


def refuse_other_sites(headers: Headers, *, may_open: bool = False) -> None:
    """The same for a server with other names than loopback's: it looks at the sending page only.

    Raises:
        Refused: A page of another site may have sent it.
    """
    origin, site = headers("Origin"), headers("Sec-Fetch-Site")
    is_foreign = site not in _FROM_NO_OTHER_SITE or origin not in (None, f"http://{headers('Host')}")
    if is_foreign and not (may_open and origin is None and headers("Sec-Fetch-Mode") == "navigate"):
        raise Refused(403, "web pages of other sites get nothing here")


def is_loopback_host(host: Optional[str], port: Optional[int] = None) -> bool:
    """Whether a header `Host` names this machine by an address or name that no other machine can own."""
    try:
        parts = urlsplit(f"//{host or ''}")
        name, named_port = parts.hostname or "", parts.port
    except ValueError:
        return False
    if parts.netloc != host or "@" in parts.netloc or (port is not None and named_port != port):
        return False
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"
