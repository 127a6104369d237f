"""The pages of the gateway in headless Chromium, and a federated round of browsers, Python workers and curl.

Screenshots go to docs/ with SPARSEAGG_SCREENSHOTS=1.
"""

from __future__ import annotations

import base64
import concurrent.futures
import json
import os
import pathlib
import subprocess

import browser
import numpy as np
import pytest
import reference
import sparseagg as sa
from http_calls import LOCAL, TIMEOUT_S, request

if browser.programs() is None:
    pytest.skip("no chromium and chromium-driver here (scripts/deps.sh browser installs them)", allow_module_level=True)

HERE = pathlib.Path(__file__).parent
DOCS = HERE.parents[2] / "docs"
ALPHABET = " abcdefghijklmnopqrstuvwxyz.,"
SIZE = len(ALPHABET)
PLAN = {"kind": "next-character", "alphabet": ALPHABET, "tensor": "logits", "epochs": 3, "learningRate": 0.5}
TEXTS = [
    "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 5,
    "It was the best of times, it was the worst of times, it was the age of wisdom. " * 5,
]
SPEC = sa.RoundSpec(
    [sa.TensorSpec("logits", dtype="float32", dimension=SIZE * SIZE, width=SIZE)],
    op="mean",
    weighting="by_weight",
    return_counts=True,
)


@pytest.fixture(scope="module")
def driver():
    running = browser.Driver()
    yield running
    running.close()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    from conftest import ServerProcess

    running = ServerProcess(tmp_path_factory.mktemp("browser") / "log", *LOCAL)
    yield running
    assert running.stop() == 0


def create_tasks(address: str, round_id: str, labels: list[str]) -> list[str]:
    payload = json.dumps(PLAN).encode()
    tasks = [
        {"taskId": f"{round_id}-{i}", "spec": {
            "payload": base64.b64encode(payload).decode(), "labels": [label], "round": f"rounds/{round_id}"}}
        for i, label in enumerate(labels)
    ]  # fmt: skip
    return request(address, "POST", "/v1/tasks", {"tasks": tasks}).json["names"]


def start_client(page: browser.Page, name: str, text: str) -> None:
    page.fill("#text", text)
    page.fill("#name", name)
    page.evaluate("document.getElementById('start').click()")


def trained(page: browser.Page, text: str) -> tuple[dict, float]:
    """What the page trains on a text: the update and its weight. Training is deterministic."""
    keys, values, examples = page.evaluate(
        "const { train } = await import('/next_character.js');"
        "const made = train(args[0], args[1]); return [Array.from(made.keys), Array.from(made.values), made.examples];",
        text,
        PLAN,
    )
    rows = np.array(values, np.float32).reshape(len(keys), SIZE)
    return {"logits": (np.array(keys, np.uint32), rows)}, examples


def test_federated_round_of_browsers_python_and_curl(driver, server, tmp_path):
    url = f"http://{server.http_address}"
    rng = np.random.default_rng(7)
    updates: dict[str, tuple[dict, float]] = {}
    with sa.Client(server.address) as client:
        round_ = client.create_round(SPEC, round_id="mixed")
        labels = ["client=browser-0", "client=browser-1", "python", "python", "python", "curl"]
        names = create_tasks(server.http_address, "mixed", labels)
        pages = [driver.open(f"{url}/client", height=1040) for _ in TEXTS]
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
        result = round_.close()["logits"]
        expected = {name: reference.Update(update, weight) for name, (update, weight) in updates.items()}
        assert reference.differences(SPEC, expected, {"logits": result}) == []
        for page in pages:
            page.wait("!document.getElementById('sample').hidden")  # what the merged model writes
            assert page.errors() == []
        screenshot(pages[0], "client-page.png")
        for page in pages:
            page.evaluate("document.getElementById('stop').click()")
            page.wait("document.getElementById('state').textContent === 'Stopped'")


def submit_some(round_: sa.Round, rng: np.random.Generator, clients: range) -> None:
    for i in clients:
        keys = np.sort(rng.choice(100_000, 4000, replace=False))
        rows = rng.standard_normal((4000, 16)).astype(np.float32)
        round_.submit(f"phone-{i}", {"embedding": (keys, rows)}, weight=1 + i)


def fill_status(server) -> None:
    rng = np.random.default_rng(3)
    with sa.Client(server.address) as client:
        spec = sa.RoundSpec([sa.TensorSpec("embedding", "float32", 100_000, 16)], op="mean", weighting="by_weight")
        for name, clients in (("news-41", 24), ("news-42", 9)):
            round_ = client.create_round(spec, round_id=name)
            submit_some(round_, rng, range(clients))
            if name == "news-41":
                round_.close()
        failed = client.create_round(
            sa.RoundSpec([sa.TensorSpec("bias", "float32", 10)], min_submissions=5), round_id="too-few"
        )
        with pytest.raises(sa.SparseaggError):
            failed.submit("phone-1", {"bias": (np.array([1]), np.array([np.nan], np.float32))})
        with pytest.raises(sa.SparseaggError):
            failed.close()
    create_tasks(server.http_address, "news-42", ["phone"] * 4)
    lease = {"clientId": "phone-7", "labels": ["phone"], "timeout": "1s"}
    request(server.http_address, "POST", "/v1/tasks:lease", lease)


def screenshot(page: browser.Page, name: str) -> None:
    if os.environ.get("SPARSEAGG_SCREENSHOTS"):
        page.screenshot(DOCS / name)


@pytest.fixture(scope="module")
def busy_server(server):
    fill_status(server)
    return server


def test_status_page_shows_rounds_tasks_and_errors(driver, busy_server):
    page = driver.open(f"http://{busy_server.http_address}/")
    page.wait("document.querySelectorAll('#rounds li').length >= 3")
    page.wait("document.querySelectorAll('#tasks tr').length >= 4")
    text = page.evaluate("return document.body.innerText")
    for expected in ("news-41", "done", "news-42", "open", "24 submissions", "merge", "too-few", "failed",
                     "1 submission refused", "min_submissions", "phone-7", "leased", "CPU"):  # fmt: skip
        assert expected in text, text
    page.wait("document.getElementById('line').getAttribute('d') !== ''")  # it goes on by itself
    if os.environ.get("SPARSEAGG_SCREENSHOTS"):
        with sa.Client(busy_server.address) as client:  # traffic for the chart
            rng = np.random.default_rng(4)
            for i in range(12):
                submit_some(
                    client.get_round("news-42"), rng, range(100 + 20 * i, 105 + 20 * i + int(rng.integers(0, 15)))
                )
                page.wait("document.getElementById('updated').textContent !== (window.seen ?? '')")
                page.evaluate("window.seen = document.getElementById('updated').textContent")
    screenshot(page, "status-page.png")
    assert page.errors() == []


LOWEST_CONTRAST = """
// The lowest contrast of text with the ground behind it, as WCAG defines it, and the text.
const channels = (color) => color.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => {
  const [x, y, z] = [r, g, b].map((c) => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * x + 0.7152 * y + 0.0722 * z;
};
let lowest = [99, ''];
for (const element of document.body.querySelectorAll('*')) {
  const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.textContent.trim());
  if (!own || element.disabled || !element.checkVisibility() || element.closest('svg')) continue;
  let ground = element;
  while (ground && (channels(getComputedStyle(ground).backgroundColor)[3] ?? 1) === 0) ground = ground.parentElement;
  const [a, b] = [getComputedStyle(element).color, getComputedStyle(ground ?? document.body).backgroundColor]
    .map((color) => luminance(channels(color)));
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < lowest[0]) lowest = [contrast, element.textContent.trim()];
}
return lowest;
"""

UNLABELLED = """
const named = (element) => element.getAttribute('aria-label') || element.labels?.length || element.textContent.trim() ||
  (element.getAttribute('aria-labelledby') ?? '').split(' ').some((id) => document.getElementById(id)?.textContent);
return [...document.querySelectorAll('a, button, input, textarea, progress, svg[role=img], section, table')]
  .filter((element) => !named(element)).map((element) => element.outerHTML);
"""


@pytest.mark.parametrize("path", ["/", "/client"])
@pytest.mark.parametrize(("width", "scheme"), [(1100, "light"), (1100, "dark"), (360, "light"), (360, "dark")])
def test_page_can_be_read(driver, busy_server, path, width, scheme):
    page = driver.open("about:blank", width=width)
    page.devtools("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    page.go(f"http://{busy_server.http_address}{path}")
    if path == "/":
        page.wait("document.querySelectorAll('#rounds li').length >= 3")
    contrast, text = page.evaluate(LOWEST_CONTRAST)
    assert contrast >= 4.5, text
    assert page.evaluate(UNLABELLED) == []
    # Nothing is wider than the window.
    assert page.evaluate("return document.documentElement.scrollWidth - document.documentElement.clientWidth") <= 0
    assert page.evaluate("return document.documentElement.lang") == "en"
    assert page.evaluate("return document.querySelectorAll('h1').length") == 1
    page.close()


def test_keyboard_alone(driver, busy_server):
    page = driver.open(f"http://{busy_server.http_address}/client")
    visited = []
    for _ in range(6):
        page.press("tab")
        visited.append(page.evaluate("return document.activeElement.id || document.activeElement.textContent"))
        outlined = page.evaluate("return getComputedStyle(document.activeElement).outlineStyle")
        assert outlined == "solid", visited
    assert visited == ["Skip to the form", "Status", "Take part", "text", "name", "start"]
    page.evaluate("document.getElementById('text').value = 'a text of more than twenty characters'")
    page.evaluate("document.getElementById('start').focus()")
    page.press("enter")
    page.wait("document.getElementById('stop').disabled === false")
    page.evaluate("document.getElementById('stop').focus()")
    page.press("space")
    page.wait("document.getElementById('state').textContent === 'Stopped'")


def test_layout_does_not_shift_while_it_updates(driver, busy_server):
    page = driver.open(f"http://{busy_server.http_address}/")
    page.wait("document.querySelectorAll('#rounds li').length >= 3")
    shift = page.evaluate(
        "let sum = 0;"
        "new PerformanceObserver((list) => { for (const e of list.getEntries()) sum += e.value; })"
        "  .observe({ type: 'layout-shift' });"
        "const before = document.getElementById('updated').textContent;"
        "while (document.getElementById('updated').textContent === before) await new Promise((n) => setTimeout(n, 50));"
        "await new Promise((next) => requestAnimationFrame(() => requestAnimationFrame(next)));"
        "return sum;"
    )
    assert shift < 0.1  # "good" by web.dev
