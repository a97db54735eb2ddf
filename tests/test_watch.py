"""`cobo watch`: the page of runs while they go on, for those who may see it, and nothing written where it reads."""

import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
from contextlib import closing, contextmanager
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import blobs
from safetensors.numpy import load_file

import cobo
from cobo.errors import ConfigError
from cobo.report import summary
from cobo.report.watch import Now, now
from cobo.report.watch.going import read_going
from cobo.report.watch.server import Server, is_loopback

TOKEN = "a-token-of-our-own"


@pytest.fixture(autouse=True)
def _no_pause(monkeypatch):
    monkeypatch.setattr(now, "PAUSE", 0.0)
    monkeypatch.setattr(now, "SHARE", 0.0)


def look(folder: Path) -> Now:
    return Now(folder, lambda runs: summary.summarise_runs(runs, [], "test", None))


@contextmanager
def serving(folder: Path, host: str = "127.0.0.1", port: int = 0, token: str | None = None):
    with Server(look(folder), host, port, token) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def ask(server: Server, path: str = "/", method: str = "GET", **headers: str) -> tuple[int, dict[str, str], str]:
    with closing(http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=60)) as connection:
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return answer.status, dict(answer.getheaders()), answer.read().decode()


class Killed(BaseException):
    """As if the process had ended."""


def fitted(out: Path, *, until: int | None = None, **options) -> None:
    """A run of ten rounds, evaluated in every second; or what is left of one that ends before its end."""

    def stop(event: dict) -> None:
        if event["event"] == "round" and event["round"] == until:
            raise Killed

    clients = [blobs(name, seed=k, flip=k % 2 == 1, group=k % 2) for k, name in enumerate("abcd")]
    options = {"method": cobo.CoBo(), "rounds": 10, "evaluate_every": 2, "listeners": [stop], **options}
    try:
        cobo.fit(clients, model=lambda: torch.nn.Linear(2, 2), lr=0.1, out=out, **options)
    except Killed:
        return


def written(folder: Path) -> dict[str, tuple[int, int]]:
    paths = [folder, *folder.rglob("*")]
    return {str(path): (path.stat().st_mtime_ns, path.stat().st_size) for path in paths}


# What it reads


def test_a_run_that_goes_on_is_shown_as_far_as_it_has_come(tmp_path):
    fitted(tmp_path / "cobo" / "seed-0", until=7)
    (going,), _ = read_going(tmp_path)
    assert (going.method, going.seed, going.state, going.round, going.rounds) == ("cobo", 0, "going on", 6, 10)
    lines = [json.loads(line) for line in (tmp_path / "cobo" / "seed-0" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in going.run["history"]] == [line["round"] for line in lines] == [0, 2, 4, 6]
    assert going.run["history"][-1]["client_accuracy"] == [lines[-1]["clients"][name]["accuracy"] for name in "abcd"]
    recorded = load_file(tmp_path / "cobo" / "seed-0" / "weights.safetensors")["weights"]
    np.testing.assert_array_equal(np.array(going.run["weights"], dtype=np.float32), recorded[-1])
    data = look(tmp_path).data()
    assert data["finding"].startswith("So far: CoBo found ")
    assert data["scores"].startswith("Accuracy so far")
    assert data["table"]["rows"][0]["going"]
    assert [run["round"] for run in data["runs"]] == [6]
    assert data["runs"][0]["graph"]["rounds"] == list(range(7))
    fitted(tmp_path / "cobo" / "seed-0", resume=True)
    data = look(tmp_path).data()
    assert data["finding"].startswith("CoBo found ")
    assert data["live"] == {"runs": [], "finished": 1}


def test_a_run_looks_the_same_going_on_and_finished(tmp_path):
    fitted(tmp_path)
    finished = look(tmp_path).data()
    (tmp_path / "result.json").unlink()
    going = look(tmp_path).data()
    assert going["runs"] == finished["runs"]
    assert going["curves"] == finished["curves"]
    assert going["settings"] == finished["settings"]


def test_who_left_is_known_while_it_goes_on(tmp_path):
    roster = cobo.Roster(changes=[{"round": 3, "leave": "b"}])
    fitted(tmp_path, until=7, roster=roster)
    (going,), _ = read_going(tmp_path)
    assert going.run["present"] == ["a", "c", "d"]
    assert going.run["changes"] == [{"round": 3, "left": ["b"]}]


def test_seeds_that_go_on_do_not_change_the_row_of_those_that_are_finished(tmp_path):
    fitted(tmp_path / "cobo" / "seed-0")
    alone = look(tmp_path).data()
    fitted(tmp_path / "cobo" / "seed-1", until=5, seed=1)
    both = look(tmp_path).data()
    assert both["table"] == alone["table"]
    assert both["curves"] == alone["curves"]
    assert [(run["seed"], run["round"]) for run in both["runs"]] == [(0, 10), (1, 4)]
    assert [run["label"] for run in both["live"]["runs"]] == ["cobo seed 1"]


@pytest.mark.parametrize("unfinished", ["local", "oracle", "cobo"])
def test_nobody_is_compared_with_a_run_that_goes_on(tmp_path, unfinished):
    methods = {"local": cobo.Local(), "cobo": cobo.CoBo(), "oracle": cobo.Oracle()}
    for name, method in methods.items():
        fitted(tmp_path / name / "seed-0", method=method, until=3 if name == unfinished else None)
    data = look(tmp_path).data()
    heads = data["table"]["heads"]
    cells = {row["cells"][0]: dict(zip(heads, row["cells"], strict=True)) for row in data["table"]["rows"]}
    assert {name: row["recovery %"] for name, row in cells.items()} == dict.fromkeys(methods, "-")
    compared = {name for name, row in cells.items() if row["improved %"] != "-"}
    assert compared == {"local": set(), "oracle": {"cobo"}, "cobo": {"oracle"}}[unfinished]
    assert ("better off than alone" in data["finding"]) == (unfinished == "oracle")
    assert data["finding"].startswith("So far: ") == (unfinished == "cobo")
    assert data["scores"].startswith("Accuracy so far, %: CoBo ")
    assert [row["cells"][0] for row in data["table"]["rows"] if row["going"]] == [unfinished]
    assert any(row["best"] for row in data["table"]["rows"]) == (unfinished == "oracle")
    assert {run["method"] for run in data["runs"] if run["alone"]} == compared
    fitted(tmp_path / unfinished / "seed-0", method=methods[unfinished], resume=True)
    data = look(tmp_path).data()
    assert data["scores"].startswith("Accuracy in the end")
    assert {run["method"] for run in data["runs"] if run["alone"]} == {"cobo", "oracle"}
    assert any(row["best"] for row in data["table"]["rows"])


def test_before_there_is_a_w_the_page_says_how_far_it_is(tmp_path):
    fitted(tmp_path, until=1)
    assert look(tmp_path).data()["finding"] == "So far: CoBo is at round 0 of 10."


def test_a_method_may_be_there_twice_and_what_is_no_seed_is_left_alone(tmp_path):
    for name, until in (("cobo-a", 5), ("cobo-b", 7), ("cobo-c", None)):
        fitted(tmp_path / name / "seed-0", until=until)
    shutil.copytree(tmp_path / "cobo-c" / "seed-0", tmp_path / "cobo-c" / "seed-0.bak")
    shutil.copytree(tmp_path / "cobo-a" / "seed-0", tmp_path / "cobo-a" / "seed-1 (copy)")
    assert [(going.method, going.seed, going.round) for going in read_going(tmp_path)[0]] == [
        ("cobo-a", 0, 4), ("cobo-b", 0, 6)
    ]  # fmt: skip
    assert summary.read_unfinished(tmp_path) == ["cobo-a seed-0", "cobo-b seed-0"]
    data = look(tmp_path).data()
    assert [(run["method"], run["seed"], run["round"]) for run in data["runs"]] == [
        ("cobo-a", 0, 4), ("cobo-b", 0, 6), ("cobo-c", 0, 10)
    ]  # fmt: skip


def test_an_empty_folder_is_waited_for_and_a_folder_of_folders_said(tmp_path):
    for folder in (tmp_path, tmp_path / "not there yet"):
        assert look(folder).data()["finding"] == "Waiting for the first evaluation of a run"
    fitted(tmp_path / "rho=1" / "cobo" / "seed-0", until=3)
    assert look(tmp_path).data()["notes"] == ["There are folders of runs in it; watch one of them: rho=1."]
    fitted(tmp_path / "local" / "seed-0", until=1, method=cobo.Local())
    data = look(tmp_path).data()
    assert data["live"]["runs"][0]["label"] == "local seed 0"


def test_what_cannot_be_read_is_said_and_mends_itself(tmp_path):
    fitted(tmp_path, until=7)
    metrics = tmp_path / "metrics.jsonl"
    whole = metrics.read_bytes()
    watched = look(tmp_path)
    metrics.write_bytes(b"{\n" + whole)
    assert "is damaged in line 1" in watched.data()["notes"][0]
    metrics.write_bytes(whole[:-20])  # a line that is just being written
    assert watched.data()["runs"][0]["round"] == 4
    metrics.write_bytes(whole)
    assert watched.data()["runs"][0]["round"] == 6


def test_a_run_that_cannot_be_read_does_not_hide_the_others(tmp_path):
    fitted(tmp_path / "cobo" / "seed-0")
    shutil.copytree(tmp_path / "cobo" / "seed-0", tmp_path / "ditto" / "seed-0")
    (tmp_path / "ditto" / "seed-0" / "result.json").unlink()
    events = tmp_path / "ditto" / "seed-0" / "events.jsonl"
    events.write_text('{"event": "started", "round": 0, "rounds": 10, "run": "of another version"}\n')
    data = look(tmp_path).data()
    assert [run["method"] for run in data["runs"]] == ["cobo"]
    (note,) = [note for note in data["notes"] if "cannot be read" in note]
    assert note.startswith(f"{events.parent} cannot be read: TypeError: ")


def test_a_result_that_is_none_is_said_and_read_once(tmp_path, monkeypatch):
    fitted(tmp_path)
    (tmp_path / "result.json").write_text("{}")
    watched, read = look(tmp_path), []
    monkeypatch.setattr(now, "read_runs", lambda folder: read.append(folder) or summary.read_runs(folder))
    for _ in range(3):
        (note,) = watched.data()["notes"]
    assert note.endswith("result.json cannot be read: there is no history in it; run that method and seed again")
    assert len(read) == 1


def test_any_mistake_is_said_and_waited_after(tmp_path, monkeypatch):
    monkeypatch.setattr(now, "PAUSE", 1000.0)
    fitted(tmp_path)
    facts = json.loads((tmp_path / "result.json").read_text())
    (tmp_path / "result.json").write_text(json.dumps({key: facts[key] for key in ("history", "method", "training")}))
    watched = look(tmp_path)
    assert watched.data()["finding"] == "This cannot be read"
    assert watched.data()["notes"][0].startswith("KeyError: ")
    monkeypatch.setattr(watched, "_fingerprint", lambda: pytest.fail("this is too soon"))
    watched.data()


@pytest.mark.parametrize(("error", "silent"), [(BrokenPipeError(), True), (TimeoutError(), True), (KeyError(), False)])
def test_only_a_browser_that_went_away_is_no_news(tmp_path, monkeypatch, capfd, error, silent):
    def fail() -> dict:
        raise error

    with serving(tmp_path) as server:
        monkeypatch.setattr(server.now, "data", fail)
        with pytest.raises((http.client.HTTPException, ConnectionError)):
            ask(server)
    assert ("Traceback" not in capfd.readouterr().err) == silent


def test_reading_leaves_a_run_as_it_is(tmp_path):
    fitted(tmp_path / "cobo" / "seed-0", until=7)
    before = written(tmp_path)
    with serving(tmp_path) as server:
        assert ask(server)[0] == 200
        assert ask(server, "/data")[0] == 200
    assert written(tmp_path) == before


def test_a_reading_that_takes_long_is_seldom_repeated(tmp_path, monkeypatch):
    clock = {"monotonic": 0.0, "thread_time": 0.0}
    for name in clock:
        monkeypatch.setattr(now.time, name, lambda name=name: clock[name])
    monkeypatch.setattr(now, "PAUSE", 1.0)
    monkeypatch.setattr(now, "SHARE", 20)
    watched, read = look(tmp_path), []

    def slow() -> dict:
        read.append(clock["monotonic"])
        clock["thread_time"] += 0.5
        (tmp_path / "events.jsonl").write_text("\n" * len(read))  # there always is something new
        return {}

    monkeypatch.setattr(watched, "_read", slow)
    for tenth in range(301):
        clock["monotonic"] = tenth / 10
        watched.data()
    assert read == [0.0, 10.0, 20.0, 30.0]


# Who may see it


def test_only_what_is_new_is_sent(tmp_path):
    fitted(tmp_path / "cobo" / "seed-0", until=7)
    with serving(tmp_path) as server:
        first = json.loads(ask(server, "/data")[2])
        assert ask(server, f"/data?since={first['version']}")[0] == 204
        fitted(tmp_path / "cobo" / "seed-0", resume=True)
        status, _, text = ask(server, f"/data?since={first['version']}")
        assert status == 200
        assert json.loads(text)["live"]["finished"] == 1


def test_only_get_and_only_the_page_and_its_data(tmp_path):
    (tmp_path / "secret.txt").write_text("secret")
    with serving(tmp_path) as server:
        for method in ("POST", "PUT", "DELETE", "HEAD", "OPTIONS"):
            assert ask(server, method=method)[0] == 501
        for path in ("/secret.txt", "/../secret.txt", "//secret.txt", "/data/..", "/%2e%2e/secret.txt"):
            status, _, text = ask(server, path)
            assert (status, text) == (404, "There is nothing here.\n")
        with closing(socket.create_connection(("127.0.0.1", server.server_port), timeout=60)) as connection:
            connection.sendall(b"GET http://[/ HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert connection.recv(100).startswith(b"HTTP/1.1 404")


def test_the_page_may_run_its_own_script_only_and_ask_its_own_server_only(tmp_path):
    with serving(tmp_path) as server:
        _, headers, text = ask(server)
    (policy,) = re.findall(r'Content-Security-Policy" content="([^"]*)"', text)
    assert re.fullmatch(
        r"default-src 'none'; script-src 'sha256-\S+'; style-src 'sha256-\S+'; img-src data:; connect-src 'self'",
        policy,
    )
    assert headers["Content-Security-Policy"] == "frame-ancestors 'none'"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Cache-Control"] == "no-store"
    assert "Python" not in headers["Server"]


def test_a_page_from_elsewhere_cannot_read_it_under_a_name_of_its_own(tmp_path):
    with serving(tmp_path) as server:
        for name in ("localhost", "localhost:9", "127.0.0.1:80", "[::1]:1", "127.0.0.1"):
            assert ask(server, Host=name)[0] == 200
        strange = ("", "[", "[::1", "[localhost]", "]")
        for name in (
            "evil.example",
            f"evil.example:{server.server_port}",
            "localhost.evil.example",
            "192.168.0.1",
            *strange,
        ):
            assert ask(server, Host=name)[0] == 403
            assert ask(server, "/data", Host=name)[0] == 403


def test_with_a_token_nobody_sees_anything_without_it(tmp_path):
    with serving(tmp_path, token=TOKEN) as server:
        assert server.url.endswith(f"/?token={TOKEN}")
        for path in ("/", "/data", "/?token=", "/?token=wrong", f"/data?token={TOKEN}x", "/nothing"):
            status, headers, text = ask(server, path)
            assert (status, "Set-Cookie" in headers) == (403, False)
            assert "version" not in text
        status, headers, _ = ask(server, f"/?token={TOKEN}")
        assert (status, headers["Location"]) == (303, "/")
        cookie = headers["Set-Cookie"]
        assert "HttpOnly" in cookie
        assert "SameSite" in cookie
        brought = cookie.partition(";")[0]
        assert ask(server, Cookie=brought)[0] == 200
        assert ask(server, "/data", Cookie=brought)[0] == 200
        for wrong in (brought[:-1], brought + "x", "cobo-watch=" + TOKEN, '"\\', "é"):
            assert ask(server, Cookie=wrong)[0] == 403


def test_other_addresses_than_this_computers_need_a_token_and_have_one_made(tmp_path):
    for host in ("127.0.0.1", "localhost", "::1", "[::1]", "127.8.8.8"):
        assert is_loopback(host)
    for host in ("0.0.0.0", "::", "10.0.0.1", "example.org", "localhost.example.org", "", "127.0.0.1.example.org"):
        assert not is_loopback(host)
    tokens = set()
    for _ in range(2):
        with serving(tmp_path, host="0.0.0.0") as server:
            tokens.add(server.token)
            assert len(server.token) >= 32
            assert ask(server)[0] == 403
            assert ask(server, "/data")[0] == 403
    assert len(tokens) == 2
    for token in ("short", "sixteen letters;", "sixteen-letters-é", "a-token-of-our-own\n", "a token of our own"):
        with pytest.raises(ConfigError, match="--token should have at least 16 characters, all of them letters"):
            Server(look(tmp_path), "0.0.0.0", 0, token)


def test_a_port_that_is_taken_is_one_line(tmp_path):
    with closing(socket.create_server(("127.0.0.1", 0))) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match=rf"cannot listen on 127.0.0.1 port {port}: .*; choose another --port"):
            Server(look(tmp_path), "127.0.0.1", port, None)
    with pytest.raises(ConfigError, match=r"cannot listen on no\.such\.address\.invalid"):
        Server(look(tmp_path), "no.such.address.invalid", 0, TOKEN)


# Real processes, a real browser


@contextmanager
def process(*arguments: str, **options):
    """One of `cobo`, which does not outlive its test."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "cobo", *arguments]
    with subprocess.Popen(command, env=environment, text=True, **options) as running:
        try:
            yield running
        finally:
            running.kill()


@contextmanager
def running(folder: Path, *more: str):
    """A run that is not over before it is stopped: an evaluation in every tenth round, W in every 25th."""
    endless = ("--rounds", "5000", "--set", "evaluate_every=10", "--out", str(folder), *more)
    with process("run", "digits", *endless, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as found:
        yield found


PATIENCE = 120_000  # milliseconds
ROUND = "() => Number(byId('going').textContent.match(/round ([\\d,]+) of/)?.[1].replace(/,/g, '') ?? -1)"


def wait_for(page, condition: str, argument=None) -> None:
    page.wait_for_function(condition, arg=argument, timeout=PATIENCE, polling=50)


@pytest.mark.slow
def test_the_page_follows_a_run_through_kill_and_resume_and_keeps_what_the_reader_chose(tmp_path, browser):
    folder, complaints = tmp_path / "runs", []
    page = browser.new_page()
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("console", lambda message: complaints.append(message.text))
    with process("watch", str(folder), "--port", "0", stdout=subprocess.PIPE) as server:
        address = re.search(r"http://127.0.0.1:(\d+)/", server.stdout.readline())
        page.goto(address[0])
        assert page.locator("h1").inner_text() == "Waiting for the first evaluation of a run"
        assert not page.locator("main").is_visible()
        with running(folder) as run:
            wait_for(page, f"() => ({ROUND})() >= 40 && state.run?.graph?.rounds.length > 2")
            assert page.locator("h1").inner_text().startswith("So far: CoBo")
            page.locator("#slider").press("Home")
            page.locator("#slider").press("ArrowRight")
            page.locator("#clients th button", has_text="group found").click()
            page.locator("#curves-data summary").click()
            page.locator("#axis").select_option("gradients")
            page.locator("#clients th button", has_text="group found").focus()
            chosen = page.evaluate("state.run.graph.rounds[state.at]")
            seen = page.evaluate(ROUND)
            wait_for(page, f"seen => ({ROUND})() > seen + 20", seen)
            run.send_signal(signal.SIGKILL)
            run.wait()
        killed_at = json.loads((folder / "cobo" / "seed-0" / "metrics.jsonl").read_text().splitlines()[-1])["round"]
        wait_for(page, f"round => ({ROUND})() === round", killed_at)
        assert page.evaluate("state.run.graph.rounds[state.at]") == chosen
        assert page.locator("#clients th", has_text="group found").get_attribute("aria-sort") == "descending"
        assert page.evaluate("document.activeElement.textContent") == "group found"
        assert page.locator("#axis").input_value() == "gradients"
        assert page.locator("#curves-data table").count() == 1
        with running(folder, "--resume") as run:
            wait_for(page, f"round => ({ROUND})() > round", killed_at)
            run.send_signal(signal.SIGINT)
            assert run.wait(timeout=PATIENCE / 1000) == 130
        wait_for(page, "() => byId('going').textContent.includes('stopped')")
        assert complaints == []
        server.send_signal(signal.SIGINT)
        assert server.wait(timeout=PATIENCE / 1000) == 0
    wait_for(page, "() => byId('link').textContent === 'Nobody answers; trying again.'")
    with serving(folder, port=int(address[1])):
        wait_for(page, "() => byId('link').textContent === 'Live'")
    assert {"ERR_CONNECTION_REFUSED" in text for text in complaints} <= {
        True
    }  # the browser's own, of a server that is down
    page.close()


@pytest.mark.slow
def test_with_a_token_the_printed_address_opens_the_page_and_the_page_goes_on_by_itself(tmp_path, browser):
    fitted(tmp_path, until=5)
    with serving(tmp_path, host="0.0.0.0") as server:
        page = browser.new_page()
        page.goto(f"http://127.0.0.1:{server.server_port}/?token={server.token}")
        assert "token" not in page.url
        assert page.locator("h1").inner_text().startswith("So far: CoBo")
        fitted(tmp_path, resume=True)
        wait_for(page, "() => byId('going').textContent === '1 run finished'")
        assert page.locator("h1").inner_text().startswith("CoBo found")
        page.close()


@pytest.mark.slow
def test_a_mistake_in_drawing_and_a_server_in_trouble_are_not_said_to_be_silence(tmp_path, browser):
    fitted(tmp_path, until=5)
    with serving(tmp_path) as server:
        page, complaints = browser.new_page(), []
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(server.url)
        page.evaluate("""() => {
            window.said = [];
            new MutationObserver(() => said.push(byId("link").textContent)).observe(byId("link"), { childList: true });
            fill = () => { throw new Error("drawn wrong"); };
        }""")
        fitted(tmp_path, resume=True)
        wait_for(page, "() => byId('going').textContent === '1 run finished'")
        assert "drawn wrong" in complaints[0]
        assert page.evaluate("window.said") == []
        page.route("**/data*", lambda route: route.fulfill(status=500))
        wait_for(page, "() => byId('link').textContent === 'The server answers 500; trying again.'")
        page.unroute("**/data*")
        wait_for(page, "() => byId('link').textContent === 'Live'")
        page.close()


@pytest.mark.slow
def test_play_goes_on_to_rounds_that_came_meanwhile(tmp_path, browser):
    fitted(tmp_path, until=5)
    with serving(tmp_path) as server:
        page = browser.new_page()
        page.goto(server.url)
        page.evaluate("""() => { // pauses at the second round, until there are more
            const watch = new MutationObserver(() => {
                if (byId("at").textContent !== "1") return;
                byId("play").click();
                watch.disconnect();
            });
            watch.observe(byId("at"), { childList: true });
        }""")
        page.locator("#play").click()
        wait_for(page, "() => byId('play').textContent === 'Play' && byId('at').textContent === '1'")
        fitted(tmp_path, resume=True)
        wait_for(page, "() => state.run.round === 10")
        assert page.locator("#at").inner_text() == "1"
        page.locator("#play").click()
        wait_for(page, "() => byId('at').textContent === '10' && byId('play').textContent === 'Play'")
        page.close()
