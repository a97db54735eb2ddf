"""The Flower engine without a network: server and clients as they are, messages handed over in this process."""

import ast
import importlib
import json
import re
import shutil
import subprocess
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from conftest import blobs
from torch import nn

import cobo
from cobo.compute.task import Task
from cobo.errors import CheckpointError, ConfigError, RunError
from cobo.flower.link import GridLink, versions
from cobo.flower.party import Party
from cobo.flower.plan import Plan
from cobo.flower.records import pack, unpack
from cobo.flower.server import Server, serve
from cobo.flower.wire import Hello, Order, Reply
from cobo.report import summary
from cobo.report.watch import Now

NAMES = ("north", "south", "east")


def clients():
    return [blobs(name, seed=k, flip=name == "south", samples=40 + 10 * k) for k, name in enumerate(NAMES)]


def model():
    return nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 2))


class Hand:
    """Hands orders to clients that are made anew for each one, as with Flower, and keep all they know on their disk.

    `meddle(name, order, reply)` may change a reply, or return None as if there were none.
    """

    def __init__(self, plan, state, *, meddle=None, who=lambda round: NAMES, model=model):
        self.plan, self.state, self.meddle, self.who, self.model = plan, state, meddle, who, model
        self.clients = {client.name: client for client in clients()}
        self.round, self.seen = 0, []

    def present(self):
        return {name: Hello(name, samples=len(self.clients[name].train)) for name in self.who(self.round)}

    def exchange(self, orders, timeout):
        replies = {}
        for name, order in orders.items():
            self.round = order.round + 1
            self.seen.append((name, order))
            reply = Party(self.clients[name], self.model, Task(), self.plan, self.state).answer(order)
            reply = reply if self.meddle is None else self.meddle(name, order, reply)
            if reply is not None:
                replies[name] = reply
        return replies


def plan_of(tmp_path, method="cobo", **settings):
    usual = {"rounds": 10, "lr": 0.1, "momentum": 0.9, "batch_size": 8, "seed": 3, "out": str(tmp_path / "out")}
    return Plan.of({"clients": ",".join(NAMES), "method": method, **usual, **settings})


def run(plan, tmp_path, **options):
    events, hand = [], Hand(plan, tmp_path / "state", **options)
    server = serve(plan, options.get("model", model), lambda server, tell: hand, events.append)
    return server, hand, events


def on_disk(server, tmp_path, name):
    from safetensors.torch import load_file

    state = load_file(tmp_path / "state" / server.run / name / "models" / f"{name}.safetensors")
    return flat(state)


def in_process(plan, **options):
    shared = {k: getattr(plan, k) for k in ("rounds", "lr", "momentum", "batch_size", "seed", "optimizer", "schedule")}
    return cobo.fit(clients(), model=model, method=plan.method, **(shared | options))


def flat(state):
    return torch.cat([state[name].flatten() for name in sorted(state)])


@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("local", {}),
        ("fedavg", {}),
        ("fedavg", {"local-steps": 3}),
        ("ditto", {"ditto.lam": 0.5}),
        ("ditto", {"ditto.lam": 0.5, "local-steps": 3}),
        ("cobo", {"cobo.gamma": 1.0}),
        ("cobo", {"cobo.gamma": 1.0, "cobo.pull": "sum", "cobo.sampling": "every", "schedule": "cosine"}),
        ("cobo", {"cobo.gamma": 1.0, "cobo.mixing": "implicit", "cobo.ask": 2, "cobo.rho": 5.0}),
        ("cobo", {"cobo.domain": "simplex", "cobo.solver": "projected", "cobo.self-weight": True}),
        ("cobo", {"cobo.gamma": 1.0, "optimizer": "adamw", "lr": 0.01}),
        ("cobo", {"cobo.gamma": 2.0, "cobo.rate": 1.4, "cobo.switch": 0.2, "cobo.time-rate": 0.001}),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(map(str, value.values())),
)
def test_the_run_is_that_of_one_process(tmp_path, method, settings):
    plan = plan_of(tmp_path, method, **settings)
    server, hand, _ = run(plan, tmp_path)
    alone = in_process(plan)
    for name in NAMES:
        torch.testing.assert_close(
            on_disk(server, tmp_path, name), flat(alone.models[name].state_dict()), rtol=0, atol=1e-4
        )
    if method == "cobo":
        torch.testing.assert_close(server.rule.weights, torch.from_numpy(alone.weights), rtol=0, atol=1e-4)
        assert not torch.equal(server.rule.weights, torch.ones(3, 3))
    last = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["loss"] == pytest.approx(alone.history[-1]["loss"], abs=1e-4)
    assert last["gradients"] == alone.history[-1]["gradients"]
    rounds = [order.round for name, order in hand.seen if name == "north"]
    assert rounds == list(range(11))  # one message per round, and one to end with


def seen(folder):
    return Now(folder, lambda runs: summary.summarise_runs(runs, [], "test", None)).data()


def test_a_run_is_watched_like_any_other(tmp_path):
    out = tmp_path / "out"
    run(plan_of(tmp_path), tmp_path)
    finished = seen(out)
    (out / "result.json").unlink()
    going = seen(out)
    assert going["finding"].startswith("So far: CoBo found ")
    assert [going[part] for part in ("runs", "curves", "settings", "command")] == [
        finished[part] for part in ("runs", "curves", "settings", "command")
    ]
    assert finished["environment"]["torch"] == torch.__version__


def test_the_report_names_the_command_that_was_run(tmp_path):
    run(plan_of(tmp_path, **{"local-steps": 3}), tmp_path)
    assert seen(tmp_path / "out")["command"] == (
        "flwr run in your own Flower project, with the settings below as its run-config"
    )
    simulated = tmp_path / "simulated"
    shutil.copytree(tmp_path / "out", simulated / "cobo" / "seed-3")
    (simulated / "experiment.toml").touch()
    assert seen(simulated)["command"] == (
        "cobo flower simulate experiment.toml --method cobo --seed 3 --local-steps 3 --out again"
    )


def without(name, *rounds):
    """Who is there, when a client is not in some rounds."""
    return lambda round: [other for other in NAMES if not (other == name and round in rounds)]


def models_and_weights(server, tmp_path):
    return [on_disk(server, tmp_path, name) for name in NAMES], server.rule.weights


def assert_same(one, other):
    torch.testing.assert_close(one, other, rtol=0, atol=1e-6)


def test_who_is_silent_is_left_out_and_comes_back_with_its_model(tmp_path):
    plan = plan_of(tmp_path, **{"cobo.gamma": 1.0, "cobo.sampling": "every"})
    rows = {}

    def meddle(name, order, reply):
        server_rows = rows.setdefault(order.round, server_of[0].rule.state.X.clone())
        assert server_rows.shape == (3, 42)
        return None if name == "north" and order.round in (4, 5) else reply

    server_of, events = [], []
    hand = Hand(plan, tmp_path / "state", meddle=meddle)
    serve(plan, model, lambda server, tell: (server_of.append(server), hand)[1], events.append)
    assert [(e["round"], e["clients"]) for e in events if e["event"] == "left out"] == [(4, ["north"]), (5, ["north"])]
    assert torch.equal(rows[4][0], rows[6][0])
    assert not torch.equal(rows[6][0], rows[7][0])
    assert not torch.equal(rows[4][1], rows[6][1])
    back = next(order for name, order in hand.seen if name == "north" and order.round == 6)
    assert back.start is None
    assert back.last == 3


def test_work_whose_reply_is_lost_is_as_if_it_had_not_been_done(tmp_path):
    plan = plan_of(tmp_path, **{"cobo.gamma": 1.0, "out": str(tmp_path / "lost")})
    lost, *_ = run(plan, tmp_path, meddle=lambda n, o, r: None if n == "north" and o.round in (3, 4) else r)
    other = plan.replace(out=str(tmp_path / "away"))
    away, *_ = run(other, tmp_path, who=without("north", 3, 4))
    assert_same(models_and_weights(lost, tmp_path), models_and_weights(away, tmp_path))


BAD = {
    "nan": lambda r: replace(r, model=torch.full_like(r.model, torch.nan)),
    "nan in a pair": lambda r: replace(r, pairs=r.pairs * torch.nan),
    "huge": lambda r: replace(r, model=torch.full_like(r.model, 1e30)),
    "huge pair": lambda r: replace(r, pairs=torch.full_like(r.pairs, 1e30)),
    "too short": lambda r: replace(r, model=r.model[:-1]),
    "a matrix": lambda r: replace(r, model=r.model.view(6, 7)),
    "one pair too many": lambda r: replace(r, pairs=torch.cat([r.pairs, r.pairs[:1]])),
    "double": lambda r: replace(r, model=r.model.double()),
    "nothing": lambda r: replace(r, model=None),
    "another's": lambda r: replace(r, name="south"),
    "an old one": lambda r: replace(r, round=r.round - 1),
    "of another run": lambda r: replace(r, run="0" * 32),
    "not asked for": lambda r: replace(r, direction=r.model),
    "no pairs": lambda r: replace(r, pairs=None),
    "a zero-dimensional model": lambda r: replace(r, model=r.model.sum()),
    "pairs of integers": lambda r: replace(r, pairs=r.pairs.int()),
}


@pytest.mark.parametrize(("first", "turns"), [(0, range(4)), (2, [2])])
def test_a_reply_that_cannot_be_right_is_refused_by_name_and_touches_nobody(tmp_path, first, turns):
    rounds = list(range(first, first + len(BAD) // 4))
    bad = list(BAD.values())

    def meddle(name, order, reply):
        if name != "east" or order.round not in rounds:
            return reply
        kinds = bad[(order.round - first) * 4 :][:4]
        return kinds[turn[0] % 4](reply)

    settings = {"cobo.gamma": 1.0, "cobo.sampling": "every", "rounds": 6, "fewest": 2}
    plan = plan_of(tmp_path, **settings, out=str(tmp_path / "away"))
    away, *_ = run(plan, tmp_path, who=without("east", *rounds))
    for k in turns:
        turn = [k]
        server, _, events = run(plan.replace(out=str(tmp_path / f"bad-{k}")), tmp_path, meddle=meddle)
        refused = [event for event in events if event["event"] == "refused"]
        assert [(e["client"], e["round"]) for e in refused] == [("east", round) for round in rounds]
        assert all(e["message"] for e in refused)
        assert_same(models_and_weights(server, tmp_path), models_and_weights(away, tmp_path))


def test_of_two_that_begin_the_one_that_is_far_too_long_is_refused(tmp_path):
    def meddle(name, order, reply):
        return BAD["huge"](reply) if name == "south" and order.round == 0 else reply

    plan = plan_of(tmp_path, clients="north, south")
    server, _, events = run(plan, tmp_path, meddle=meddle, who=lambda round: NAMES[:2])
    assert [(e["client"], e["round"]) for e in events if e["event"] == "refused"] == [("south", 0)]
    assert float(server.rule.state.X.norm(dim=1).max()) < 10


def test_who_grows_little_by_little_is_refused_before_it_carries_the_others_away(tmp_path):
    def meddle(name, order, reply):
        grown = name == "east" and order.steps
        return replace(reply, model=reply.model + 0.1 * 9.0**order.round) if grown else reply

    server, _, events = run(plan_of(tmp_path, rounds=30), tmp_path, meddle=meddle)
    refused = [event for event in events if event["event"] == "refused"]
    assert {event["client"] for event in refused} == {"east"}
    assert len(refused) > 20
    assert float(server.rule.state.X.norm(dim=1).max()) < 100


def test_a_personal_gradient_of_ditto_that_is_not_finite_is_told_and_nothing_is_kept(tmp_path):
    party = Party(clients()[0], model, Task(), plan_of(tmp_path, "ditto"), tmp_path)
    start = party.federation.blueprint.start
    reply = party.answer(Order("ab", 0, steps=1, start=torch.full_like(start, 1e38), shared=start))
    assert reply.problem == "its gradient is not finite"
    assert reply.direction is None
    assert list(tmp_path.glob("ab/north/checkpoint/*")) == []


@pytest.mark.parametrize(
    "said",
    [
        {"accuracy": float("nan"), "loss": -1e300},
        {"accuracy": 100.5, "loss": float("inf")},
        {"accuracy": 1.7e308, "loss": 1.7e308},
    ],
    ids=str,
)
def test_scores_that_cannot_be_are_told_and_left_out_of_the_mean(tmp_path, said):
    def meddle(name, order, reply):
        return replace(reply, measured=said) if name == "east" and order.round == 2 else reply

    plan = plan_of(tmp_path, rounds=3)
    server, _, events = run(plan, tmp_path, meddle=meddle)
    warned = [(e["round"], e["client"]) for e in events if e["event"] == "warning"]
    assert warned == [(2, "east")]
    line = json.loads((tmp_path / "out" / "metrics.jsonl").read_text().splitlines()[2])
    assert line["clients"]["east"] == {}
    for score in said:
        assert line[score] == pytest.approx(sum(line["clients"][name][score] for name in NAMES[:2]) / 2)
    honest, *_ = run(plan.replace(out=str(tmp_path / "honest")), tmp_path)
    assert_same(models_and_weights(server, tmp_path), models_and_weights(honest, tmp_path))


def test_counts_that_cannot_be_are_no_message():
    for kind, count in ((Hello, "samples"), (Reply, "gradients")):
        known = {"name": "north"} | ({} if kind is Hello else {"run": "a", "round": 0})
        for value in (-1, 2**41):
            with pytest.raises(ValueError, match=count):
                kind(**known, **{count: value})


def test_pairs_nobody_asked_for_are_refused(tmp_path):
    plan = plan_of(tmp_path, **{"cobo.sampling": "time", "cobo.time-rate": 1e-9, "rounds": 3, "fewest": 2})

    def meddle(name, order, reply):
        assert order.midpoints is None
        return replace(reply, pairs=torch.ones(1, 42)) if name == "east" and order.round < 3 else reply

    _, _, events = run(plan, tmp_path, meddle=meddle)
    refused = [e for e in events if e["event"] == "refused"]
    assert [e["client"] for e in refused] == ["east"] * 3
    assert "for which it was not asked" in refused[0]["message"]


def test_an_honest_newcomer_is_welcome_when_the_others_have_learned(tmp_path):
    settings = {"cobo.gamma": 1.0, "cobo.sampling": "every", "rounds": 50, "local-steps": 10, "fewest": 2}
    plan = plan_of(tmp_path, **settings)
    server, _, events = run(plan, tmp_path, who=lambda round: NAMES if round >= 40 else ("north", "east"))
    assert [e for e in events if e["event"] == "refused"] == []
    assert server.since["south"] == 40


def test_a_resume_that_is_refused_keeps_everything(tmp_path):
    plan = plan_of(tmp_path, rounds=4)
    run(plan, tmp_path)
    kept = (tmp_path / "out" / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError, match="rounds = 4, not 8"):
        run(plan.replace(rounds=8, resume=True), tmp_path)
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == kept
    for state in (tmp_path / "out" / "checkpoint").glob("*/state.json"):
        state.write_text("{}")
    with pytest.raises(CheckpointError, match="no checkpoint that can be read"):
        run(plan.replace(resume=True), tmp_path)
    assert (tmp_path / "out" / "metrics.jsonl").read_bytes() == kept


def test_a_server_that_was_killed_goes_on_with_the_same_run(tmp_path):
    settings = {"cobo.gamma": 1.0, "local-steps": 2}
    whole, *_ = run(plan_of(tmp_path, **settings), tmp_path)

    class Dies(Exception):
        pass

    def meddle(name, order, reply):
        if name == "south" and order.round == 6:  # after north has done its part of the round
            raise Dies
        return reply

    plan = plan_of(tmp_path, **settings, out=str(tmp_path / "killed"))
    with pytest.raises(Dies):
        run(plan, tmp_path, meddle=meddle)
    with pytest.raises(CheckpointError, match="already holds a run"):
        run(plan, tmp_path)
    with pytest.raises(CheckpointError, match=r"lr = 0.1, not 0.2"):
        run(plan.replace(lr=0.2, resume=True), tmp_path)
    again, hand, _ = run(plan.replace(resume=True), tmp_path)
    assert hand.seen[0][1].round == 6
    assert_same(models_and_weights(again, tmp_path), models_and_weights(whole, tmp_path))
    lines = [
        [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in text.splitlines()]
        for text in ((tmp_path / out / "metrics.jsonl").read_text() for out in ("out", "killed"))
    ]
    assert lines[0] == lines[1]


def test_a_client_that_lost_its_disk_is_sent_its_model(tmp_path):
    def meddle(name, order, reply):
        if name == "north" and order.round == 4:
            shutil.rmtree(tmp_path / "state" / order.run / "north")
        return reply

    _, hand, events = run(plan_of(tmp_path), tmp_path, meddle=meddle)
    assert [(e["client"], e["round"]) for e in events if e["event"] == "refused"] == [("north", 5)]
    sent = {order.round: order.start is not None for name, order in hand.seen if name == "north"}
    assert [round for round, start in sent.items() if start] == [0, 6]


def test_who_comes_later_begins_at_the_others_mean(tmp_path):
    plan = plan_of(tmp_path, fewest=2)
    _, hand, events = run(plan, tmp_path, who=without("north", *range(4)))
    first = next(order for name, order in hand.seen if name == "north")
    assert first.round == 4
    assert not torch.equal(first.start, hand.seen[0][1].start)
    assert [(e["round"], e["clients"]) for e in events if e["event"] == "joined"] == [(4, ["north"])]


def test_on_a_simplex_a_warning_says_for_whom_w_waits(tmp_path):
    plan = plan_of(tmp_path, fewest=2, **{"cobo.domain": "simplex", "cobo.gamma": 1.0, "cobo.sampling": "every"})
    _, _, events = run(plan, tmp_path, who=without("north", 4, 5, 8))
    warned = [event for event in events if event["event"] == "warning"]
    assert [event["round"] for event in warned] == [4, 8]
    assert all("W rests without north" in event["message"] for event in warned)
    snapshots = dict(cobo.training.records.unpack_weights(tmp_path / "out" / "weights.safetensors", NAMES))
    assert (snapshots[4] == snapshots[6]).all()
    assert (snapshots[6] != snapshots[7]).any()


def test_a_client_is_sent_no_more_than_it_needs(tmp_path):
    """The pull of its peers together, the midpoints of its pairs, and no name of anyone."""
    _, hand, _ = run(plan_of(tmp_path, **{"cobo.sampling": "every"}), tmp_path)
    for name, order in hand.seen:
        text = str({k: v for k, v in vars(order).items() if not isinstance(v, torch.Tensor)})
        assert not any(other in text for other in NAMES if other != name)
        assert (order.start is not None) == (order.round == 0)
        assert order.shared is None
        assert order.midpoints is None or len(order.midpoints) == 2


@pytest.mark.parametrize("method", ["local", "ditto"])
def test_the_server_never_sees_a_personal_model_of_local_and_ditto(tmp_path, method):
    replies = []
    server, *_ = run(plan_of(tmp_path, method), tmp_path, meddle=lambda n, o, r: replies.append(r) or r)
    assert all(reply.model is None and reply.pairs is None for reply in replies)
    assert all((reply.direction is None) == (method == "local") for reply in replies if reply.round < 10)
    assert server.rule.state.X.shape == (1, 42)


def test_when_nobody_is_there_one_line_says_who_is_missing(tmp_path):
    plan = plan_of(tmp_path, patience=0.01)
    with pytest.raises(RunError, match=r"3 clients are needed, connected are south, east .*the SuperNodes of north"):
        run(plan, tmp_path, who=without("north", *range(11)))


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"clients": "north, North"}, "distinct"),
        ({"clients": "north, ../south"}, "path separators"),
        ({"method": "oracle"}, "'cobo', 'local', 'fedavg' or 'ditto'"),
        ({"fedavg.participation": 0.5, "method": "fedavg"}, "participation"),
        ({"cobo.output": "uniform"}, "output"),
        ({"cobo.mixing": "coupled"}, "coupled"),
        ({"buffers": "shared"}, "buffers"),
        ({"local-step": 2}, "no setting 'local_step'"),
        ({"cobo.rho": 100.0}, "cannot be stable"),
        ({"fewest": 4}, "fewest"),
        ({"other.rho": 1.0}, "METHOD.KEY"),
    ],
)
def test_settings_that_cannot_work_are_refused(tmp_path, settings, says):
    with pytest.raises(ConfigError, match=says):
        run(plan_of(tmp_path, **settings), tmp_path)


# What goes over the wire


def a_reply():
    return Reply("north", "ab", 3, gradients=2, measured={"loss": 0.5}, model=torch.arange(4.0), pairs=torch.ones(2, 4))


def test_messages_come_back_as_they_were_sent():
    order = Order("ab", 3, last=2, steps=5, share=0.25, anchor=torch.arange(4.0), peers=["0f"], sides=[2])
    for message in (order, a_reply(), Hello("north", samples=3)):
        back = unpack(type(message), sent(pack(message)))
        for field, value in vars(message).items():
            assert torch.equal(getattr(back, field), value) if isinstance(value, torch.Tensor) else True
            assert isinstance(value, torch.Tensor) or getattr(back, field) == value


def sent(record):
    """A record after Flower has made bytes of it and read them again."""
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents

    contents = {key: item.deflate() for key, item in get_all_nested_objects(record).items()}
    return inflate_object_from_contents(record.object_id, contents)


def test_the_wire_holds_numbers_and_json_and_what_is_pickled_is_refused():
    import io
    import pickle

    import numpy as np
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    record = pack(a_reply())
    for array in record.array_records["vectors"].values():
        assert array.stype == "numpy.ndarray"
        assert array.data.startswith(b"\x93NUMPY")
        assert np.lib.format.read_magic(io.BytesIO(array.data))
    json.loads(record.config_records["facts"]["json"])
    file = io.BytesIO()
    np.save(file, np.array([Evil()], dtype=object), allow_pickle=True)
    for stype, data in (("numpy.ndarray", file.getvalue()), ("numpy.ndarray", pickle.dumps(Evil())), ("pickle", b"")):
        bad = ArrayRecord({"model": Array("float32", (1,), stype, data)})
        with pytest.raises(ValueError, match="cannot be read"):
            unpack(Reply, RecordDict({"facts": record.config_records["facts"], "vectors": bad}))
    for text in ("", "[]", '{"name": 1}', '{"name": "north", "run": "a", "round": "1"}', '{"evil": 1}'):
        with pytest.raises(ValueError, match="cannot be read"):
            unpack(Reply, RecordDict({"facts": ConfigRecord({"json": text}), "vectors": ArrayRecord()}))


class Evil:
    def __reduce__(self):
        return (pytest.fail, ("something was unpickled",))


def test_nothing_that_server_or_client_imports_can_unpickle():
    """All modules of cobo that the apps import, one from the other, by their source."""
    root, seen, waiting = Path(cobo.__file__).parent.parent, set(), ["cobo.flower.apps"]
    while waiting:
        name = waiting.pop()
        path = root.joinpath(*name.split("."))
        source = path.with_suffix(".py") if path.with_suffix(".py").exists() else path / "__init__.py"
        if name in seen or not source.exists():
            continue
        seen.add(name)
        for node in ast.walk(ast.parse(source.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found = [node.module, *(f"{node.module}.{alias.name}" for alias in node.names)]
            elif isinstance(node, ast.Import):
                found = [alias.name for alias in node.names]
            else:
                continue
            bad = {"pickle", "cloudpickle", "dill", "joblib", "shelve", "marshal", "ray"}
            assert not bad & {module.split(".")[0] for module in found}, source
            waiting += [module for module in found if module.startswith("cobo")]
        assert not re.search(r"torch\.load\(|allow_pickle=True|\beval\((?!\))|\bexec\(", source.read_text()), source
    assert {"cobo.flower.party", "cobo.flower.server", "cobo.training.checkpoint"} <= seen


@pytest.mark.slow
def test_importing_cobo_imports_no_flower_and_without_it_one_line_says_what_to_install(tmp_path):
    code = "import sys, cobo, cobo.cli; assert not {'flwr', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
    for flower in ("None", "types.ModuleType('flwr')"):  # none, and one without what is needed
        code = f"import sys, types; sys.modules['flwr'] = sys.modules['flwr.app'] = {flower}; import cobo.cli\n"
        code += "sys.argv[1:] = ['flower', 'simulate', 'digits']; cobo.cli.main()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.returncode == 2, done.stderr
        assert "Flower 1.41 is an extra of cobo; in its clone: pip install '.[flower]'" in done.stderr
        assert len(done.stderr.splitlines()) == 1


# Who may take part


class Nodes:
    """Flower's list of nodes."""

    def __init__(self, *names):
        self.nodes = [SimpleNamespace(node_id=k, name=name) for k, name in enumerate(names)]

    def get_nodes(self):
        return self.nodes


def test_who_does_not_fit_is_refused_with_the_reason(tmp_path):
    plan = plan_of(tmp_path)
    server = Server(plan, model, tmp_path, lambda event: None)
    link = GridLink(Nodes("north", "south", ""), plan, server.remote, lambda event: None)
    good = Hello("north", **versions(), parameters=42, dtype="torch.float32", samples=40)
    assert link._unfit(0, good) == ""
    assert "install the same" in link._unfit(0, replace(good, cobo="9.9"))
    assert "install the same" in link._unfit(0, replace(good, flwr="1.40.0"))
    assert "registered as 'south'" in link._unfit(1, good)
    assert "not in clients" in link._unfit(2, replace(good, name="west"))
    assert "registered as ''" in link._unfit(2, good)
    assert "43 parameters" in link._unfit(0, replace(good, parameters=43))
    assert link._unfit(0, replace(good, problem="no data")) == "no data"
    link._known[2] = good
    assert "has this name" in link._unfit(0, good)
    unnamed = GridLink(Nodes("", ""), plan, server.remote, lambda event: None)  # no keys are registered at all
    assert unnamed._unfit(1, good) == ""


def test_who_was_refused_is_asked_again_later_and_the_reason_is_told_once(tmp_path, monkeypatch):
    events, now, greeted = [], [0.0], []
    plan = plan_of(tmp_path)
    nodes = Nodes("north")
    nodes.push_messages = lambda messages: [greeted.append(m) or f"m{len(greeted)}" for m in messages]
    monkeypatch.setattr("cobo.flower.link.Message", lambda *_, **__: "hello")  # one of Flower's needs a running app
    monkeypatch.setattr("cobo.flower.link.time.monotonic", lambda: now[0])
    link = GridLink(nodes, plan, Server(plan, model, tmp_path, events.append).remote, events.append)
    link._greet()
    for now[0], often in ((1.0, 1), (20.0, 1), (40.0, 2), (45.0, 2)):
        while link._greeted:
            link._refuse(link._greeted.popitem()[1], "north", "no data yet")
        link._greet()
        assert len(greeted) == often
    assert [event["message"] for event in events if event["event"] == "refused"] == ["no data yet"]


class SuperLink:
    """What Flower's grid asks for, of replies that are here as bytes; as the real one, it gives each of them once."""

    def __init__(self, replies):
        from flwr.supercore.inflatable.inflatable_utils import validate_object_content

        self.replies, self.contents = replies, {k: c for _, contents in replies.values() for k, c in contents.items()}
        for content in self.contents.values():
            validate_object_content(content)  # all that is looked at when a node sends it

    def PullMessages(self, request):
        from flwr.proto.message_pb2 import Message, Metadata, ObjectTree
        from flwr.proto.runtime_pb2 import PullAppMessagesResponse

        came = [self.replies.pop(question) for question in request.message_ids if question in self.replies]
        trees = [ObjectTree(object_id=id, children=[ObjectTree(object_id=k) for k in found]) for id, found in came]
        messages = [Message(metadata=Metadata(message_id=id)) for id, _ in came]
        return PullAppMessagesResponse(messages_list=messages, message_object_trees=trees)

    def PullObject(self, request):
        from flwr.proto.message_pb2 import PullObjectResponse

        content = self.contents[request.object_id]
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):
        pass


def in_bytes(question, reply, instead=None):
    """A reply as a node sends it, with the id of its message; `instead` may stand in the place of its content."""
    from flwr.app.message.message import make_message
    from flwr.app.metadata import Metadata
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_id

    metadata = Metadata(0, "", 1, 1, question, "", 0.0, 60.0, "train")
    message = make_message(metadata, pack(reply))
    contents = {key: item.deflate() for key, item in get_all_nested_objects(message).items()}
    whole = contents.pop(message.object_id)
    if instead is not None:
        whole = whole.replace(message.content.object_id.encode(), get_object_id(instead).encode())
        contents = {get_object_id(instead): instead}
    return get_object_id(whole), {get_object_id(whole): whole, **contents}


@pytest.fixture
def exchanged(tmp_path, monkeypatch):
    """What the server hears of an exchange in which clients send these bytes, through Flower's own grid."""
    from flwr.superlink.grid.http_grid import HttpGrid

    def exchange(sent, timeout):
        grid = HttpGrid(token="token")
        grid._run, grid._client = SimpleNamespace(run_id=1), SuperLink(sent)
        monkeypatch.setattr(grid, "get_nodes", list)
        monkeypatch.setattr(grid, "push_messages", lambda messages: ["m0", "m1", "m2"])
        monkeypatch.setattr("cobo.flower.link.Message", lambda *_, **__: "order")
        plan = plan_of(tmp_path)
        link = GridLink(grid, plan, Server(plan, model, tmp_path, lambda event: None).remote, lambda event: None)
        link._known = {node: Hello(name) for node, name in enumerate(NAMES)}
        return link.exchange({name: Order("ab", 3) for name in NAMES}, timeout)

    return exchange


def test_who_does_not_answer_in_time_is_not_waited_for(exchanged, monkeypatch):
    now = [0.0]

    def sleep(seconds):
        now[0] += seconds
        assert now[0] < 700, "it waits for longer than the timeout"

    monkeypatch.setattr("cobo.flower.link.time", SimpleNamespace(monotonic=lambda: now[0], sleep=sleep))
    assert list(exchanged({"m2": in_bytes("m2", a_reply())}, timeout=600)) == ["east"]
    assert now[0] > 599


def test_a_reply_that_flower_itself_cannot_read_is_its_clients_alone(exchanged):
    sent = {question: in_bytes(question, a_reply()) for question in ("m0", "m2")}
    sent["m1"] = in_bytes("m1", a_reply(), b"RecordDict  3\x00abc")
    heard = exchanged(sent, timeout=60)
    assert heard["south"].startswith("it cannot be read: ")
    for name in ("north", "east"):
        assert torch.equal(heard[name].model, a_reply().model)


# An experiment's simulation, but for Ray


@pytest.fixture
def simulated(tmp_path, monkeypatch):
    """`cobo flower simulate digits` with two clients, whose messages are handed over in this process."""
    from cobo.flower import simulate

    folder = tmp_path / "run"

    def run(method, *changes, start=True, **options):
        small = ["groups=2", "clients_per_group=1", "rounds=2", *changes]
        experiment = cobo.experiments.load_experiment("digits", cobo.experiments.EXPERIMENTS, small)
        parts = experiment.parts(0)

        def link(grid, plan, *_):
            hand = Hand(plan, Path(plan.out) / "parties", who=lambda round: plan.clients, model=parts.model)
            hand.clients = {client.name: client for client in parts.clients}
            return hand

        monkeypatch.setattr(simulate, "GridLink", link)
        flower = (lambda server, *_: server(None, None)) if start else (lambda *_: pytest.fail("it has started"))
        monkeypatch.setattr(simulate, "_quietly", flower)
        given = {"local_steps": None, "resume": False, "listener": lambda event: None, **options}
        return simulate.simulate(experiment, method, 0, folder, **given)

    run.folder = folder
    return run


@pytest.mark.parametrize(
    ("changes", "asked", "steps"), [([], None, 1), ([], 3, 3), (["fedavg.local_steps=5"], None, 5)], ids=str
)
def test_a_simulation_takes_the_steps_that_were_set_and_records_them(simulated, changes, asked, steps):
    result = simulated("fedavg", *changes, local_steps=asked)
    assert result.training["local_steps"] == result.method["local_steps"] == steps
    assert result.history[-1]["gradients"] == 2 * 2 * steps
    recorded = cobo.experiments.load_experiment(str(simulated.folder / "experiment.toml"), cobo.experiments.EXPERIMENTS)
    assert recorded.method("fedavg").local_steps == steps


def test_what_cannot_be_simulated_is_refused_before_anything_starts(simulated):
    with pytest.raises(ConfigError, match="cannot be stable"):
        simulated("cobo", "cobo.rho=1e6", start=False)
    assert not simulated.folder.exists()
    simulated("local")
    with pytest.raises(CheckpointError, match="already holds a run"):
        simulated("local", start=False)


def test_steps_that_are_set_twice_and_differ_are_refused(simulated):
    with pytest.raises(ConfigError, match=r"--local-steps 3 and fedavg.local_steps = 5 are not the same"):
        simulated("fedavg", "fedavg.local_steps=5", local_steps=3)
    assert not simulated.folder.exists()
    assert simulated("cobo", local_steps=3).history[-1]["gradients"] >= 2 * 2 * 3


# The example


def test_the_example_as_it_is_shipped_ends_as_its_readme_says(tmp_path, monkeypatch):
    example = Path(__file__).parent.parent / "examples" / "flower"
    monkeypatch.syspath_prepend(example)
    config = tomllib.loads((example / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    apps = {side: importlib.import_module(where.removesuffix(":app")) for side, where in config["components"].items()}
    assert type(apps["serverapp"].app).__name__ == "ServerApp"
    assert type(apps["clientapp"].app).__name__ == "ClientApp"
    task = importlib.import_module("digits_parties.task")
    settings = {k: v for k, v in config["config"].items() if k != "cobo"}
    settings |= {f"cobo.{key}": value for key, value in config["config"]["cobo"].items()}
    plan = Plan.of({**settings, "out": str(tmp_path / "out")})
    hand = Hand(plan, tmp_path, model=task.make_model)
    nodes = {name: SimpleNamespace(node_config={"name": name}) for name in plan.clients}
    hand.clients = {name: task.load_client(node) for name, node in nodes.items()}
    result = serve(plan, task.make_model, lambda server, tell: hand, lambda event: None).result
    assert result.groups() == [["north", "east"], ["south"]]
    with pytest.raises(CheckpointError, match="holds no models; of a run with Flower they are with the clients"):
        cobo.load(tmp_path / "out")
    assert [result.history[k]["accuracy"] for k in (0, -1)] == pytest.approx([50, 91], abs=1)
