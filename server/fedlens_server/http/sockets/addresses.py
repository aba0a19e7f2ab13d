"""Addresses of clients, also behind proxies, as the log shows them and limits count them."""

import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

from fedlens_server.sections import Network, ServerSection

FORWARDED_FOR = "X-Forwarded-For"
LOOPBACK = (IPv4Network("127.0.0.0/8"), IPv6Network("::1/128"))
_ANY = (IPv4Network("0.0.0.0/0"), IPv6Network("::/0"))
# Some proxies append the port, too: "192.0.2.1:4711", "[2001:db8::1]:4711".
_PORT = re.compile(r"^(?:([\d.]+)|\[(.*)\]):\d+$")
# What one subscriber of IPv6 has at least.
_SUBSCRIBER_BITS = 64


class Addresses:
    """The addresses of those who send requests, as far as a server can know them."""

    def __init__(self, trusted: Sequence[Network] = (), unlimited: Sequence[Network] = LOOPBACK) -> None:
        """Believe the headers of `trusted` proxies; limits by address hold neither for those nor for `unlimited`."""
        self._trusted = trusted
        self._unlimited = (*trusted, *unlimited)

    @classmethod
    def of(cls, server: ServerSection) -> "Addresses":
        """As a config has it; behind a proxy that is not trusted, all clients share one address, so none is limited."""
        is_hidden = server.behind_proxy and not server.trusted_proxies and server.socket is None
        return cls(server.trusted_proxies, _ANY if is_hidden else LOOPBACK)

    def of_request(self, peer: str | None, forwarded_for: Iterable[str] = ()) -> str:
        """The address of the client that sent a request; empty if nobody who is trusted knows it.

        Args:
            peer: The other end of the connection; empty for a Unix socket, on which there is always a proxy; None if
                the connection is closed.
            forwarded_for: The values of `X-Forwarded-For`, to which each proxy on the way appends whom it speaks to.
        """
        if peer is None:
            return ""
        nearest = _parsed(peer)  # None for a Unix socket, whose other end may also have a path
        if nearest is not None and not self._is_trusted(nearest):
            return peer
        for name in reversed(",".join(forwarded_for).split(",")):
            named = _parsed(_PORT.sub(r"\1\2", name.strip()))
            if named is None:
                break
            nearest = named
            if not self._is_trusted(named):
                break
        return str(nearest or "")

    def limited(self, address: str) -> str:
        """The address, or IPv6 network, that limits count for this address; empty: they do not hold for it."""
        parsed = _parsed(address)
        if parsed is None or any(parsed in network for network in self._unlimited):
            return ""
        if isinstance(parsed, IPv6Address):
            return str(IPv6Network((int(parsed), _SUBSCRIBER_BITS), strict=False))
        return str(parsed)

    def _is_trusted(self, address: IPv4Address | IPv6Address) -> bool:
        return any(address in network for network in self._trusted)


# A connection's requests have the same ones.
@lru_cache(maxsize=4096)
def _parsed(text: str) -> IPv4Address | IPv6Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found
