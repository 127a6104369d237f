"""The pages of the gateway in headless Chromium, and a federated round of browsers, Python workers and curl.

Screenshots go to docs/ and examples/output/ with SPARSEAGG_SCREENSHOTS=1.
"""

from __future__ import annotations

import concurrent.futures
import os
import pathlib
import re
import subprocess

import browser
import numpy as np
import pytest
import reference
import sparseagg as sa
from http_calls import LOCAL, TIMEOUT_S, request
from served import PLAN, SIZE, SPEC, client_page, create_tasks, fill_status, submit_some
from signing import key_pair

if browser.programs() is None:
    pytest.skip("no chromium and chromium-driver here (scripts/deps.sh browser installs them)", allow_module_level=True)

HERE = pathlib.Path(__file__).parent
EXAMPLES = HERE.parents[2] / "examples"
TEXTS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 5,
    "It was the best of times, it was the worst of times, it was the age of wisdom. " * 5,
]


def start_client(page: browser.Page, name: str, text: str) -> None:
    page.fill("#text", text)
    page.fill("#name", name)
    page.evaluate("document.getElementById('start').click()")


def trained(page: browser.Page, text: str) -> tuple[dict, float]:
    """What the page trains on a text: the update and its weight. Training is deterministic."""
    keys, values, examples = page.evaluate(
        "const { train } = await import('/examples/browser_client/next_character.js');"
        "const made = train(args[0], args[1]); return [Array.from(made.keys), Array.from(made.values), made.examples];",
        text,
        PLAN,
    )
    rows = np.array(values, np.float32).reshape(len(keys), SIZE)
    return {"logits": (np.array(keys, np.uint32), rows)}, examples


def test_federated_round_of_browsers_python_and_curl(driver, server, origin, tmp_path):
    url = f"http://{server.http_address}"
    rng = np.random.default_rng(7)
    updates: dict[str, tuple[dict, float]] = {}
    with sa.Client(server.address) as client:
        round_ = client.create_round(SPEC, round_id="mixed")
        labels = ["client=browser-0", "client=browser-1", "python", "python", "python", "curl"]
        names = create_tasks(server.http_address, "mixed", labels)
        pages = [driver.open(client_page(origin, server), height=1040) for _ in TEXTS]
        for i, (page, text) in enumerate(zip(pages, TEXTS)):
            start_client(page, f"browser-{i}", text)
            updates[f"browser-{i}"] = trained(page, text)

        def work(i: int) -> None:
            name = f"python-{i}"
            lease = {"clientId": name, "leaseId": "lease", "labels": ["python"], "timeout": "20s"}
            task = request(server.http_address, "POST", "/v1/tasks:lease", lease).json["task"]
            update, weight = updates[name]
            with sa.Client(server.address) as own:  # gRPC
                own.get_round(task["spec"]["round"].removeprefix("rounds/")).submit(
                    name, update, weight=weight, submission_id="one"
                )
            done = {"clientId": name, "leaseId": "lease", "submissionId": "one"}
            assert request(server.http_address, "POST", f"/v1/{task['name']}:complete", done).status == 200

        for i in range(3):
            keys = rng.choice(SIZE * SIZE, 200, replace=False).astype(np.uint32)
            rows = rng.standard_normal((200, SIZE)).astype(np.float32)
            updates[f"python-{i}"] = {"logits": (keys, rows)}, float(i + 1)
        rows = rng.standard_normal((3, SIZE)).astype(np.float32)
        updates["curl"] = {"logits": (np.array([1, 5, 8], np.uint32), rows)}, 3.0
        (tmp_path / "rows").write_bytes(rows.tobytes())
        with concurrent.futures.ThreadPoolExecutor() as pool:
            workers = [pool.submit(work, i) for i in range(3)]
            subprocess.run([HERE / "curl_client.sh", url, "curl", tmp_path / "rows"], check=True, timeout=TIMEOUT_S)
            for worker in workers:
                worker.result()
        for page in pages:
            page.wait("document.querySelectorAll('#done td.number').length === 3")
            page.wait("document.getElementById('state').textContent.startsWith('Waiting')")
        states = [request(server.http_address, "GET", f"/v1/{name}").json["state"] for name in names]
        assert states == ["TASK_STATE_COMPLETED"] * 6
        result = round_.finish()["logits"]
        expected = {name: reference.Update(update, weight) for name, (update, weight) in updates.items()}
        assert reference.differences(SPEC, expected, {"logits": result}) == []
        for page in pages:
            page.wait("!document.getElementById('sample').hidden")  # what the merged model writes
            assert page.errors() == []
        screenshot(pages[0], EXAMPLES / "output/browser_client.png")
        for page in pages:
            page.evaluate("document.getElementById('stop').click()")
            page.wait("document.getElementById('state').textContent === 'Stopped'")


def screenshot(page: browser.Page, path: pathlib.Path) -> None:
    if os.environ.get("SPARSEAGG_SCREENSHOTS"):
        page.screenshot(path)


@pytest.fixture(scope="module")
def busy_server(server):
    fill_status(server)
    return server


def test_status_page_shows_rounds_tasks_and_errors(driver, busy_server):
    page = driver.open(f"http://{busy_server.http_address}/")
    page.wait("document.querySelectorAll('#rounds > li').length >= 3")
    page.wait("document.querySelectorAll('#tasks tbody tr').length >= 4")
    text = page.evaluate("return document.body.innerText")
    for expected in ("news-41", "done", "news-42", "open", "24 submissions", "too-few", "failed",
                     "result in", "1 submission refused", "min_submissions", "phone-7", "leased", "CPU"):  # fmt: skip
        assert expected in text, text
    for chart in ("memory", "rate"):  # the latter goes on by itself
        page.wait(f"document.querySelector('#{chart}-chart .line').getAttribute('d').includes('L')")
    cells = page.evaluate("return [...document.querySelectorAll('#streams td')].map((cell) => cell.textContent)")
    assert cells[:3] + cells[4:6] == ["clicks", "2", "1 of 3", "0", "mean 0.3, most 1"]
    assert re.fullmatch(r"full, [\d.]+ (s|min) ago", cells[6])
    model = page.evaluate("return [...document.querySelectorAll('#models td')].map((cell) => cell.textContent)")
    assert model[:2] == ["news", "1"]
    # Charts side by side stand on one line, and begin at 0.
    bottoms = page.evaluate(
        "return [...document.querySelectorAll('.chart svg')].map((each) => each.getBoundingClientRect().bottom)"
    )
    assert len(bottoms) == 2
    assert len(set(bottoms)) == 1
    axis = page.evaluate("return [...document.querySelectorAll('#rate-chart span')].map((each) => each.textContent)")
    assert axis[2:] == ["0 B/s", "10 minutes ago", "now"]
    # What is usual on the loopback is a note; the rest is a fault.
    notes = page.evaluate(
        "return [...document.querySelectorAll('#warnings p')].map((e) => [e.className, e.textContent])"
    )
    assert [
        "faint",
        "no authentication: whoever reaches the server may do everything, under any client's name",
    ] in notes
    assert {name for name, _ in notes} == {"faint"}
    with sa.Client(busy_server.address) as client:
        stream = client.get_stream("clicks")
        update = {"embedding": ([1], np.ones((1, 16), np.float32))}
        stream.submit("phone-2", update, 1.0, base_version=1)
        stream.cut()
    page.wait("document.querySelectorAll('#streams td')[6].textContent.startsWith('by a call, ')")
    assert page.evaluate("return document.querySelectorAll('#streams td')[1].textContent") == "3"
    page.wait("/^[0-9]/.test(document.querySelectorAll('#streams td')[3].textContent)")
    if os.environ.get("SPARSEAGG_SCREENSHOTS"):
        with sa.Client(busy_server.address) as client:  # traffic for the chart
            rng = np.random.default_rng(4)
            for i in range(12):
                submit_some(
                    client.get_round("news-42"), rng, range(100 + 20 * i, 105 + 20 * i + int(rng.integers(0, 15)))
                )
                page.wait("document.getElementById('updated').textContent !== (window.seen ?? '')")
                page.evaluate("window.seen = document.getElementById('updated').textContent")
    screenshot(page, HERE.parents[2] / "docs/status-page.png")
    assert page.errors() == []


def test_status_page_keeps_what_deleted_rounds_did(driver, start_server):
    server = start_server(*LOCAL)
    page = driver.open(f"http://{server.http_address}/")
    update = {"w": ([3], np.ones((1, 1), np.float32))}
    with sa.Client(server.address) as client:
        round_ = client.create_round(sa.RoundSpec([sa.TensorSpec("w", "float32", num_rows=10)]))
        round_.submit("a", update)
        with pytest.raises(sa.InvalidArgumentError):
            round_.submit("b", {"w": ([3], np.array([[np.nan]], np.float32))})
        round_.finish()
        round_.delete()
    page.wait("document.getElementById('ended-rounds').textContent === '1'")
    tiles = page.evaluate("return [...document.querySelectorAll('.tiles .value')].map((tile) => tile.textContent)")
    assert tiles[:4] == ["0", "1", "1", "1"]  # rounds open, ended; submissions, refused
    assert re.fullmatch(r"[\d.]+ MiB", page.evaluate("return document.getElementById('memory').textContent"))
    assert page.errors() == []


def rounds_of(page: browser.Page) -> list[str]:
    return page.evaluate("return [...document.querySelectorAll('#rounds h3')].map((title) => title.textContent)")


def pairs(page: browser.Page) -> dict[str, str]:
    """The facts of the page of one round, stream, model or task."""
    script = (
        "return [...document.querySelectorAll('#one .pairs tr')].map((row) => [...row.cells].map((e) => e.innerText))"
    )
    return dict(page.evaluate(script))


def test_status_page_finds_rounds_and_shows_one(driver, busy_server):
    page = driver.open(f"http://{busy_server.http_address}/")
    page.wait("document.querySelectorAll('#rounds > li').length >= 3")
    page.evaluate("document.querySelector('#filter [data-state=failed]').click()")
    assert rounds_of(page) == ["too-few"]
    assert "result in" not in page.evaluate("return document.querySelector('#rounds > li').innerText")
    page.evaluate("document.querySelector('#filter [data-state=\"\"]').click()")
    page.fill("#search", "NEWS-4")
    assert rounds_of(page) == ["news-42", "news-41"]
    page.fill("#search", "bias")
    assert rounds_of(page) == ["too-few"]
    page.fill("#search", "nobody")
    assert page.evaluate("return [...document.querySelectorAll('#none-fits, #no-rounds')].map((e) => e.hidden)") == [
        False,
        True,
    ]
    page.fill("#search", "")
    page.wait("document.querySelector('#rounds a[href=\"#news-41\"]') !== null")
    page.evaluate("document.querySelector('#rounds a[href=\"#news-41\"]').click()")
    page.wait("document.querySelectorAll('#one-submissions tbody tr').length === 24")
    text = page.evaluate("return document.getElementById('one').innerText")
    for expected in ("news-41", "24 submissions", "merge", "embedding", "float32", "100,000", "phone-23", "by client"):
        assert expected in text, text
    assert page.evaluate("return document.title") == "news-41 – sparseagg"
    screenshot(page, HERE.parents[2] / "docs/status-round.png")
    page.evaluate("location.hash = '#too-few'")
    page.wait("document.getElementById('one-refusals').innerText.includes('INVALID_ARGUMENT')")
    assert pairs(page)["Quorum"] == "0 of 5 needed"
    for kind, name, expected in (
        ("stream", "clicks", {"Of one client": "any number of commits", "Weighting": "by weight"}),
        ("model", "news", {"Version": "1", "Optimizer": "fedadam", "Made by": "rounds that a coordinator applies"}),
        ("task", "news-42-1", {"Round": "news-42", "Labels": "phone", "Attempts": "0 of 10"}),
    ):
        page.evaluate(f"location.hash = '#{kind}s/{name}'")
        page.wait(
            f"document.title === '{name} – sparseagg' && document.getElementById('one-kind').innerText === '{kind}'"
        )
        found = pairs(page)
        assert {title: found.get(title) for title in expected} == expected
    page.evaluate("location.hash = ''")
    page.wait("document.getElementById('one').hidden && document.querySelectorAll('#rounds > li').length >= 3")
    assert page.errors() == []


def test_status_page_says_what_to_do_first_and_when_the_server_was_seen(driver, tmp_path):
    from real_server import ServerProcess

    server = ServerProcess(tmp_path / "log", *LOCAL)
    page = driver.open(f"http://{server.http_address}/")
    page.wait("!document.getElementById('no-rounds').hidden")
    commands = page.evaluate("return [...document.querySelectorAll('#first pre')].map((line) => line.textContent)")
    assert [command.split()[1].startswith(f"http://{server.http_address}/v1/") for command in commands] == [True] * 3
    for command in commands:
        subprocess.run(["bash", "-c", command.replace("curl", "curl --fail", 1)], check=True, capture_output=True)
    page.wait("document.querySelectorAll('#rounds > li .done').length === 1")
    assert "2 tuples" in page.evaluate("return document.querySelector('#rounds > li').innerText")
    assert server.stop() == 0
    page.wait("document.getElementById('content').classList.contains('stale')")
    assert page.evaluate("return document.getElementById('server').textContent").startswith("last seen ")
    assert len(rounds_of(page)) == 1


PRIVATE = sa.RoundSpec(
    [sa.TensorSpec("w", "float32", num_rows=1000)],
    max_submissions=500,
    clip=sa.ClipSpec(l2=1.0, max_keys=50),
    privacy=sa.PrivacySpec(noise_multiplier=1.0, key_noise_multiplier=1.0, delta=1e-6),
)


def test_page_of_a_round_says_what_it_waits_for_and_why_rows_are_missing(driver, start_server, tmp_path):
    noise = tmp_path / "noise"
    noise.write_bytes(os.urandom(32))
    noise.chmod(0o600)
    server = start_server(*LOCAL, "--noise-key-file", str(noise))
    tensors = [sa.TensorSpec("w", "float32", num_rows=10)]
    waits = sa.RoundSpec(
        tensors, op="mean", weighting="by_weight", min_submissions=3, deadline=600, clip=sa.ClipSpec(l2=2.0)
    )
    update = {"w": ([3], np.ones(1, np.float32))}
    with sa.Client(server.address) as client:
        round_ = client.create_round(waits, "waits")
        round_.submit("a", update, weight=1.0)
        with pytest.raises(sa.InvalidArgumentError):
            round_.submit("b", {"w": ([3], np.array([np.nan], np.float32))}, weight=1.0)
        private = client.create_round(PRIVATE, "private")
        private.submit("a", update)
        private.finish()
        client.create_round(sa.RoundSpec(tensors), "cancelled").cancel("a better one follows")
        client.create_round(sa.RoundSpec(tensors), "sealed").seal()

        page = driver.open(f"http://{server.http_address}/#waits")
        page.wait("document.querySelector('#one-refusals time') !== null")
        found = pairs(page)
        expected = {"Quorum": "1 of 3 needed", "Operation": "mean", "Weighting": "by weight", "Privacy": "none",
                    "Clip": "L2 norm 2; beyond: clipped"}  # fmt: skip
        assert {name: found.get(name) for name in expected} == expected
        date = r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d"
        assert re.fullmatch(rf"{date}, in (9|10) min", found["Deadline"])
        assert re.fullmatch(date, found["Created"])
        refused = page.evaluate("return [...document.querySelectorAll('#one-refusals td')].map((e) => e.innerText)")
        assert re.fullmatch(date, refused[0])
        assert refused[1:3] == ["b", "INVALID_ARGUMENT"]
        round_.submit("c", update, weight=1.0)
        page.wait("document.querySelectorAll('#one-submissions tbody tr').length === 2")
        page.wait("document.querySelector('#one-chart .line')?.getAttribute('d').includes('L')")
        assert pairs(page)["Quorum"] == "2 of 3 needed"
        round_.submit("d", update, weight=1.0)
        page.wait("document.querySelector('#one-spec td').innerText === 'reached, 3 needed'")

    page.evaluate("location.hash = '#private'")
    page.wait("document.querySelector('#one .state.private') !== null")
    assert "Rows that few clients have sent are missing on purpose" in page.evaluate("return document.body.innerText")
    assert pairs(page)["Privacy"].startswith("noise multiplier 1, ")
    page.evaluate("location.hash = '#deleted'")
    page.wait("document.getElementById('one').innerText.includes('This round is deleted or expired')")
    page.evaluate("location.hash = ''")
    for state in ("sealed", "cancelled"):
        page.wait(f"document.querySelector('#filter [data-state={state}]').innerText.endsWith(' 1')")
        page.evaluate(f"document.querySelector('#filter [data-state={state}]').click()")
        assert rounds_of(page) == [state]
    reason = "[...document.querySelectorAll('#rounds p')].find((line) => line.innerText === 'a better one follows')"
    assert page.evaluate(f"return {reason}.className") == "faint"


def test_status_page_saves_the_certificate_of_a_round(driver, tmp_path):
    from real_server import ServerProcess

    key, _ = key_pair(tmp_path)
    server = ServerProcess(tmp_path / "log", *LOCAL, "--certificate-key", str(key))
    try:
        with sa.Client(server.address) as client:
            for name, certificate in (("plain", False), ("signed", True)):
                spec = sa.RoundSpec([sa.TensorSpec("t", "float32", num_rows=9)], certificate=certificate)
                rnd = client.create_round(spec, name)
                rnd.submit("a", {"t": ([1], np.ones(1, np.float32))})
                rnd.finish()
        page = driver.open(f"http://{server.http_address}/")
        page.wait("document.querySelectorAll('#rounds > li').length >= 2")
        page.evaluate("location.hash = '#plain'")
        page.wait("document.getElementById('one-title').textContent === 'plain'")
        assert page.evaluate("return document.querySelector('#one-parts button')") is None
        page.evaluate("location.hash = '#signed'")
        page.wait("document.querySelector('#one-parts button') !== null")
        page.evaluate(
            "window.saved = []; const made = URL.createObjectURL;"
            "URL.createObjectURL = (blob) => { blob.text().then((text) => saved.push(text)); return made(blob); };"
            "document.querySelector('#one-parts button').click()"
        )
        page.wait("window.saved.length === 1")
        page.wait("document.querySelector('#one-parts button').textContent === 'Certificate of 1 submission'")
        with sa.Client(server.address) as client:
            envelope = client.get_round("signed").certificate().envelope
        assert page.evaluate("return window.saved[0]").encode() == envelope
        assert page.errors() == []
    finally:
        assert server.stop() == 0
