"""Three secrets from one key: the tokens of the agent's HTTP, of Ray, and of services that ask each other."""

import hashlib
import hmac
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Tokens:
    """Hex strings of 32 bytes each. Never printed: the fields are left out of `repr`."""

    agent: str = field(repr=False)
    ray: str = field(repr=False)
    peers: str = field(repr=False)

    @property
    def attempt_id(self) -> str:
        """Tells one start of a cluster from the next, which has another key; nothing can be learned from it."""
        return hashlib.sha256(self.agent.encode()).hexdigest()[:16]


def derive(key: bytes) -> Tokens:
    """All tokens of one key. Nodes and client derive them alike."""
    return Tokens(*(_hkdf(key, info).hex() for info in (b"cloudrl agent", b"cloudrl ray", b"cloudrl peers")))


def _hkdf(key: bytes, info: bytes) -> bytes:
    """HKDF-SHA256 (RFC 5869) for one block of 32 bytes, with the empty salt."""
    extracted = hmac.new(b"\0" * 32, key, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()
