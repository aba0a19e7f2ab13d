"""The dashboard in a real browser: every page and button, wide and narrow, light and dark, and by keyboard alone."""

import re
import shutil
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from playwright.async_api import Browser, Page, async_playwright, expect

from fedlens_proto.v1 import admin_pb2
from fedlens_server.http.dashboard.actions import SUBJECTS
from fedlens_server.http.dashboard.pages import ROOT
from tests.server.bundles import tiny_bundle
from tests.server.http.dashboard.test_pages import ARRIVALS, HOSTILE, rounds
from tests.server.http.running import ADMIN_TOKEN, Server

CHROMIUM = shutil.which("chromium")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium")]
PATHS = ("/", "/tasks/1", "/tasks/1/rollback", "/clients", "/tokens", "/tokens/new", "/changes", "/nothing")
WIDTHS = (390, 600, 768, 1024, 1280, 1600)


def of(kind: str) -> list[str]:
    """The actions that the dashboard asks about, by a page of its own, for a kind of subject."""
    return list(SUBJECTS[kind].actions)


@pytest.fixture
async def browser() -> AsyncIterator[Browser]:
    async with async_playwright() as playwright:
        found = await playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        await found.close()


class Watched:
    """A page of a browser, and all that went wrong in it."""

    def __init__(self, page: Page, server: Server) -> None:
        self.page, self.server = page, server
        self.faults: list[str] = []
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", lambda message: self._told(message.type, message.text))
        page.on("request", lambda request: self._asked(request.url))

    def _told(self, kind: str, text: str) -> None:
        if kind in ("error", "warning") and "404 (Not Found)" not in text:
            self.faults.append(text)

    def _asked(self, url: str) -> None:
        if urlsplit(url).netloc != urlsplit(self.server.admin_url).netloc:
            self.faults.append(f"a request to {url}")

    async def go(self, path: str) -> None:
        await self.page.goto(self.server.admin_url + ROOT + path)

    async def press(self, *titles: str) -> None:
        """Follow links and press buttons one after the other."""
        for title in titles:
            await self.page.locator(f'a:text-is("{title}"), button:text-is("{title}")').first.click()

    async def says(self, text: str | re.Pattern[str]) -> None:
        await expect(self.page.locator("main")).to_contain_text(text)


async def opened(browser: Browser, server: Server, **options: object) -> Watched:
    """A page whose operator has logged in."""
    watched = Watched(await browser.new_page(**options), server)  # type: ignore[arg-type]
    await watched.go("/login")
    await watched.page.get_by_label("Operator's token").fill(ADMIN_TOKEN)
    await watched.press("Log in")
    await watched.page.wait_for_url(f"**{ROOT}/")
    return watched


@pytest.mark.parametrize("scheme", ["light", "dark"])
async def test_every_page_fits_and_nothing_in_it_fails(server: Server, browser: Browser, scheme: str) -> None:
    clients = await rounds(server, 25, confusion=True)
    await server.create(tiny_bundle(), name=HOSTILE, population=9)
    watched = await opened(browser, server, color_scheme=scheme)
    client = f"/clients/{clients[0].id.hex()}"
    subjects = {"tasks": "/tasks/1", "clients": client, "tokens": "/tokens/trainers"}
    asked = [f"{place}/{name}" for kind, place in subjects.items() for name in of(kind)]

    too_wide = []
    for path in (*PATHS, client, *asked):
        await watched.go(path)
        for width in WIDTHS:
            await watched.page.set_viewport_size({"width": width, "height": 800})
            if (found := await watched.page.evaluate("document.documentElement.scrollWidth")) > width:
                too_wide.append((path, width, found))

    assert too_wide == []
    assert watched.faults == []


async def test_a_round_is_shown_as_it_goes_without_loading_the_page_again(server: Server, browser: Browser) -> None:
    one, other = await rounds(server, 2)
    watched = await opened(browser, server)
    await watched.go("/tasks/1")
    await expect(watched.page.locator(".chart canvas")).to_have_count(2)
    await watched.page.evaluate("window.same = true")
    # What was opened stays so from the moment in which a part is shown anew, not only once it has settled.
    await watched.page.evaluate("htmx.config.defaultSettleDelay = 400")
    summary, chart = watched.page.locator("summary"), watched.page.locator(".chart").first

    given = [await client.assignment() for client in (one, other)]
    await expect(summary).to_have_text("Awaited: 2")
    await summary.click()  # closes what was open
    await one.upload(given[0])
    await expect(summary).to_have_text("Awaited: 1")
    was_open = await watched.page.locator("details").get_attribute("open")
    await other.upload(given[1])
    await expect(chart).to_have_attribute(
        "aria-label", "Last committed round, 3: clients, before training 25.0 %, clients, after training 75.0 %"
    )
    await expect(watched.page.locator("#past tbody").last).to_contain_text("committed")

    assert was_open is None
    assert await watched.page.evaluate("window.same") is True
    assert watched.faults == []


async def test_every_button_of_a_task_asks_and_acts(server: Server, browser: Browser) -> None:
    await rounds(server, 3, release="manual")
    watched = await opened(browser, server)
    await watched.go("/tasks/1")

    await watched.press("Pause", "Cancel")
    untouched = (await server.show()).task.reason
    await watched.press("Pause", "Pause")
    await watched.says("Pause: demo. Done.")
    paused = (await server.show()).task.reason
    await watched.press("Resume", "Resume")
    await watched.says("Resume: demo. Done.")
    await watched.press("Release a model")
    await watched.page.get_by_label("The round whose model is released").select_option("2")
    await watched.press("Release a model")
    await watched.says(re.compile(r"Released model\s*round 2"))
    await watched.press("Roll back")
    await watched.page.get_by_label("The round to go back to").select_option("3")
    await watched.press("Roll back")
    await watched.says("Roll back: demo. Done.")
    await watched.press("End the round now", "End the round now")
    await watched.says("End the round now: demo. Done.")
    await watched.page.get_by_label("goal").fill("7")
    await watched.press("Change settings")
    await watched.says("Changed: goal.")
    task = (await server.show()).task
    await watched.press("Stop for good", "Stop for good")
    await watched.says("stopped")
    ended = (await server.show()).task.state
    await watched.press("Delete", "Delete")
    await watched.says("There is no task.")

    assert (untouched, paused) == ("", "by admin")
    assert task.released_round == 2 and '"goal": 7' in task.settings_json
    assert ended == admin_pb2.TASK_STATE_STOPPED
    assert watched.faults == []


async def test_every_button_of_clients_and_tokens_asks_and_acts(server: Server, browser: Browser) -> None:
    await server.create(tiny_bundle(), **ARRIVALS, rounds=3)
    client = await server.client(1)
    watched = await opened(browser, server)

    await watched.press("Clients", client.id.hex()[:12], "Ban")
    await watched.page.get_by_label("The reason, for operators").fill(HOSTILE)
    await watched.press("Ban")
    await watched.says(HOSTILE)
    banned = (await client.send("POST", "/v1/check-in")).status
    await watched.press("Unban", "Unban")
    await watched.says("active")

    await watched.press("Tokens", "New token")
    await watched.page.get_by_label("Name").fill("phones")
    await watched.page.get_by_text("Link and QR code for phones").click()
    await watched.page.get_by_label("Address of the server for phones").fill("https://fl.example.org:8443")
    await watched.press("Make the token")
    await expect(watched.page.locator("svg.qr")).to_be_visible()
    secret = await watched.page.locator("#secret").inner_text()
    other = await server.client(2, secret)
    await watched.press("All tokens", "phones")
    await watched.says(other.id.hex()[:12])
    for title in ("Revoke", "Ban its clients", "Unban its clients"):
        await watched.go("/tokens")
        await watched.page.get_by_role("link", name=f"{title} phones", exact=True).click()
        await watched.press(title)
        await watched.says(f"{title}: phones. Done.")
    await watched.press("Changes")
    await watched.says("client unban --token")
    await watched.press("Log out")
    await watched.says("Operator's token")

    assert banned == 403
    assert watched.faults == []


async def test_a_keyboard_is_enough(server: Server, browser: Browser) -> None:
    await rounds(server, 1)
    watched = Watched(await browser.new_page(), server)
    keyboard = watched.page.keyboard
    await watched.go("/tasks/1/pause")  # leads to the login, and then here

    # A browser gives the focus to an autofocus field when it first draws the page, which may be after its load event.
    await expect(watched.page.get_by_label("Operator's token")).to_be_focused()
    await keyboard.type(ADMIN_TOKEN)
    await keyboard.press("Enter")
    await watched.says("Pause?")
    order = []
    while "Pause" not in order:
        await keyboard.press("Tab")
        order.append(await watched.page.evaluate("document.activeElement.textContent.trim()"))
    await keyboard.press("Enter")
    await watched.says("Pause: demo. Done.")

    assert order == ["Skip to the content", "FedLens", "Tasks", "Clients", "Tokens", "Changes", "Log out", "Pause"]
    assert (await server.show()).task.reason == "by admin"


@pytest.mark.parametrize("path", ["/", "/tasks/1"])
async def test_a_page_says_while_the_server_does_not_renew_it(server: Server, browser: Browser, path: str) -> None:
    await rounds(server, 1)
    watched = await opened(browser, server)
    await watched.go(path)
    notice = watched.page.get_by_role("alert")

    await watched.page.context.set_offline(True)
    await expect(notice).to_contain_text("has not been updated since")
    await watched.page.context.set_offline(False)

    await expect(notice).to_be_hidden()


async def test_a_page_says_so_too_when_the_server_takes_a_request_and_never_answers(
    server: Server, browser: Browser
) -> None:
    await rounds(server, 1)
    watched = await opened(browser, server)
    await watched.go("/tasks/1")

    await watched.page.route("**/live", lambda route: None)

    # The page gives up after ten seconds.
    notice = watched.page.get_by_role("alert")
    await expect(notice).to_contain_text("has not been updated since", timeout=30_000)


async def test_a_page_that_shows_a_round_goes_to_the_login_once_its_session_is_over(
    server: Server, browser: Browser
) -> None:
    await rounds(server, 1)
    watched = await opened(browser, server)
    await watched.go("/tasks/1")

    await watched.page.context.clear_cookies()
    await watched.page.wait_for_url(f"**{ROOT}/login?next=**")

    await watched.says("Operator's token")
