"""What pages show, and what their buttons do."""

import json
import re
from base64 import urlsafe_b64encode
from html import unescape
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import pytest
from markupsafe import escape

from fedlens_export.signing import new_key
from fedlens_proto.v1 import admin_pb2, admission_pb2
from fedlens_server.http.dashboard.actions import SUBJECTS
from fedlens_server.http.dashboard.pages import ROOT
from fedlens_server.init import initialise
from tests.server.bundles import tiny_bundle
from tests.server.http.dashboard.visitors import FORM, Visitor, logged_in, text_of
from tests.server.http.running import READ_TOKEN, Client, Server, until, update

ARRIVALS = {"selection": "arrivals", "population": None, "goal": 2, "canary": 0, "over_selection": 1.0}
# Of two classes, by true class and predicted one: of 1 photo and of 3.
CONFUSED = (
    {"label": "start", "count": 4, "correct": 1, "loss": 5.0, "confusion": [1, 0, 3, 0]},
    {"label": "trained", "count": 4, "correct": 3, "loss": 2.0, "confusion": [1, 0, 1, 2]},
)
HOSTILE = "<script>alert(1)</script>'\"&"


async def rounds(server: Server, count: int, **settings: object) -> list[Client]:
    """A task of arrivals of which two clients carry out rounds."""
    await server.create(tiny_bundle(), **{**ARRIVALS, "rounds": 100, "rest": 0, **settings})
    clients = [await server.client(index) for index in (1, 2)]
    told = {"evaluations": CONFUSED} if settings.get("confusion") else {}
    for _ in range(count):
        for client in clients:
            assignment = await client.assignment()
            assert (await client.upload(assignment, update(assignment, **told))).status == 200
    task = server.service.federation.tasks[1]
    await until(lambda: task.committed == count and task.round is not None)
    return clients


async def test_the_first_page_shows_the_server_and_every_task(server: Server) -> None:
    await rounds(server, 1)
    await server.create(tiny_bundle(), name="later", population=7)

    page = await (await logged_in(server)).page("/")

    words = text_of(page)
    assert "Server ready" in words and "Clients enrolled 2" in words
    assert "demo running 1 of 100 2: 0 of 2 reported 2" in words
    assert "later waiting 0 of 3 - 2 of 7" in words


async def test_a_task_shows_its_round_as_it_goes_with_who_is_awaited_and_for_how_long(server: Server) -> None:
    one, other = await rounds(server, 0, min_reports=2, deadline_s=7_000)
    await one.upload(await one.assignment())
    await other.assignment()
    operator = await logged_in(server)
    server.clock.wind(100)

    words = text_of(await operator.page("/tasks/demo/live"))

    assert "Round 1 train open 1 of 2 updates." in words
    assert "Members: 1&nbsp;pending 1&nbsp;reported" in words
    assert f"Awaited: 1 {other.id.hex()[:12]} 8 min left" in words  # of the 600 s that a member has
    # Of 7,000 s; to the hour it would be wrong by a twentieth.
    assert "Ends in 115 min at the latest if there are 2 by then ( min_reports ); else it waits for them." in words


async def test_a_task_names_the_canaries_that_others_wait_for(server: Server) -> None:
    await rounds(server, 0, canary=3)
    operator, bundle = await logged_in(server), server.service.federation.tasks[1].bundles[0]

    before = text_of(await operator.page("/tasks/1"))
    server.service.federation.tasks[1].reports.update({bundle.id: 3})
    after = text_of(await operator.page("/tasks/1"))

    assert f"canaries: other clients get places after 3 more reports with bundle {bundle.id.hex()[:12]}" in before
    assert "canaries" not in after


async def test_an_overdue_round_and_a_paused_task_say_so(server: Server) -> None:
    one, other = await rounds(server, 0, min_reports=2)
    await one.upload(await one.assignment())
    await other.assignment()
    operator = await logged_in(server)
    server.clock.wind(3_700)
    await operator.post("/tasks/1/pause")

    words, listed = text_of(await operator.page("/tasks/1")), text_of(await operator.page("/"))

    assert "overdue" in words and "Its deadline was 100 s ago; it ends once there are 2 ( min_reports )" in words
    assert "1 pending member has no time left" in words
    assert "paused" in words and "Paused: no places are given." in words
    assert "1: 1 of 2 reported overdue" in listed


async def test_a_task_whose_rounds_do_not_go_on_says_why(server: Server) -> None:
    await rounds(server, 1)
    operator, task = await logged_in(server), server.service.federation.tasks[1]

    task.fault = "there is no method"
    suspended = text_of(await operator.page("/tasks/1"))
    task.fault = ""
    await operator.post("/tasks/1/stop")
    ended = text_of(await operator.page("/tasks/1"))

    assert "there is no method" in suspended and "until the server starts with its method" in suspended
    assert "places are free" not in suspended
    assert "The task has ended No further round opens." in ended
    assert "can take part" not in ended and "Told to clients" not in ended


async def test_rounds_come_by_pages_the_latest_first(server: Server) -> None:
    await rounds(server, 25)
    operator = await logged_in(server)

    def numbers(page: str) -> list[int]:
        return [
            int(found) for found in re.findall(r'<tr>\s*<td class="number">(\d+)</td>\s*<td><span class="badge', page)
        ]

    first = await operator.page("/tasks/1")
    earlier = re.search(r'href="([^"]*before=\d+)', first)
    assert earlier is not None
    second = await operator.page(earlier[1].removeprefix(ROOT))

    assert numbers(first) == list(range(26, 6, -1))
    assert numbers(second) == list(range(6, 0, -1))
    assert "Latest rounds" in second and "Earlier rounds" not in second


async def test_the_chart_gets_accuracy_and_bytes_of_committed_rounds(server: Server) -> None:
    await rounds(server, 2)

    answer = await (await logged_in(server)).get("/tasks/1/history.json")

    values = json.loads(answer.body)
    assert values["round"] == [1, 2]
    assert values["start"] == [0.25, 0.25] and values["trained"] == [0.75, 0.75]  # `update`: 1 and 3 of 4
    assert values["accuracy"] == [None, None]
    assert values["received"][0] > 0


async def test_accuracy_by_class_is_that_of_the_latest_round_with_matrices(server: Server) -> None:
    await rounds(server, 2, confusion=True)

    words = text_of(await (await logged_in(server)).page("/tasks/1"))

    # Both clients have of the first class 1 photo, recognised, and of the second 3, of which 2 are.
    assert "class 0 100.0% 2 class 1 66.7% 6" in words


async def test_accuracy_by_class_is_not_that_of_a_round_that_was_undone(server: Server) -> None:
    await rounds(server, 2, confusion=True)
    operator = await logged_in(server)

    before = text_of(await operator.page("/tasks/1"))
    await operator.post("/tasks/1/rollback", value="1")
    after = text_of(await operator.page("/tasks/1"))

    assert "Accuracy by class round 2" in before
    assert "Accuracy by class round 1" in after


async def test_who_was_left_out_is_shown_with_the_reason_and_nothing_in_it_becomes_html(server: Server) -> None:
    (one, _) = await rounds(server, 0)
    await server.create(tiny_bundle(), name=HOSTILE, population=9)
    assignment = await one.assignment()
    await one.upload(assignment, update(assignment, num_examples=-1 % 2**64))
    operator = await logged_in(server)

    page, first = await operator.page("/tasks/1"), await operator.page("/")
    clients = [text_of(await operator.page(path)) for path in ("/clients", f"/clients/{one.id.hex()}")]
    await operator.post("/tasks/1/stop")
    later = [text_of(await operator.page(path)) for path in ("/clients", f"/clients/{one.id.hex()}")]

    assert f"1 {one.id.hex()[:12]} quarantined num_examples" in text_of(page)
    assert all("of demo for another 60 min" in words for words in clients)
    assert not any("for another" in words or "sits out" in words for words in later)
    assert "<script>alert" not in first and "&lt;script&gt;alert(1)&lt;/script&gt;" in first


@pytest.mark.parametrize(
    ("action", "value", "state", "reason"),
    [
        ("pause", "", admin_pb2.TASK_STATE_PAUSED, "by admin"),
        ("stop", "", admin_pb2.TASK_STATE_STOPPED, ""),
        ("rollback", "1", admin_pb2.TASK_STATE_RUNNING, ""),
    ],
)
async def test_a_button_asks_again_and_then_acts(
    server: Server, action: str, value: str, state: admin_pb2.TaskState, reason: str
) -> None:
    await rounds(server, 2)
    operator = await logged_in(server)

    page = await operator.page("/tasks/1")
    question = await operator.page(f"/tasks/1/{action}")
    untouched = (await server.show()).task
    done = await operator.post(f"/tasks/1/{action}", value=value)
    told = text_of(await operator.page("/tasks/1"))

    assert f'href="{ROOT}/tasks/1/{action}"' in page
    assert f'action="{ROOT}/tasks/1/{action}"' in question and f'href="{ROOT}/tasks/1">Cancel' in question
    assert (untouched.reason, untouched.rounds_committed) == ("", 2)
    assert (done.status, done.headers["Location"]) == (303, f"{ROOT}/tasks/1")
    task = (await server.show()).task
    assert (task.state, task.reason) == (state, reason)
    assert "demo. Done." in told and "demo. Done." not in text_of(await operator.page("/tasks/1"))


@pytest.mark.parametrize("kind", SUBJECTS)
async def test_the_page_that_asks_says_what_cannot_be_undone_and_only_where_that_is_so(
    server: Server, kind: str
) -> None:
    one, _ = await rounds(server, 1)
    subject = {"tasks": "1", "clients": one.id.hex(), "tokens": "trainers"}[kind]
    operator = await logged_in(server)

    asked = {name: text_of(await operator.page(f"/{kind}/{subject}/{name}")) for name in SUBJECTS[kind].actions}

    lasting = {
        name for name, words in asked.items() if "cannot be undone" in words or "cannot be brought back" in words
    }
    assert lasting == {name for name, action in SUBJECTS[kind].actions.items() if action.is_grave}
    # That the clients are banned can be undone.
    assert kind != "tokens" or "until it is unbanned. The token is revoked, which cannot be undone." in asked["ban"]


async def test_only_buttons_that_apply_are_shown(server: Server) -> None:
    await rounds(server, 2)
    operator = await logged_in(server)

    async def buttons() -> set[str]:
        return set(re.findall(rf'href="{ROOT}/tasks/1/([a-z]+)"', await operator.page("/tasks/1")))

    running = await buttons()
    await operator.post("/tasks/1/pause")
    paused = await buttons()
    await operator.post("/tasks/1/stop")
    ended = await buttons()

    assert running == {"pause", "deadline", "rollback", "stop"}
    assert paused == {"resume", "deadline", "rollback", "stop"}
    assert ended == {"delete"}


async def test_a_deleted_task_leads_back_to_the_list(server: Server) -> None:
    await server.create(tiny_bundle(), population=5)
    operator = await logged_in(server)
    await operator.post("/tasks/1/stop")

    done = await operator.post("/tasks/1/delete")

    assert done.headers["Location"] == f"{ROOT}/"
    assert (await operator.get("/tasks/1")).status == 404


async def test_an_action_that_cannot_be_done_says_why_and_changes_nothing(server: Server) -> None:
    await rounds(server, 2)
    operator = await logged_in(server)

    running = await operator.post("/tasks/1/delete")
    unkept = await operator.post("/tasks/1/rollback", value="99")
    no_number = await operator.post("/tasks/1/rollback", value="x' --")
    missing = await operator.post("/tasks/77/pause")

    assert [answer.status for answer in (running, unkept, no_number, missing)] == [409, 400, 400, 404]
    assert "must be one whose state is kept: 1, 2" in unkept.body.decode()
    assert "must be the number of a round" in no_number.body.decode()
    assert (await server.show()).task.rounds_committed == 2


def _settings_form(page: str) -> dict[str, str]:
    """The fields of the form of a task's settings, as a browser sends them."""
    found = page.partition(f'action="{ROOT}/tasks/1/settings"')[2].partition("</form>")[0]
    return {name: unescape(value) for name, value in re.findall(r'<input [^>]*name="(\w+)" value="([^"]*)"', found)}


async def test_settings_in_the_form_are_changed_and_others_stay(server: Server) -> None:
    await rounds(server, 0)
    operator = await logged_in(server)
    page = await operator.page("/tasks/1")
    form = _settings_form(page)

    same = await operator.post("/tasks/1/settings", **form)
    wrong = await operator.post("/tasks/1/settings", **(form | {"goal": "many"}))
    unfit = await operator.post("/tasks/1/settings", **(form | {"goal": "0"}))
    done = await operator.post("/tasks/1/settings", **(form | {"goal": "3", "rest": '"fair"'}))

    assert {"goal", "deadline_s", "rest", "eligible"} <= form.keys() and "method" not in form
    assert [answer.status for answer in (same, wrong, unfit)] == [400, 400, 400]
    assert "goal: found" in text_of(wrong.body.decode()) and "goal: found 0" in text_of(unfit.body.decode())
    assert done.status == 303
    assert "Changed: goal, rest." in await operator.page("/tasks/1")
    settings = json.loads((await server.show()).task.settings_json)
    assert (settings["goal"], settings["rest"], settings["deadline_s"]) == (3, "fair", 3600.0)


async def test_a_form_leaves_what_another_operator_has_changed_since_it_was_shown(server: Server) -> None:
    await rounds(server, 0)
    operator, task = await logged_in(server), server.service.federation.tasks[1]
    form = _settings_form(await operator.page("/tasks/1"))

    await operator.post("/tasks/1/settings", goal="5")
    done = await operator.post("/tasks/1/settings", **(form | {"deadline_s": "7200"}))
    unreadable = await operator.post("/tasks/1/settings", **(form | {"shown": "[1]", "goal": "9"}))

    assert (done.status, unreadable.status) == (303, 400)
    assert (task.settings.goal, task.settings.deadline_s) == (5, 7200.0)


async def test_the_page_about_a_refused_change_renews_its_parts_as_the_task_s_own_does(server: Server) -> None:
    await rounds(server, 0)
    operator = await logged_in(server)

    def renewed_from(page: str) -> str:
        found = re.search(rf'<div id="actions" hx-get="{ROOT}([^"]*)"', page)
        assert found is not None
        return found[1]

    refused = await operator.post("/tasks/1/settings", goal="many")
    earlier = await operator.page("/tasks/1?before=7")

    assert refused.status == 400
    assert renewed_from(refused.body.decode()) == "/tasks/1"
    assert renewed_from(earlier) == "/tasks/1?before=7"


async def test_clients_come_by_pages_and_can_be_chosen(server: Server) -> None:
    clients = [await server.client(index) for index in range(60)]
    operator = await logged_in(server)
    await operator.post(f"/clients/{clients[7].id.hex()}/ban", value="noise")

    def ids(page: str) -> list[str]:
        return re.findall(rf'href="{ROOT}/clients/([0-9a-f]{{64}})"', page)

    first = await operator.page("/clients")
    following = re.search(r'href="([^"]*after=[^"]*)"', first)
    assert following is not None
    second = await operator.page(following[1].replace("&amp;", "&").removeprefix(ROOT))
    banned = await operator.page("/clients?state=banned")
    unknown = [(await operator.get(f"/clients?{query}")).status for query in ("state=odd", "seen=-1", "bundle=none")]

    assert ids(first) + ids(second) == sorted(client.id.hex() for client in clients)
    assert ids(banned) == [clients[7].id.hex()] and "noise" in banned
    assert unknown == [400, 400, 404]


async def test_a_client_shows_what_it_was_told_and_is_banned_and_let_in_again(server: Server) -> None:
    one, _ = await rounds(server, 1)
    await one.check_in()
    operator, path = await logged_in(server), f"/clients/{one.id.hex()}"

    words = text_of(await operator.page(path))
    await operator.post(f"{path}/ban", value="uploads noise")
    banned = text_of(await operator.page(path))
    await operator.post(f"{path}/unban")

    assert "Last told assignment about task demo" in words and "demo yes 1 1 0 0" in words
    assert "banned" in banned and "uploads noise" in banned and "Unban" in banned
    assert "active" in text_of(await operator.page(path))


@pytest.mark.parametrize("name", ["phones #2", "team/phones", "a?b", "a\\b", "phone%73", "{phones}"])
async def test_a_token_of_any_name_is_revoked_from_the_list_and_no_other_is(server: Server, name: str) -> None:
    operator = await logged_in(server)
    for each in ("phones", name):
        await operator.post("/tokens/new", name=each, role="trainer")

    listed = await operator.page("/tokens")
    link = re.search(rf'href="([^"]*/revoke)">Revoke<span class="hidden"> {re.escape(escape(name))}<', listed)
    assert link is not None
    asked = await operator.page(unescape(link[1]).removeprefix(ROOT))
    form = re.search(r'<form method="post" action="([^"]*)">', asked)
    assert form is not None
    # As a browser: what follows a `#` is not sent, and a backslash is a slash.
    address = urldefrag(urljoin(unescape(link[1]), unescape(form[1]).replace("\\", "/"))).url
    done = await operator.post(address.removeprefix(ROOT))

    tokens = admission_pb2.ListTokensResponse.FromString((await server.admin("GET", "/v1/admin/tokens")).body).tokens
    assert f"The token {escape(name)} ." in text_of(asked)
    assert (done.status, [each.name for each in tokens if each.revoked_at]) == (303, [name])


async def test_a_new_token_is_shown_once_with_link_and_qr_code_and_lets_a_client_in(
    server: Server, tmp_path: Path
) -> None:
    publisher = new_key(tmp_path / "publisher")
    server.service.federation.publishers = [publisher]
    operator = await logged_in(server)
    form = {"name": "phones", "role": "trainer", "uses": "5", "per_minute": "", "days": "2"}

    made = await operator.post("/tokens/new", **form, server="https://fl.example.org:8443", ca="")
    page = made.body.decode()
    secret = re.search(r'id="secret">([^<]+)<', page)
    assert secret is not None
    client = await server.client(1, secret[1])
    listed = await operator.page("/tokens")

    assert made.status == 200 and re.search(r'<svg [^>]*class="qr"', page)
    assert f"https://fl.example.org:8443/join#token={secret[1]}" in page
    key = urlsafe_b64encode(publisher.der).decode().rstrip("=")
    assert f"&amp;publisher={key}" in page
    assert "phones trainer 1 of 5 100" in text_of(listed) and secret[1] not in listed
    assert (await operator.page(f"/clients/{client.id.hex()}")).count("phones") == 1
    assert (await operator.post("/tokens/new", **form)).status == 409


async def test_a_link_that_is_too_long_for_a_qr_code_is_shown_without_one(server: Server, tmp_path: Path) -> None:
    initialise(tmp_path / "tls")
    ca = 10 * (tmp_path / "tls" / "server.pem").read_text()
    operator = await logged_in(server)

    made = await operator.post("/tokens/new", name="phones", role="trainer", server="https://a.example", ca=ca)

    page = made.body.decode()
    assert made.status == 200 and 'id="secret">' in page
    assert "https://a.example/join#token=" in page and 'class="qr"' not in page


@pytest.mark.parametrize(
    ("form", "told"),
    [
        ({"name": "", "role": "trainer"}, "name: found"),
        ({"name": "x", "role": "king"}, "role: found"),
        ({"name": "x", "role": "trainer", "uses": "-1"}, "uses: found"),
        ({"name": "x", "role": "trainer", "days": "1e9"}, "days: found"),
        ({"name": "x", "role": "trainer", "server": "http://plain.example"}, "server: found"),
        ({"name": "x", "role": "trainer", "server": "https://a.example:99999"}, "server: found"),
        (
            {"name": "x", "role": "trainer", "server": "https://a.example", "ca": "no PEM"},
            "ca: it holds no certificate",
        ),
    ],
)
async def test_a_token_with_a_wrong_value_is_not_made_and_the_form_keeps_what_was_typed(
    server: Server, form: dict[str, str], told: str
) -> None:
    operator = await logged_in(server)

    answer = await operator.post("/tokens/new", **form)

    page = answer.body.decode()
    assert answer.status == 400 and told in text_of(page)
    assert f'name="name" value="{form["name"]}"' in page
    assert "x trainer" not in text_of(await operator.page("/tokens"))


async def test_changes_are_listed_with_who_made_them(server: Server) -> None:
    await server.create(tiny_bundle(), population=5)
    operator = await logged_in(server)
    await operator.post("/tasks/1/pause")
    await operator.post("/tokens/trainers/revoke")

    words = text_of(await operator.page("/changes"))

    assert "admin token revoke trainers" in words and "admin task pause demo" in words
    assert "2023-11-14 22:13:20" in words  # the clock's START
    assert words.index("token revoke") < words.index("task pause") < words.index("task create")


@pytest.mark.parametrize(
    ("path", "told", "onward"),
    [
        ("/tasks/1?before=x", "before: found &#39;x&#39;", "/"),
        ("/changes?before=-1", "before: found &#39;-1&#39;", "/changes"),
        ("/clients?after=zz", "There is no client &#39;zz&#39;.", "/clients"),
        ("/clients/00", "There is no client &#39;00&#39;.", "/clients"),
        ("/tasks/77", "There is no task &#39;77&#39;.", "/"),
        ("/x", f"There is no page {ROOT}/x.", "/"),
        ("/logout", f"There is no page {ROOT}/logout.", "/"),
    ],
)
async def test_an_address_that_cannot_be_read_is_a_page_that_says_so_and_leads_on(
    server: Server, path: str, told: str, onward: str
) -> None:
    await server.create(tiny_bundle(), population=5)
    visitor: Visitor = await logged_in(server, READ_TOKEN)

    answer = await visitor.get(path)

    assert answer.status in (400, 404, 405)
    assert answer.headers["Content-Type"].startswith("text/html")
    page = answer.body.decode()
    assert 'role="alert"' in page and told in page
    assert f'href="{ROOT}{onward}">All ' in page


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (FORM, b"token=%ff%fe"),
        (FORM, b"\xff"),
        (f"{FORM}; charset=none-such", b"token=x"),
        ("multipart/form-data; boundary=x", b"--x"),
        ("application/json", b"{}"),
        (FORM, b"token=" + b"x" * (2 << 20)),
    ],
    ids=["no utf-8 in percent signs", "no utf-8", "no charset", "multipart", "json", "too large"],
)
async def test_a_form_that_cannot_be_read_is_refused_by_a_page(server: Server, kind: str, body: bytes) -> None:
    answer = await server.request(
        "POST", f"{server.admin_url}{ROOT}/login", body, Content_Type=kind, Sec_Fetch_Site="same-origin"
    )

    assert answer.status in (400, 401, 413)
    assert answer.headers["Content-Type"].startswith("text/html")
