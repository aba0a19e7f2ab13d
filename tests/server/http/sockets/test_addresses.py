"""The client's address behind proxies, and whom the limits by address count."""

from ipaddress import ip_network

import pytest

from fedlens_server.http.sockets.addresses import Addresses
from fedlens_server.sections import ServerSection

PROXIES = Addresses(trusted=[ip_network("10.0.0.0/8"), ip_network("2001:db8::1")])


@pytest.mark.parametrize(
    ("peer", "forwarded_for", "address"),
    [
        ("203.0.113.7", [], "203.0.113.7"),
        ("203.0.113.7", ["198.51.100.1"], "203.0.113.7"),  # no proxy, whatever it says
        ("10.0.0.1", [], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", ["198.51.100.1, 203.0.113.7"], "203.0.113.7"),  # what stands before it, the client itself sent
        ("10.0.0.1", ["198.51.100.1", "203.0.113.7"], "203.0.113.7"),
        ("10.0.0.1", ["203.0.113.7,10.9.9.9 , 10.8.8.8"], "203.0.113.7"),  # two more proxies
        ("10.0.0.1", ["10.2.2.2, 10.3.3.3"], "10.2.2.2"),  # a client in the proxies' network
        ("10.0.0.1", ["203.0.113.7, unknown"], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7, evil\nline, 10.3.3.3"], "10.3.3.3"),
        ("10.0.0.1", [""], "10.0.0.1"),
        ("10.0.0.1", ["203.0.113.7:4711, [2001:db8::1]:80"], "203.0.113.7"),  # with ports
        ("10.0.0.1", ["203.0.113.7, 10.3.3.3:x"], "10.0.0.1"),
        ("10.0.0.1", ["::ffff:203.0.113.7"], "203.0.113.7"),
        ("2001:db8::1", ["2001:db8::2"], "2001:db8::2"),
        ("2001:db8::2", ["203.0.113.7"], "2001:db8::2"),
        ("", ["203.0.113.7"], "203.0.113.7"),  # a Unix socket
        ("/run/nginx/own.sock", ["203.0.113.7"], "203.0.113.7"),
        ("/run/nginx/own.sock", [], ""),
        (None, ["203.0.113.7"], ""),
    ],
)
def test_the_clients_address_is_the_last_one_that_is_no_trusted_proxys(
    peer: str | None, forwarded_for: list[str], address: str
) -> None:
    assert PROXIES.of_request(peer, forwarded_for) == address


@pytest.mark.parametrize(
    ("address", "counted"),
    [
        ("203.0.113.7", "203.0.113.7"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("127.0.0.5", ""),
        ("::1", ""),
        ("10.0.0.1", ""),
        ("", ""),
    ],
)
def test_limits_hold_for_an_address_or_a_subscribers_network_but_not_for_this_machine_and_proxies(
    address: str, counted: str
) -> None:
    assert PROXIES.limited(address) == counted


def test_behind_a_proxy_that_is_not_trusted_no_address_is_limited() -> None:
    hidden = Addresses.of(section(behind_proxy=True))
    known = Addresses.of(section(behind_proxy=True, trusted_proxies=["10.0.0.1"]))
    through_a_socket = Addresses.of(section(behind_proxy=True, socket="server.sock"))

    counted = [addresses.limited("203.0.113.7") for addresses in (hidden, known, through_a_socket)]

    assert counted == ["", "203.0.113.7", "203.0.113.7"]


def section(**values: object) -> ServerSection:
    return ServerSection.model_validate(values)
