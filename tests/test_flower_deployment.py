"""Flower for real: the example's deployment script, with TLS and keys, on loopback; nodes and links that are killed."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from test_flower import Hand

import cobo
from cobo.flower.plan import Plan
from cobo.flower.server import serve

TOOLS = ("openssl", "ssh-keygen", "setsid")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not all(map(shutil.which, TOOLS)) or not Path("/proc").exists(), reason=f"needs {TOOLS}, /proc"),
]

EXAMPLE = Path(__file__).parent.parent / "examples" / "flower"
PARTIES = ("north", "south", "east", "west")
GOOD = PARTIES[:3]
SETTINGS = {"clients": ", ".join(PARTIES), "rounds": 6, "local-steps": 10, "batch-size": 20, "timeout": 300}

# The parties of the test, in the place of the example's: two clouds that overlap, and few samples of them, so that who
# learns alone learns less; south has its labels the other way round.
TASK = """
import torch
from torch import nn
import cobo

def make_model():
    return nn.Sequential(nn.Linear(20, 8), nn.Tanh(), nn.Linear(8, 2))

def party(name):
    random = torch.Generator().manual_seed(sum(name.encode()))
    y = torch.randint(0, 2, (2040,), generator=random)
    x = torch.randn(2040, 20, generator=random) + 0.6 * (y[:, None] - 0.5)
    y = 1 - y if name == "south" else y
    return cobo.Client(name, train=(x[:40], y[:40]), test=(x[40:], y[40:]))

def load_client(context):
    return party(str(context.node_config["name"]))
"""

# Whatever is unpickled, in the ServerApp or in a ClientApp, is written down.
WATCH = """
import os, sys

def watch(event, args):
    if event == "pickle.find_class":
        with open(os.path.join(os.environ["FLWR_HOME"], "unpickled"), "a") as file:
            file.write(f"{args}\\n")

sys.addaudithook(watch)
"""

# West means no good.
CLIENT = """
import os
import time
from dataclasses import replace
import torch
from cobo.flower import client_app
from cobo.flower.party import Party
from digits_parties.task import load_client, make_model

answer = Party.answer

def mischief(self, order):
    while self.name == "east" and os.path.exists(os.path.join(os.environ["FLWR_HOME"], "hold")):
        time.sleep(0.2)  # so that a round lasts as long as the test needs
    reply = answer(self, order)
    if self.name != "west" or order.steps == 0:
        return reply
    if order.round == 1:
        return replace(reply, model=torch.ones(3, 5))
    if order.round == 2:
        return replace(reply, model=torch.full_like(reply.model, 1e30))
    if order.round == 3:
        raise RuntimeError("west falls over")
    return replace(reply, model=torch.full_like(reply.model, float("nan")))

Party.answer = mischief
app = client_app(load_client, model=make_model)
"""


def free_ports(count):
    """The first of several ports in a row that nobody has."""
    for first in range(21000, 60000, 37):
        taken = False
        for port in range(first, first + count):
            with socket.socket() as trial:
                taken |= trial.connect_ex(("127.0.0.1", port)) == 0
        if not taken:
            return first
    raise AssertionError("no free ports")


def until(condition, what, seconds=300, run=None):
    """Wait; a `run` that ends meanwhile has failed."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited in vain for: {what}"
        assert run is None or run.poll() is None, f"the run ended before: {what}"
        time.sleep(0.3)


class Deployment:
    """The example's script, in a folder of its own."""

    def __init__(self, folder):
        self.work, self.app = folder / "work", folder / "app"
        shutil.copytree(EXAMPLE, self.app)
        package = self.app / "digits_parties"
        (package / "task.py").write_text(TASK)
        (package / "client_app.py").write_text(CLIENT)
        (package / "__init__.py").write_text(WATCH)
        self.port = free_ports(8)
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        self.env = {**os.environ, "PATH": path, "PARTIES": " ".join(PARTIES), "PORT": str(self.port)}
        self.env |= {"OMP_NUM_THREADS": "1"}
        self.started, self.impostors = [], []

    def step(self, *arguments, check=True):
        command = [str(self.app / "deploy.sh"), str(self.work), *arguments]
        done = subprocess.run(command, env=self.env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0 or not check, done.stdout + done.stderr + self.logs()
        return done

    def run(self, **changes):
        settings = " ".join(f"{key}={json.dumps(value)}" for key, value in {**SETTINGS, **changes}.items())
        command = [str(self.app / "deploy.sh"), str(self.work), "run", "--run-config", settings]
        with open(self.work / "logs" / "run.log", "a") as log:
            started = subprocess.Popen(command, env=self.env, stdout=log, stderr=log, start_new_session=True)
        self.started.append(started)
        return started

    def impostor(self, name, *, ca, key):
        """A SuperNode that is not one of us."""
        log = self.work / "logs" / f"{name}.log"
        command = ["flower-supernode", "--superlink", f"127.0.0.1:{self.port}", "--root-certificates", str(ca)]
        command += ["--auth-supernode-private-key", str(key), "--port", str(self.port + 5 + len(self.impostors))]
        command += ["--node-config", 'name="north"']
        env = {**self.env, "FLWR_HOME": str(self.work / name), "FLWR_TELEMETRY_ENABLED": "0"}
        with open(log, "w") as file:
            started = subprocess.Popen(command, env=env, stdout=file, stderr=file, start_new_session=True)
        self.started.append(started)
        self.impostors.append(started)
        return log

    def events(self, kind):
        path = self.work / "out" / "events.jsonl"
        lines = [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []
        return [line for line in lines if line["event"] == kind]

    def measured(self, name, round):
        return any(e["round"] >= round and name in e["clients"] for e in self.events("evaluated"))

    def kill(self, name):
        """kill -9, with all that it has started."""
        os.killpg(int((self.work / "pids" / name).read_text()), signal.SIGKILL)

    def logs(self):
        return "".join(f"\n== {p.name}\n{p.read_text()[-3000:]}" for p in sorted(self.work.glob("logs/*.log")))


def marked(text):
    """Commands of all processes that have this text in their environment."""
    found = []
    for place in Path("/proc").glob("[0-9]*"):
        try:
            environment, status = (place / "environ").read_bytes(), (place / "stat").read_text()
            if text.encode() in environment and status.rpartition(")")[2].split()[0] != "Z":
                found.append((place / "cmdline").read_bytes())
        except OSError:
            continue
    return found


@pytest.fixture
def deployment(tmp_path):
    made = Deployment(tmp_path)
    try:
        yield made
    finally:
        for started in made.started:
            with contextlib.suppress(ProcessLookupError):  # a SuperNode that has given up leaves a child behind
                os.killpg(started.pid, signal.SIGKILL)
            started.wait()
        made.step("down", check=False)


def in_this_process(folder, who=lambda round: GOOD, **changes):
    """The same plan, with those who mean well in each round and nothing in the way: models, W and last scores."""
    space: dict = {}
    exec(compile(TASK, "task", "exec"), space)
    config = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    config |= {f"cobo.{key}": value for key, value in config.pop("cobo").items()}
    plan = Plan.of({**config, **SETTINGS, "out": str(folder / "out"), "fewest": 2, **changes})
    hand = Hand(plan, folder / "disks", who=who, model=space["make_model"])
    hand.clients = {name: space["party"](name) for name in GOOD}
    server = serve(plan, space["make_model"], lambda server, tell: hand, lambda event: None)
    models = {name: model_on(folder / "disks", name) for name in GOOD}
    return models, server.rule.weights, server.result.history[-1]["client_accuracy"][:3]


def model_on(disk, name):
    (path,) = disk.glob(f"*/{name}/models/{name}.safetensors")
    return load_file(path)


def test_kills_restarts_impostors_and_bad_replies_do_not_harm_the_others(deployment, tmp_path):
    d = deployment
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", d.port))
        taken.listen()
        refused = d.step("up", check=False)
        assert refused.returncode == 1
        assert f"port {d.port} is taken" in refused.stderr
    d.step("up")
    refused = d.step("node", "nort", check=False)
    assert refused.returncode == 1
    assert "there is no key of nort" in refused.stderr

    keys = d.work / "keys"
    subprocess.run(["ssh-keygen", "-q", "-t", "ecdsa", "-b", "384", "-N", "", "-f", keys / "nobody"], check=True)
    other = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-subj", "/CN=another CA"]
    subprocess.run([*other, "-keyout", keys / "x.key", "-out", keys / "x.crt"], check=True, capture_output=True)
    unknown = d.impostor("unknown-key", ca=keys / "ca.crt", key=keys / "nobody")
    astray = d.impostor("wrong-ca", ca=keys / "x.crt", key=keys / "north")

    running = d.run()
    until(lambda: d.measured("north", 1), "round 1", run=running)
    d.kill("north")
    until(lambda: any("north" in e["clients"] for e in d.events("left out")), "north to be missed", run=running)
    hold = d.work / "flwr" / "hold"
    hold.touch()
    missed = d.events("left out")[0]["round"]
    d.step("node", "north")
    until(lambda: [e["client"] for e in d.events("connected")].count("north") == 2, "north to be back", run=running)
    hold.unlink()
    until(lambda: d.measured("north", missed + 1), "a round with north", run=running)
    d.kill("superlink")
    d.step("link")
    again = d.run(resume=True)
    until(lambda: again.poll() is not None, "the end of the run")
    assert again.returncode == 0, d.logs()

    first, second = d.events("started")
    assert (first["round"], second["id"]) == (0, first["id"])
    assert second["round"] > missed
    lines = [json.loads(line) for line in (d.work / "out" / "metrics.jsonl").read_text().splitlines()]
    result = json.loads((d.work / "out" / "result.json").read_text())
    assert [line["round"] for line in lines] == list(range(7))
    assert "north" not in lines[missed]["clients"]
    why = {e.get("round"): e["message"] for e in d.events("refused") if e["client"] == "west"}
    assert "not finite" in why[0]
    assert "shape [3, 5]" in why[1]
    assert "length" in why[2]
    assert "west falls over" in why[3]
    assert {e["client"] for e in d.events("refused")} == {"west"}  # north went on with its model from its disk
    models, W, scores = in_this_process(tmp_path / "again", lambda round: lines[round]["clients"])
    torch.testing.assert_close(torch.tensor(result["weights"]), W, rtol=0, atol=1e-4)
    for name in GOOD:
        there = model_on(d.work / f"disk-of-{name}", name)
        torch.testing.assert_close(there, models[name], rtol=0, atol=1e-4, msg=lambda why, name=name: f"{name}: {why}")
    *_, clean = in_this_process(tmp_path / "clean")
    *_, alone = in_this_process(tmp_path / "alone", method="local")
    assert scores == pytest.approx(clean, abs=0.5)
    assert clean[0] + clean[2] > alone[0] + alone[2] + 2  # north and east have helped each other

    assert len({e["node"] for e in d.events("connected")}) == len(PARTIES)
    for started, log, reason in zip(d.impostors, (unknown, astray), ("activate", "CERTIFICATE"), strict=True):
        until(lambda started=started: started.poll() is not None, f"{log} to give up")
        assert started.returncode != 0
        assert reason in log.read_text(), log.read_text()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(started.pid, signal.SIGKILL)
    assert not (d.work / "flwr" / "unpickled").exists(), (d.work / "flwr" / "unpickled").read_text()
    d.step("down")
    until(lambda: not marked(str(d.work)), "all processes to end", 120)


def test_a_simulation_stopped_by_ctrl_c_ends_at_once_and_goes_on_as_the_run_of_one_process(tmp_path):
    env = {**os.environ, "FLWR_HOME": str(tmp_path / "flwr"), "OMP_NUM_THREADS": "1", "MARK": str(tmp_path)}
    options = ["--rounds", "10", "--set", "groups=2", "--set", "clients_per_group=1", "--set", "cobo.gamma=1.0"]

    def command(*words, out):
        return [sys.executable, "-m", "cobo", *words, "digits", *options, "--out", str(tmp_path / out)]

    apart, together = (tmp_path / out / "cobo" / "seed-0" for out in ("apart", "together"))
    simulate = command("flower", "simulate", out="apart")
    with subprocess.Popen(simulate, env=env, stderr=subprocess.PIPE, text=True, start_new_session=True) as stopped:
        try:
            until(lambda: any((apart / "checkpoint").glob("round-*")), "a checkpoint", run=stopped)
            os.killpg(stopped.pid, signal.SIGINT)  # as a terminal does
            _, said = stopped.communicate(timeout=60)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(stopped.pid, signal.SIGKILL)
    assert stopped.returncode == 130, said
    assert "cobo: stopped by the user; go on with the same command and --resume" in said
    assert not (apart / "result.json").exists()
    for line in ([*simulate, "--resume"], command("run", out="together")):
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "cobo" in done.stdout
    names = sorted(path.name for path in (together / "models").iterdir())
    assert len(names) == 2
    for name in names:
        expected = load_file(together / "models" / name)
        for key, value in load_file(apart / "models" / name).items():
            torch.testing.assert_close(value, expected[key], rtol=0, atol=1e-4)
    lines = [json.loads((place / "metrics.jsonl").read_text().splitlines()[-1]) for place in (apart, together)]
    assert lines[0]["accuracy"] == pytest.approx(lines[1]["accuracy"], abs=0.2)
    assert cobo.load(apart).groups() == cobo.load(together).groups()
    until(lambda: not marked(str(tmp_path)), "all processes to end", 120)
