"""Addresses of servers."""

import ipaddress


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches it."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
