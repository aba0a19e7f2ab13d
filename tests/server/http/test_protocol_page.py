"""`docs/protocol.md` names every endpoint and every code, and no other."""

import re
from pathlib import Path

from fedlens_proto.v1 import error_pb2
from fedlens_server import errors
from fedlens_server.http import client_routes, join_page, operator_routes
from fedlens_server.http.bodies import MAX_BODY_BYTES

PAGE = (Path(__file__).parents[3] / "docs/protocol.md").read_text()


def _answers(root: type[errors.ServerError] = errors.ServerError) -> list[type[errors.ServerError]]:
    """Every error with a code of its own that a client may see."""
    found = [kind for child in root.__subclasses__() for kind in _answers(child)]
    return [root, *found] if "code" in vars(root) and root is not errors.StoreUnusable else found


def test_every_route_is_documented_and_no_other() -> None:
    documented = set(re.findall(r"^\| `([A-Z]+) (/\S+)` \|", PAGE, re.M))

    served = {
        (route.method, re.sub(r"\{(\w+):[^}]*\}+", r"{\1}", route.path))
        for route in (*client_routes.routes(), *join_page.routes(), *operator_routes.routes())
    }
    assert documented == served | {("GET", "/healthz"), ("GET", "/readyz")}


def test_every_code_is_documented_with_its_one_status_and_retry() -> None:
    documented = set(re.findall(r"^\| `([a-z-]+)` \| (\d+) \| (\w+) \|", PAGE, re.M))

    defined = {
        (kind.code, str(kind.status.value), error_pb2.Retry.Name(kind.retry).removeprefix("RETRY_").lower())
        for kind in _answers()
    }
    assert documented == defined
    assert len(_answers()) == len({kind.code for kind in _answers()})


def test_the_byte_limits_are_documented() -> None:
    kib = {
        "4 KiB": "enrol",
        "1 KiB": "check-in",
        "16 KiB": "failure",
        "8 MiB": "create-task",
        "4 + 64 KiB": "evaluation",
    }
    sizes = {"KiB": 1024, "MiB": 1024**2}

    for text, endpoint in kib.items():
        *extra, number, unit = text.replace("+", "").split()
        assert MAX_BODY_BYTES[endpoint] == sum(map(int, extra)) + int(number) * sizes[unit]
        assert text in PAGE
