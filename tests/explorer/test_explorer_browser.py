"""The page in a real browser: controls, plans, comparison, runs, links."""

from __future__ import annotations

import json
import re
import shutil
import signal
import subprocess
import sys
import tomllib
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

import pytest

from airfed import policies, scenario
from airfed.explorer.design import Design, from_query
from airfed.explorer.view import headline
from airfed.training.execution import execute

pytest.importorskip("nicegui", reason="NiceGUI is not installed: pip install airfed[web]")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: pip install airfed[dev]")

NAMES = ("chromium", "chromium-browser", "google-chrome")
CHROMIUM = next((path for name in NAMES if (path := shutil.which(name))), None)
FLAGS = [
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
# NiceGUI raises these where a chart is removed or updated before its script has been loaded.
UNMOUNTED = (
    "TypeError: Cannot read properties of undefined (reading 'dispose')",
    "TypeError: getElement(...)?.[element.update_method] is not a function",
)
TIMEOUT = 120_000  # milliseconds; a busy machine is slow, a broken page never answers
HEAVY = (  # takes many seconds
    "fleet.num_devices=100000&learning.total_steps=20000&channel.csi_error=0.02"
    "&budget.scope=total&link.noise_std=1.0&budget.epsilon=5.0&budget.total_power=300.0"
)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason=f"no browser: none of {', '.join(NAMES)} is on the PATH"),
]

Page = Any


@dataclass(kw_only=True)
class Server:
    url: str
    token: str
    runs: Path
    process: subprocess.Popen[str]

    @property
    def cookie(self) -> dict[str, str]:
        return {"Cookie": f"airfed-token-{urlsplit(self.url).port}={self.token}"}


@contextmanager
def serving(folder: Path, *options: str, end: int = signal.SIGINT, code: int = 130) -> Iterator[Server]:
    """Run `airfed explore` as a process, stop it with a signal and check its exit code."""
    command = [sys.executable, "-m", "airfed", "explore", "--port", "0", "--no-browser", "--runs", "runs", *options]
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            found = re.search(r"(http://\S+)\?token=(\S+)", process.stdout.readline())
            assert found is not None
            yield Server(url=found[1], token=found[2], runs=folder / "runs", process=process)
            if process.poll() is None:
                process.send_signal(end)
            assert process.wait(120) == code
        finally:
            process.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with serving(tmp_path_factory.mktemp("explore")) as running:
        yield running


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield started
        started.close()


@pytest.fixture
def visit(browser: Any, server: Server) -> Iterator[Callable[..., Page]]:
    """Open the page for a new visitor. Afterwards check that no request left this machine and no script failed."""
    contexts, requests, errors = [], [], []

    def enter(query: str = "", *, wait: bool = True, **settings: Any) -> Page:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **settings})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(TIMEOUT)
        page.on("request", lambda request: requests.append(request.url))
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda message: errors.append(message.text) if message.type == "error" else None)
        page.goto(f"{server.url}?{query}&token={server.token}", wait_until="domcontentloaded")
        if wait:
            computed(page)
        return page

    yield enter
    for context in contexts:
        context.close()
    strangers = {url for url in requests if urlsplit(url).scheme in ("http", "https", "ws", "wss")}
    assert {urlsplit(url).netloc for url in strangers} == {urlsplit(server.url).netloc}
    assert [error for error in errors if not error.startswith(UNMOUNTED)] == []


def computed(page: Page) -> None:
    """Wait until the page has connected and shows a plan or an error."""
    page.wait_for_selector("#headline", state="attached")  # the Runs tab hides it
    page.wait_for_function("() => window.airfed?.started")
    page.wait_for_function("() => document.querySelector('#headline').textContent !== 'Planning …'")
    page.wait_for_function("() => !document.querySelector('.hero.busy')")


def begun(page: Page) -> None:
    """Wait until the computation has started or finished."""
    page.wait_for_function(
        "() => document.querySelector('.hero.busy')"
        " || (document.querySelector('#headline')?.textContent ?? 'Planning …') !== 'Planning …'"
    )


def expected(design: Design) -> str:
    return headline(design.scenario().plan())


def shows(page: Page, sentence: str) -> None:
    page.wait_for_function(
        "text => document.querySelector('#headline').textContent === text", arg=sentence, timeout=TIMEOUT
    )


def knob(page: Page, key: str) -> Any:
    """Return the control of a key after opening its group."""
    opened = page.evaluate(
        "key => { const group = document.querySelector(`[data-key='${key}']`).closest('.group');"
        " const closed = !group.querySelector('.q-expansion-item__content').offsetHeight;"
        " if (closed) group.querySelector('.q-item').click(); return closed }",
        key,
    )
    if opened:
        page.wait_for_timeout(600)
    return page.locator(f"[data-key='{key}']")


def slide(page: Page, key: str, share: float) -> None:
    track = knob(page, key).locator(".q-slider__track-container")
    track.evaluate("track => track.scrollIntoView({block: 'center'})")
    box = track.bounding_box()
    page.mouse.click(box["x"] + share * box["width"], box["y"] + box["height"] / 2)


def typed(page: Page, key: str, text: str) -> None:
    knob(page, key).locator("input").fill(text)


def field(page: Page, key: str) -> Any:
    return knob(page, key).locator("input").input_value()


def settled(page: Page, key: str) -> Design:
    """Return the design in the address once it contains the key."""
    page.wait_for_function("key => location.search.includes(key + '=')", arg=key, timeout=TIMEOUT)
    return from_query(parse_qsl(urlsplit(page.url).query, keep_blank_values=True))


def test_the_page_opens_on_the_template_and_shows_its_plan(visit: Callable[..., Page]) -> None:
    page = visit()
    shows(page, expected(Design()))
    assert page.locator(".chart:visible").count() == 4
    assert page.title() == "airfed explore"


def test_sliders_fields_and_choices_lead_to_the_plan_of_that_design(visit: Callable[..., Page]) -> None:
    page = visit("policy.name=optimal&link.noise_std=1.0&budget.epsilon=5.0")
    slide(page, "budget.total_power", 0.45)
    design = settled(page, "budget.total_power")
    assert design.get("budget.total_power") == float(field(page, "budget.total_power"))
    assert 50 < design.get("budget.total_power") < 500
    shows(page, expected(design))
    assert "excludes the next device" in page.inner_text(".cards")

    track = knob(page, "fleet.num_devices").locator(".q-slider__track-container")
    track.focus()  # by keyboard
    for _ in range(5):
        page.keyboard.press("ArrowRight")
    page.wait_for_function("() => new URLSearchParams(location.search).get('fleet.num_devices') > 103")
    page.wait_for_timeout(2000)  # the last of the five may still be on its way
    computed(page)
    design = settled(page, "fleet.num_devices")
    shows(page, expected(design))

    typed(page, "fleet.peak_power", "20 dBm")
    design = design.change("fleet.peak_power", "20 dBm")
    shows(page, expected(design))

    knob(page, "budget.scope").get_by_text("whole training").click()
    design = design.change("budget.scope", "total")
    shows(page, expected(design))
    knob(page, "channel.model").locator(".q-field__control").click()
    page.get_by_role("option", name="cell").click()
    design = design.change("channel.model", "cell")
    shows(page, expected(design))
    assert knob(page, "channel.radius").is_visible()
    assert not knob(page, "channel.k_factor").is_visible()


def test_time_varying_policies_are_compared_without_the_map(visit: Callable[..., Page]) -> None:
    page = visit("tab=compare&channel.coherence_rounds=1&fleet.num_devices=20&policy.rounds=6")
    page.wait_for_selector("#policies tbody tr")
    assert page.locator("#policies tbody tr").count() == len(policies.POLICIES)
    page.wait_for_selector("text=equal rounds only")
    assert page.locator("#front").count() == 0
    typed(page, "channel.coherence_rounds", "")
    page.wait_for_selector("#front svg path[fill='var(--ink)']")
    assert page.locator("text=equal rounds only").count() == 0


def test_an_infeasible_scenario_shows_the_reason_instead_of_charts(visit: Callable[..., Page]) -> None:
    page = visit()
    typed(page, "budget.epsilon", "-1")
    shows(page, "budget.epsilon must be positive, got -1.0.")
    assert page.locator(".chart:visible").count() == 0
    typed(page, "budget.epsilon", "3")
    shows(page, expected(Design().change("budget.epsilon", 3.0)))
    page.wait_for_function("() => document.querySelectorAll('.cards .chart').length === 4")

    page = visit("channel.model=fixed&channel.gains=[0,0]&fleet.num_devices=")
    shows(page, "No plan fits: every device has gain 0, so none can reach the receiver.")
    typed(page, "channel.gains", "0, 0.5")
    page.wait_for_function("() => document.querySelector('#headline').textContent.startsWith('Schedule 1 of 2')")


def test_a_hostile_link_is_refused_with_a_message(visit: Callable[..., Page]) -> None:
    page = visit("learning.model=os:system")
    assert "learning.model must be one of cnn" in page.inner_text("#headline")
    page = visit("name=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E&budget.epsilon=%3Cimg+src%3Dx+onerror%3Dalert(1)%3E")
    assert "<img src=x" in page.inner_text("#headline")
    assert page.locator("img").count() == 0


def test_the_address_restores_the_design_and_visitors_are_independent(
    visit: Callable[..., Page],
) -> None:
    first, second = visit("link.noise_std=1.0"), visit("fleet.num_devices=50")
    slide(first, "budget.epsilon", 0.7)
    slide(second, "budget.epsilon", 0.2)
    mine, other = settled(first, "budget.epsilon"), settled(second, "budget.epsilon")
    shows(first, expected(mine))
    shows(second, expected(other))
    assert mine.get("budget.epsilon") != other.get("budget.epsilon")
    again = visit(urlsplit(first.url).query)
    shows(again, expected(mine))
    again.reload()
    shows(again, expected(mine))
    assert float(field(again, "budget.epsilon")) == mine.get("budget.epsilon")


def test_visitors_at_once_get_an_answer_each(visit: Callable[..., Page]) -> None:
    designs = [Design().change("fleet.num_devices", 20 + 7 * i).change("link.noise_std", 1.0) for i in range(4)]
    pages = [visit(design.query()) for design in designs]
    for number, (page, design) in enumerate(zip(pages, designs, strict=True)):
        shows(page, expected(design))
        typed(page, "budget.epsilon", str(3 + number))
    for number, (page, design) in enumerate(zip(pages, designs, strict=True)):
        shows(page, expected(design.change("budget.epsilon", float(3 + number))))


def test_a_request_without_a_web_socket_computes_nothing(server: Server) -> None:
    request = urllib.request.Request(f"{server.url}?{HEAVY}", headers=server.cookie)
    with urllib.request.urlopen(request, timeout=60) as response:
        assert "Planning …" in response.read().decode()
        assert "frame-ancestors 'none'" in response.headers["content-security-policy"]
    part = urllib.request.Request(f"{server.url}?{HEAVY}", headers={**server.cookie, "Sec-Fetch-Site": "cross-site"})
    nowhere = urllib.request.Request(f"{server.url}nowhere", headers=server.cookie)
    for request, status in ((part, "403"), (nowhere, "404"), (server.url, "401")):
        with pytest.raises(urllib.error.HTTPError, match=status) as refused:
            urllib.request.urlopen(request, timeout=60)
        assert "frame-ancestors 'none'" in refused.value.headers["content-security-policy"]
        refused.value.close()


def test_a_slow_design_is_replaced_by_a_fast_one_and_delays_no_other_visitor(visit: Callable[..., Page]) -> None:
    heavy = visit(HEAVY, wait=False)
    begun(heavy)
    shows(visit("budget.epsilon=4.5"), expected(Design().change("budget.epsilon", 4.5)))
    for key, value in (("fleet.num_devices", "40"), ("learning.total_steps", "20"), ("budget.epsilon", "6")):
        knob(heavy, key).locator("input").evaluate(
            "(field, value) => { field.value = value; field.dispatchEvent(new Event('input')) }", value
        )
    heavy.wait_for_function("() => document.querySelector('#headline').textContent.includes('of 40 devices')")


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGHUP, 143)], ids=["int", "hup and term"])
def test_a_signal_stops_the_server_during_a_computation(browser: Any, tmp_path: Path, number: int, code: int) -> None:
    with serving(tmp_path, end=number, code=code) as running:
        pages = [browser.new_page() for _ in range(4)]
        for page in pages:
            page.goto(f"{running.url}?{HEAVY}&token={running.token}", wait_until="domcontentloaded")
        for page in pages:
            begun(page)
        running.process.send_signal(number)
        assert running.process.wait(120) == code  # SIGHUP raises SIGTERM
        for page in pages:
            page.close()


def test_policies_sensitivities_and_front_are_compared(visit: Callable[..., Page]) -> None:
    design = "link.noise_std=1.0&budget.total_power=300.0&budget.epsilon=5.0"
    page = visit(f"tab=compare&{design}&policy.objective=bound&policy.name=optimal")
    page.wait_for_selector("#front svg path[fill='var(--ink)']")
    rows = page.locator("#policies tbody tr")
    assert rows.count() == sum(not policy.time_varying for policy in policies.POLICIES.values())
    design = from_query({"link.noise_std": "1.0", "budget.total_power": "300.0", "budget.epsilon": "5.0"})
    plan = policies.plan(design.scenario().problem())
    optimal = rows.filter(has_text="optimal")
    assert f"{plan.bound.total:.4g}" in optimal.inner_text()
    accuracies = [float(found) for found in re.findall(r"([\d.]+)%", page.inner_text("#policies tbody"))]
    assert accuracies == sorted(accuracies, reverse=True)
    assert re.search(r"watt: bound -.* ε: bound", page.inner_text("#sensitivities"))
    assert page.locator("#front path[fill='var(--ink)']").count() == 1  # the star
    page.wait_for_selector("#frontier svg path[stroke='var(--warn)']")
    assert page.locator("#frontier .chart").count() == 2
    assert "tab=compare" in page.url


def test_scenarios_are_loaded_saved_and_shown_as_a_command(visit: Callable[..., Page], tmp_path: Path) -> None:
    page = visit()
    design = Design().change("budget.epsilon", 7.5).change("channel.model", "rician").change("name", "loaded")
    page.click("#action-load")
    page.locator("textarea").last.fill("budget = 3")
    page.click("#use")
    page.wait_for_function("() => document.querySelector('#problem').textContent !== ''")
    page.locator("textarea").last.fill(design.scenario().to_toml())
    page.click("#use")
    shows(page, expected(design))
    assert float(field(page, "budget.epsilon")) == 7.5
    with page.expect_download() as download:
        page.click("#action-save")
    assert download.value.suggested_filename == "explored.toml"
    download.value.save_as(tmp_path / "saved.toml")
    assert scenario.load(tmp_path / "saved.toml").to_toml() == design.scenario().to_toml()
    page.click("#action-command")
    command = page.locator("textarea").last.input_value()
    head, *body, last = command.strip().split("\n")
    assert (head, last) == ("cat > explored.toml <<'EOF'", "airfed plan explored.toml")
    assert scenario.parse(tomllib.loads("\n".join(body[:-1]))) == design.scenario()


def test_the_page_works_by_keyboard_on_a_small_dark_screen(visit: Callable[..., Page]) -> None:
    page = visit("link.noise_std=1.0", viewport={"width": 390, "height": 844}, color_scheme="dark")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert page.evaluate("document.body.classList.contains('body--dark')")
    page.click("#theme")
    page.wait_for_function("() => document.body.classList.contains('body--light')")
    page.reload()
    page.wait_for_function("() => document.body.classList.contains('body--light')")
    computed(page)
    assert {"action-load", "action-save", "theme", "drawer"} <= tabbed(page, 24)
    assert not {"budget.epsilon", "budget.scope"} & tabbed(page, 24)  # the drawer is closed

    page.focus("#drawer")
    page.keyboard.press("Enter")
    page.wait_for_selector("#controls.opened")
    assert page.get_attribute("#drawer", "aria-expanded") == "true"
    assert {"budget.epsilon", "budget.scope", "budget.total_power"} <= tabbed(page, 40)
    page.keyboard.press("Escape")
    page.wait_for_function("() => !document.querySelector('#controls.opened')")


def tabbed(page: Page, times: int) -> set[str]:
    """The elements reached with the Tab key."""
    reached = set()
    for _ in range(times):
        page.keyboard.press("Tab")
        reached.add(page.evaluate("() => document.activeElement.closest('[data-key]')?.dataset.key ?? ''"))
        reached.add(page.evaluate("() => document.activeElement.id"))
    return reached


def test_on_a_phone_results_come_first_and_nothing_is_clipped(visit: Callable[..., Page]) -> None:
    page = visit("link.noise_std=1.0", viewport={"width": 390, "height": 844})
    strip = page.locator(".chart").first.bounding_box()
    assert strip["y"] + strip["height"] < 844  # the first picture is on the first screen
    for fact in page.locator(".fact").all():
        box = fact.bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= 390
    assert page.locator("#controls").is_hidden()
    page.click("#drawer")
    page.wait_for_selector("#controls.opened")
    typed(page, "budget.epsilon", "7")
    shows(page, expected(Design().change("link.noise_std", 1.0).change("budget.epsilon", 7.0)))
    assert page.locator("#headline").is_visible()


@pytest.mark.parametrize("width", [1280, 390])
def test_controls_of_several_antennas_fit_and_respond_to_the_keyboard(visit: Callable[..., Page], width: int) -> None:
    page = visit("link.antennas=2&fleet.num_devices=12&policy.name=optimal", viewport={"width": width, "height": 844})
    assert "against a server that keeps every antenna's signal" in page.inner_text("#headline")
    if width == 390:
        page.click("text=Controls")
    cut = page.evaluate(
        """() => [...document.querySelectorAll('.knob')].filter(row => row.offsetParent).flatMap(row => {
            const box = e => e.getBoundingClientRect();
            const inside = box(row), label = box(row.querySelector('.knob-label'));
            const parts = [...row.querySelectorAll('.knob-head > :not(.knob-label)')].map(box);
            const texts = [...row.querySelectorAll('.knob-select .q-field__native span, .knob-field input')];
            return parts.some(p => p.right > inside.right + 1 || (p.left < label.right - 1 && p.top < label.bottom - 6))
                || texts.some(e => e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 0)
                || texts.some(e => e.tagName === 'INPUT' && e.value && e.clientWidth < 20) ? [row.dataset.key] : []})"""
    )
    assert cut == []
    slider = knob(page, "link.antennas").locator(".q-slider__track-container")
    slider.focus()
    for key in ("ArrowRight", *["PageUp"] * 10):  # each of these is ten of a thousand positions
        page.keyboard.press(key)
    page.wait_for_function("() => Number(new URLSearchParams(location.search).get('link.antennas')) > 2")
    computed(page)
    assert int(field(page, "link.antennas")) > 2


def test_every_heading_of_the_side_bar_is_visible(visit: Callable[..., Page]) -> None:
    page = visit(viewport={"width": 1280, "height": 800})
    page.wait_for_function(
        "() => { const boxes = [...document.querySelectorAll('#controls .group > * > .q-item')]"
        ".map(heading => heading.getBoundingClientRect());"
        " return boxes.length === 4 && boxes.every(box => box.top >= 0 && box.bottom <= innerHeight) }"
    )
    page.click("#controls .group .q-item:has-text('Policy')")
    page.wait_for_function(
        "() => { const box = document.querySelector('[data-key=\"policy.name\"]').getBoundingClientRect();"
        " return box.height > 0 && box.bottom < innerHeight }"
    )
    page.click("#action-load")
    page.wait_for_function("() => document.querySelector('.sheet textarea')?.clientWidth > 500")


def test_markup_in_a_run_is_shown_as_text_and_inline_scripts_are_blocked(browser: Any, tmp_path: Path) -> None:
    evil = "<img src=x onerror=window.hit=1>"
    for name, plan in (("bad", {"num_scheduled": evil, "rounds": evil, "policy": evil}), (evil, {})):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        (folder / "run.json").write_text(json.dumps({"format": 2, "name": evil}))
        (folder / "plan.json").write_text(json.dumps(plan))
        (folder / "metrics.jsonl").write_text(json.dumps({"round": evil}) + "\n")
        (folder / "ledger.jsonl").write_text(evil + "\n")
        (folder / "scenario.toml").write_text(f'name = "{evil}"\n')
    with serving(tmp_path) as running:
        page = browser.new_page()
        page.set_default_timeout(TIMEOUT)
        page.goto(f"{running.url}?tab=runs&name={quote(evil)}&token={running.token}")
        page.wait_for_function("() => document.querySelectorAll('#runs .run').length === 2")
        assert page.locator("#runs .run.bad").count() == 2
        assert evil in page.inner_text("#runs")
        assert page.locator("img").count() == 0
        # Even unescaped markup could not run: the browser blocks scripts without the nonce.
        blocked = """() => new Promise(resolve => {
            document.addEventListener('securitypolicyviolation', event => resolve(event.effectiveDirective));
            document.body.insertAdjacentHTML('beforeend', '<img src=x onerror=window.hit=1>');
        })"""
        assert page.evaluate(blocked) == "script-src-attr"
        assert page.evaluate("window.hit") is None
        page.close()


def train_two(loaded: scenario.Scenario, folder: Path, *, resume: bool) -> None:
    done: list[object] = []
    execute(loaded, folder, resume=resume, on_round=done.append, stop=lambda: len(done) >= 2)


def test_a_run_on_disk_is_followed_and_commands_train_and_resume(visit: Callable[..., Page], server: Server) -> None:
    page = visit("tab=runs&budget.epsilon=7.5")
    page.click("#train")
    command = page.locator("textarea").last.input_value()
    assert command.endswith("\nairfed run explored.toml --out runs/explored\n")
    assert "epsilon = 7.5" in command
    page.keyboard.press("Escape")

    tables = tomllib.loads(Path(__file__).parents[1].joinpath("tiny.toml").read_text(encoding="utf-8"))
    loaded = scenario.parse(tables).override({"policy.rounds": 6})
    page.click("text=Runs")
    for rounds in (2, 4):  # interrupted twice
        train_two(loaded, server.runs / "tiny", resume=rounds > 2)
        page.wait_for_function(
            "text => document.querySelector('#runs').textContent.includes(text)", arg=f"{rounds} of 6 rounds · stopped"
        )
    page.wait_for_function("() => document.querySelectorAll('#curves .chart:not(.hidden) svg').length === 3")
    assert re.search(r"tiny\s+4\s", page.inner_text("#ledger"))
    page.click("[aria-label='Command that resumes tiny']")
    page.wait_for_function(
        "() => document.querySelector('textarea')?.value === "
        "'airfed run runs/tiny/scenario.toml --out runs/tiny --resume\\n'"
    )


def test_another_host_requires_the_printed_token(tmp_path: Path) -> None:
    with serving(tmp_path, "--host", "0.0.0.0") as running:
        token = running.token
        assert len(token) >= 32
        port = urlsplit(running.url).port
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=120)
        opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        with opener.open(f"http://127.0.0.1:{port}/?token={token}", timeout=120) as response:
            assert "airfed explore" in response.read().decode()
            assert "token" not in response.url


def test_a_busy_port_and_a_missing_scenario_are_usage_errors(server: Server, tmp_path: Path) -> None:
    def explore(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "airfed", "explore", "--no-browser", *arguments]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=120)

    busy = explore("--port", str(urlsplit(server.url).port))
    assert busy.returncode == 2
    assert "Choose another --port" in busy.stderr
    missing = explore("none.toml")
    assert missing.returncode == 2
    assert "there is no such file" in missing.stderr
