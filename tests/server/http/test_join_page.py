"""The address of links to join: what a browser shows, and what Android reads there."""

import json
import re
from pathlib import Path

import pytest

from fedlens_server.config import load
from fedlens_server.http.join_page import ASSET_LINKS
from tests.server.http.running import ADMIN_TOKEN, Server, running

FINGERPRINTS = [":".join([pair] * 32) for pair in ("AB", "0F")]


async def test_a_browser_without_the_app_is_told_what_the_link_is_for_in_both_languages(server: Server) -> None:
    answer = await server.request("GET", f"{server.url}/join", Authorization="", Content_Type="")

    page = answer.body.decode()
    assert (answer.status, answer.headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    assert "<h1>An invitation</h1>" in page and '<div lang="de">\n<h1>Eine Einladung</h1>' in page


async def test_the_page_runs_nothing_asks_for_nothing_and_tells_no_other_site_of_itself(server: Server) -> None:
    answer = await server.request("GET", f"{server.url}/join", Authorization="")

    policy = answer.headers["Content-Security-Policy"].split("; ")
    assert policy[0] == "default-src 'none'" and not any(
        word in answer.headers["Content-Security-Policy"] for word in ("self", "unsafe")
    )
    assert [part.partition(" ")[0] for part in policy[1:]] == [
        "style-src",
        "form-action",
        "base-uri",
        "frame-ancestors",
    ]
    assert (answer.headers["Referrer-Policy"], answer.headers["X-Content-Type-Options"]) == ("no-referrer", "nosniff")
    assert re.findall(r"<script|<img|<link|<form|\bhref=|\bsrc=|\bon\w+=", answer.body.decode()) == []


@pytest.mark.parametrize("path", ["/join", ASSET_LINKS])
async def test_both_are_on_the_clients_address_alone_and_there_while_the_server_starts(
    server: Server, path: str
) -> None:
    operators = await server.request("GET", server.admin_url + path, Authorization=f"Bearer {ADMIN_TOKEN}")
    changing = await server.request("POST", server.url + path, Authorization="")
    server.service.stop_accepting()

    assert (operators.status, changing.status) == (404, 404)
    assert (await server.request("GET", server.url + path, Authorization="")).status == 200


async def test_no_app_opens_links_unless_the_config_names_it(server: Server) -> None:
    answer = await server.request("GET", server.url + ASSET_LINKS, Authorization="")

    assert answer.headers["Content-Type"].startswith("application/json")
    assert json.loads(answer.body) == []


async def test_apps_of_the_config_are_told_as_android_reads_them(tmp_path: Path) -> None:
    path = tmp_path / "fedlens.toml"
    apps = "".join(
        f'[[server.apps]]\npackage = "{package}"\ncertificates = {json.dumps(certificates)}\n'
        for package, certificates in (("org.example.app", FINGERPRINTS[:1]), ("org.example.two", FINGERPRINTS))
    )
    path.write_text(f'[admin]\ntoken_sha256 = "{"5" * 64}"\n{apps}')
    async with running(tmp_path, apps=load(path).server.apps) as server:
        answer = await server.request("GET", server.url + ASSET_LINKS, Authorization="")

    # As https://developers.google.com/digital-asset-links/v1/getting-started has it.
    assert json.loads(answer.body) == [
        {
            "relation": ["delegate_permission/common.handle_all_urls"],
            "target": {
                "namespace": "android_app",
                "package_name": package,
                "sha256_cert_fingerprints": certificates,
            },
        }
        for package, certificates in (("org.example.app", FINGERPRINTS[:1]), ("org.example.two", FINGERPRINTS))
    ]
