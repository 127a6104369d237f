"""The pages, read by keyboard alone, by a screen reader, in a narrow window, in the dark and while they change."""

from __future__ import annotations

import hashlib
from typing import Any

import browser
import numpy as np
import page_checks
import pytest
import sparseagg as sa
from http_calls import LOCAL
from served import client_page, create_tasks, fill_status

if browser.programs() is None:
    pytest.skip("no chromium and chromium-driver here (scripts/deps.sh browser installs them)", allow_module_level=True)

PAGES = pytest.mark.parametrize("path", ["/", "/client"])
ALL_PAGES = pytest.mark.parametrize(
    "path",
    ["/", "/client", "/#news-41", "/#too-few", "/#streams/clicks", "/#models/news", "/#tasks/news-42-0", "/#gone"],
)
MOST_TABS = 50  # to get through a page
LONG = "a-name-as-long-as-names-may-be-" * 4
SPEC = sa.RoundSpec([sa.TensorSpec("v", "float32", num_rows=10)])


@pytest.fixture(scope="module")
def server(server, origin):
    server.origin = origin
    fill_status(server)
    with sa.Client(server.address) as client:
        client.create_round(SPEC, round_id=LONG)
    create_tasks(server.http_address, LONG, ["phone"])
    return server


def opened(driver: browser.Driver, server: Any, path: str, width: int = 1100, scheme: str = "light") -> browser.Page:
    """A page that shows all that it will, unless something happens."""
    page = driver.open("about:blank", width=width)
    page.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.go(client_page(server.origin, server) if path == "/client" else f"http://{server.http_address}{path}")
    if path != "/client":
        shown = "#rounds > li" if path == "/" else "#one-parts > *"
        page.wait(f"document.querySelectorAll('{shown}').length >= {4 if path == '/' else 1}")
    return page


def tab_through(page: browser.Page) -> list[dict[str, Any]]:
    """Presses Tab until the focus has left the page; returns how each element with the focus looked."""
    seen: list[dict[str, Any]] = []
    while True:
        page.press("tab")
        focus = page.evaluate(page_checks.FOCUS)
        if focus is None:
            return seen
        assert len(seen) < MOST_TABS, seen
        seen.append(focus)


def tab_to(page: browser.Page, element: str) -> None:
    """Presses Tab until the element has the focus."""
    for _ in range(MOST_TABS):
        if page.evaluate("return document.activeElement.id") == element:
            return
        page.press("tab")
    raise AssertionError(f"{element} cannot be reached")


@ALL_PAGES
@pytest.mark.parametrize("width", [1100, 360])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_page_can_be_read(driver, server, path, width, scheme):
    page = opened(driver, server, path, width, scheme)
    assert page.evaluate("return [...document.styleSheets].map((sheet) => sheet.cssRules.length > 0)") == [True]
    contrast, text = page.evaluate(page_checks.LOWEST_CONTRAST)
    assert contrast >= 4.5, text
    contrast, control = page.evaluate(page_checks.LOWEST_CONTRAST_OF_EDGES)
    assert contrast >= 3, control
    assert page.evaluate(page_checks.WIDER_THAN_WINDOW) == []
    assert page.evaluate("return document.documentElement.lang") == "en"
    assert [text for text in page.errors() if "/gone" not in text] == []  # whose answer is 404
    page.close()


@PAGES
@pytest.mark.parametrize("width", [1100, 360])
def test_tab_reaches_every_control_and_shows_where_it_is(driver, server, path, width):
    page = opened(driver, server, path, width)
    expected = page.evaluate(page_checks.CONTROLS)
    assert len(expected) >= 4
    seen = tab_through(page)
    assert [focus["element"] for focus in seen] == expected
    for focus in seen:
        assert focus["isInWindow"], focus
        assert focus["outlinePixels"] >= 2, focus
        assert focus["outlineContrast"] >= 3, focus
    page.close()


def test_focus_stays_on_a_round_that_changes(driver, server):
    page = opened(driver, server, "/")
    with sa.Client(server.address) as client, client.create_round(SPEC, round_id="changing") as changing:
        link = "[...document.querySelectorAll('#rounds a')].find((each) => each.textContent === 'changing')"
        page.wait(f"{link} !== undefined")
        page.evaluate(f"const link = {link}; link.focus(); link.closest('li').isOld = true; return 0")
        changing.submit("a", {"v": ([1], [1.0])})
        page.wait(f"{link}.closest('li').textContent.includes('1 submission') && !{link}.closest('li').isOld")
        assert page.evaluate(f"return document.activeElement === {link}")
    page.close()


@PAGES
def test_skip_link_leads_behind_the_navigation(driver, server, path):
    page = opened(driver, server, path)
    page.press("tab")
    page.press("enter")
    page.wait("document.activeElement.id === 'main'")
    page.press("tab")
    assert page.evaluate("return document.activeElement.closest('main, footer') !== null")
    assert page.evaluate("return document.activeElement.closest('nav') === null")
    page.close()


@PAGES
def test_screen_reader_finds_landmarks_names_and_headings(driver, server, path):
    page = opened(driver, server, path)
    nodes = page_checks.accessible_nodes(page)
    roles = [role for role, _, _ in nodes]
    for landmark in ("banner", "navigation", "main", "contentinfo"):
        assert roles.count(landmark) == 1, (landmark, roles)
    unnamed = [node for node in nodes if node[0] in page_checks.NAMED_ROLES and not node[1]]
    assert unnamed == []
    levels = [level for role, _, level in nodes if role == "heading"]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:])), levels
    # What changes every two seconds is not read aloud each time; the server's warnings do not.
    assert page.evaluate("return [...document.querySelectorAll('[role=status], [aria-live]')].map((e) => e.id)") == (
        ["state"] if path == "/client" else ["warnings"]
    )
    page.close()


def test_client_page_by_keyboard_alone(driver, server):
    page = opened(driver, server, "/client")
    tab_to(page, "text")
    page.type("a text of more than twenty characters")
    page.press("tab")
    page.press("tab")
    assert page.evaluate("return document.activeElement.id") == "start"
    page.press("enter")
    page.wait("document.getElementById('stop').disabled === false")
    tab_to(page, "stop")
    page.press("space")
    page.wait("document.getElementById('state').textContent === 'Stopped'")
    page.close()


def test_token_is_asked_for_and_taken_by_keyboard_alone(driver, start_server, tmp_path):
    tokens = tmp_path / "tokens"
    tokens.write_text(f"{hashlib.sha256(b'secret').hexdigest()} coordinator default me\n", encoding="ascii")
    server = start_server(*LOCAL, "--tokens-file", str(tokens))
    page = driver.open(f"http://{server.http_address}/", width=360)
    page.wait("document.activeElement.id === 'token'")
    assert page.evaluate(page_checks.WIDER_THAN_WINDOW) == []
    contrast, text = page.evaluate(page_checks.LOWEST_CONTRAST)
    assert contrast >= 4.5, text
    named = {name for role, name, _ in page_checks.accessible_nodes(page) if role == "textbox"}
    assert named == {"Access token"}
    page.type("secret")
    page.press("enter")
    page.wait("!document.getElementById('content').hidden")
    page.close()


def submit(server: Any, round_id: str) -> None:
    with sa.Client(server.address) as client:
        client.create_round(SPEC, round_id=round_id).submit(round_id, {"v": (np.arange(3), np.ones(3, np.float32))})


@pytest.mark.parametrize("width", [1100, 360])
def test_status_page_does_not_shift_while_rounds_come(driver, start_server, width):
    server = start_server(*LOCAL)
    fill_status(server)
    page = driver.open("about:blank", width=width)
    page.devtools("Page.addScriptToEvaluateOnNewDocument", source=page_checks.COUNT_SHIFTS)
    page.go(f"http://{server.http_address}/")
    page.wait("document.querySelectorAll('#rounds > li').length === 5")
    for i in range(2):
        submit(server, f"live-{i}")
        page.wait(f"document.querySelectorAll('#rounds > li').length === {6 + i}")
    assert page.evaluate(page_checks.SHIFT) < 0.1  # "good" by web.dev
    page.close()


def test_status_page_is_paused_by_keyboard_alone(driver, server):
    page = opened(driver, server, "/")
    tab_to(page, "pause")
    for pressed in ("true", "false"):
        page.press("space")
        page.wait(f"document.getElementById('pause').getAttribute('aria-pressed') === '{pressed}'")
        assert page.evaluate("return document.activeElement.id") == "pause"
    page.close()


def test_all_rounds_by_keyboard_alone(driver, start_server):
    server = start_server(*LOCAL)
    with sa.Client(server.address) as client:
        for i in range(25):
            client.create_round(SPEC, round_id=f"round-{i}")
    page = driver.open(f"http://{server.http_address}/")
    page.wait("document.querySelectorAll('#rounds > li').length === 20")
    tab_to(page, "more")
    for number in (25, 20):
        page.press("enter")
        page.wait(f"document.querySelectorAll('#rounds > li').length === {number}")
        assert page.evaluate("return document.activeElement.id") == "more"  # the place is kept
    page.close()


def test_client_page_does_not_shift_while_it_works(driver, start_server, origin):
    from served import SPEC as SPEC_OF_MODEL

    server = start_server(*LOCAL, "--http-origins", origin)
    page = driver.open("about:blank", width=360)
    page.devtools("Page.addScriptToEvaluateOnNewDocument", source=page_checks.COUNT_SHIFTS)
    page.go(client_page(origin, server))
    with sa.Client(server.address) as client:
        round_ = client.create_round(SPEC_OF_MODEL, round_id="work")
        create_tasks(server.http_address, "work", ["client=me"])
        page.evaluate(
            "document.getElementById('text').value = 'the quick brown fox jumps over the lazy dog';"
            "document.getElementById('name').value = 'me';"
            "document.getElementById('start').click();"
        )
        page.wait("document.querySelectorAll('#done td.number').length === 3")
        round_.finish()
        page.wait("!document.getElementById('sample').hidden")
    assert page.evaluate(page_checks.SHIFT) < 0.1
    page.close()


def test_selection_stays_while_the_page_updates(driver, server):
    page = opened(driver, server, "/")
    page.evaluate(
        "const title = [...document.querySelectorAll('#rounds h3')].find((each) => each.textContent === 'too-few');"
        "getSelection().selectAllChildren(title);"
        "window.seen = document.getElementById('updated').textContent;"
    )
    page.wait("document.getElementById('updated').textContent !== window.seen")
    assert page.evaluate("return `${getSelection()}`") == "too-few"
    page.close()
