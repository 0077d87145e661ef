"""The page that shows an answer round by round: its events, its files, and itself in a browser."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from types import SimpleNamespace

import httpx
import pytest
from tests.serve.http.conftest import QUESTIONS, running

from dspine.decode.engine import Engine
from dspine.decode.records import Completion, Update
from dspine.decode.sampling import SamplingParams
from dspine.decode.vocabulary import Vocabulary
from dspine.serve.http.inspection import Lane
from dspine.serve.http.limits import Limits
from dspine.serve.http.thread import Step
from dspine.target.chat import render


@pytest.fixture(scope="module")
def page(target, make_engine) -> Iterator[str]:
    """Address of a server with the page."""
    plain = Engine(target, max_batch=1)
    with running(target, make_engine(max_batch=2), Limits(slots=2, max_tokens=256), plain=plain) as it:
        yield it.url


def events(url: str, **asked) -> list[dict]:
    response = httpx.post(f"{url}/inspect/answer", json=asked, timeout=60)
    assert response.status_code == 200, response.text
    return [json.loads(line.removeprefix("data: ")) for line in response.text.splitlines() if line]


def test_the_events_tell_the_engines_answer(page, target, make_engine):
    prompt = render(target, [{"role": "user", "content": QUESTIONS[2]}])
    [wanted] = make_engine(max_batch=1).generate([prompt], SamplingParams(max_new_tokens=40))
    *told, end = events(page, prompt=QUESTIONS[2], max_tokens=40)
    assert end == {"end": True, "same": True}
    for name in ("main", "plain"):
        mine = [each for each in told if each["lane"] == name]
        text = "".join(token["text"] for each in mine for token in each["tokens"])
        assert text.startswith(wanted.text)
        assert sum(len(each["tokens"]) for each in mine) == len(wanted.token_ids)
        clock = [each["seconds"] for each in mine]
        assert clock == sorted(clock)
        assert mine[-1]["finish"] == wanted.finish_reason
    rounds = [each for line in told if line["lane"] == "main" for each in line["rounds"]]
    assert [(each["proposed"], each["kept"]) for each in rounds] == [(r.proposed, r.kept) for r in wanted.rounds]
    marks = {token["kind"] for line in told if line["lane"] == "plain" for token in line["tokens"]}
    assert marks == {"first", "plain"}


def test_sampled_and_alone(page):
    *told, end = events(page, prompt="Hello", temperature=0.9, seed=4, max_tokens=6, plain=False)
    assert end["same"] is None
    assert {each["lane"] for each in told} == {"main"}


def test_metrics_are_of_what_is_served_and_not_of_what_stands_beside_it(target, make_engine):
    with running(target, make_engine(max_batch=1), Limits(slots=1), plain=Engine(target, max_batch=1)) as it:
        *told, _ = events(it.url, prompt=QUESTIONS[2], max_tokens=40)
        text = httpx.get(f"{it.url}/metrics").text
    rounds = [each for line in told if line["lane"] == "main" for each in line["rounds"]]
    assert len({line["lane"] for line in told}) == 2
    assert f"dspine_rounds_total {float(len(rounds))}\n" in text
    assert f"dspine_kept_tokens_total {float(sum(each['kept'] for each in rounds))}\n" in text
    assert "dspine_answer_seconds_count 1.0\n" in text


def test_a_character_that_is_never_whole_is_shown_as_the_answer_shows_it(target):
    [first, second] = target.tokenizer.encode("\N{SNOWMAN}", add_special_tokens=False)[:2]
    service = SimpleNamespace(target=target, vocabulary=Vocabulary(target.tokenizer))
    lane = Lane(service, "main")  # type: ignore[arg-type]  it asks for no more
    done = Completion(0, (1,), (first, second), "", "length", ())
    told = [
        lane.told(Step(Update(0, "", (first,)), 0.1, 0)),
        lane.told(Step(Update(0, "", (second,), completion=done), 0.2, 0)),
    ]
    text = "".join(token["text"] for each in told for token in each["tokens"])
    assert text == target.tokenizer.decode([first, second]) == "\ufffd"


def test_files(page):
    for name, kind in (("", "text/html"), ("inspect.js", "text/javascript"), ("inspect.css", "text/css")):
        response = httpx.get(f"{page}/inspect/{name}")
        assert response.headers["content-type"].startswith(kind)
        assert "default-src 'self'" in response.headers["content-security-policy"]
        assert "http://" not in response.text
    assert httpx.get(f"{page}/inspect/../service.py").status_code == 404
    assert httpx.get(page, follow_redirects=True).url.path == "/inspect/"
    assert httpx.get(f"{page}/inspect/info").json()["target"] == "nano"


def test_refusals(page):
    for asked in ({"prompt": ""}, {"prompt": "x", "max_tokens": 257}, {"prompt": "x", "n": 2}):
        assert httpx.post(f"{page}/inspect/answer", json=asked).status_code == 400


def test_with_a_key_the_pages_files_alone_need_none(target, make_engine):
    plain = Engine(target, max_batch=1)
    with running(target, make_engine(max_batch=1), Limits(slots=1), key="secret", plain=plain) as it:
        for path in ("/", "/inspect", "/inspect/", "/inspect/inspect.js", "/inspect/inspect.css"):
            assert httpx.get(it.url + path).status_code in (200, 307), path
        for path in ("/inspect/info", "/inspect/other", "/inspect//info", "/v1/models"):
            assert httpx.get(it.url + path).status_code == 401, path
        asked, key = {"prompt": "Hello", "max_tokens": 2}, {"Authorization": "Bearer secret"}
        assert httpx.post(f"{it.url}/inspect/answer", json=asked).status_code == 401
        assert httpx.post(f"{it.url}/inspect/answer", json=asked, headers=key).status_code == 200
        assert httpx.get(f"{it.url}/inspect/info", headers=key).status_code == 200


def test_without_it_there_is_no_page(server):
    assert httpx.get(f"{server.url}/inspect/").status_code == 404


@pytest.fixture
def browser(tmp_path):
    """Headless Chromium."""
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium is not installed: pip install 'dspine[browser]'"
    )
    chromium, driver = shutil.which("chromium"), shutil.which("chromedriver")
    if chromium is None or driver is None:
        pytest.skip("no chromium here; Debian's packages are chromium and chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = chromium
    quiet = ("gpu", "quic", "background-networking", "component-update", "sync")
    for word in ("headless", "no-sandbox", "no-first-run", *(f"disable-{each}" for each in quiet)):
        options.add_argument(f"--{word}")
    options.add_argument(f"--user-data-dir={tmp_path}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    it = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    yield it
    it.quit()


@pytest.mark.slow
def test_a_length_that_the_server_does_not_give_is_not_asked_for(target, make_engine, browser):
    from selenium.webdriver.support.ui import WebDriverWait

    with running(target, make_engine(max_batch=1), Limits(slots=1, max_tokens=9), plain=Engine(target)) as it:
        browser.get(it.url)
        field = browser.find_element("id", "max")
        WebDriverWait(browser, 60).until(lambda _: field.get_attribute("max") == "9")
        assert field.get_attribute("value") == "9"
        browser.find_element("id", "run").click()
        status = browser.find_element("id", "status")
        WebDriverWait(browser, 60).until(lambda _: status.text.startswith("Done"))


@pytest.mark.slow
def test_the_page_asks_for_the_key(target, make_engine, browser):
    from selenium.webdriver.support.ui import WebDriverWait

    plain = Engine(target, max_batch=1)
    with running(target, make_engine(max_batch=1), Limits(slots=1), key="secret", plain=plain) as it:
        browser.get(f"{it.url}/inspect/")
        field, status = browser.find_element("id", "key"), browser.find_element("id", "status")
        WebDriverWait(browser, 60).until(lambda _: field.is_displayed())
        assert "the API key is missing or wrong" in status.text
        field.send_keys("secret\t")
        WebDriverWait(browser, 60).until(lambda _: status.text == "")
        assert browser.find_element("id", "facts").text.startswith("nano")
        browser.find_element("id", "run").click()
        WebDriverWait(browser, 60).until(lambda _: status.text.startswith("Done"))


@pytest.mark.slow
@pytest.mark.parametrize("width", [1200, 360])
def test_in_a_browser(page, browser, width):
    from selenium.webdriver.support.ui import WebDriverWait

    def text(selector: str) -> str:
        return browser.find_element("css selector", selector).text

    browser.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride", {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    )
    browser.get(page)
    browser.find_element("id", "prompt").clear()
    browser.find_element("id", "prompt").send_keys(QUESTIONS[2])
    browser.find_element("id", "run").click()
    WebDriverWait(browser, 60).until(lambda _: text("#status").startswith("Done"))
    assert text("#status") == "Done. Both answers are the same, token for token."
    *told, _ = events(page, prompt=QUESTIONS[2], max_tokens=128)
    mine = [each for each in told if each["lane"] == "main"]
    for kind in ("first", "accepted", "corrected", "bonus", "plain"):
        wanted = sum(token["kind"] == kind for each in mine for token in each["tokens"])
        assert len(browser.find_elements("css selector", f"#answer-main .{kind}")) == wanted
    assert len(browser.find_elements("css selector", "#answer-main .round")) == len(mine)
    rounds = [each for line in mine for each in line["rounds"]]
    assert text("#tau") == f"{sum(r['kept'] for r in rounds) / len(rounds):.2f}"
    first = browser.find_element("css selector", "#places tbody tr").text
    reached = sum(r["reached"] >= 1 for r in rounds)
    assert f"{sum(r['landed'] >= 1 for r in rounds)} of {reached}" in first
    assert float(text("#speed-main")) > 0
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.get_log("browser") == []
