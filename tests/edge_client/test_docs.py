import re
import time
from collections.abc import Awaitable, Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from fedlens_edge_client import EdgeClient, Policy
from fedlens_edge_client.client import client as client_module
from fedlens_export.signing import Terms, new_key, private_key, stated
from fedlens_proto.manifest import Bundle
from tests.edge_client.fakes import TOKEN, FakeServer, fedavg_plan
from tests.edge_client.linear import LinearChildren
from tests.edge_client.photo_folders import add_photos

PAGE = (Path(__file__).parents[2] / "docs" / "edge-client.md").read_text()


@pytest.mark.usefixtures("photos")
async def test_the_example_of_the_page_takes_part_and_predicts(
    bundle: Bundle, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(client_module, "make_children", LinearChildren)
    add_photos(tmp_path / "new", "cat", 1)[0].rename(tmp_path / "holiday.jpg")
    new_key(tmp_path / "publisher")
    terms = Terms(name="example", audience=["org.example.camera"])
    statement = stated(bundle, private_key(tmp_path / "publisher.key"), terms, time.time())
    (example,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(example, "docs/edge-client.md", "exec"), names)
    take_part: Callable[[str, str], Awaitable[None]] = names["take_part"]

    async with FakeServer(bundle, fedavg_plan()) as server:
        server.statement = statement
        await take_part(server.url, TOKEN)

    assert list(server.updates) == [1]
    assert capsys.readouterr().out.splitlines()[-1].startswith("{'cat': 0.")


def test_every_public_method_and_every_policy_is_on_the_page() -> None:
    public = [name for name in vars(EdgeClient) if not name.startswith("_")]
    named = [*public, *(field.name for field in fields(Policy))]

    assert [name for name in named if f"`{name}" not in PAGE] == []
