"""The loop: repeatable, resumable, orderly when something goes wrong."""

import copy
import gc
import json
import math
import os
import pickle
import shutil
import signal
import threading
import warnings
import weakref

import numpy as np
import pytest
import torch
from conftest import Point, blobs, point_client, quadratic
from safetensors import SafetensorError
from torch import nn

import cobo
from cobo.compute.task import Task
from cobo.errors import CheckpointError, ConfigError, Interrupted, RunError, RunWarning
from cobo.federation import Federation
from cobo.methods import State
from cobo.models import mlp
from cobo.training import checkpoint
from cobo.training.progress import LiveProgress
from cobo.training.trackers import TensorBoard


def people(count: int = 4):
    return [blobs(f"c{k}", seed=k, flip=k % 2 == 1, group=k % 2) for k in range(count)]


def small(**changes):
    options = {"model": lambda: mlp(2, [6], 2), "rounds": 30, "batch_size": 5, "lr": 0.1, "evaluate_every": 5}
    return cobo.fit(people(), **{**options, **changes})


def same(a: cobo.Result, b: cobo.Result) -> bool:
    def plain(history):
        return [{k: v for k, v in line.items() if k != "seconds"} for line in history]

    models = all(
        torch.equal(p, q)
        for name in a.names
        for p, q in zip(a.models[name].state_dict().values(), b.models[name].state_dict().values(), strict=True)
    )
    weights = (a.weights is None and b.weights is None) or np.array_equal(a.weights, b.weights)
    return models and weights and plain(a.history) == plain(b.history)


def test_same_seed_same_bits_and_another_seed_another_run():
    one = small(seed=1)
    torch.manual_seed(99)
    assert same(one, small(seed=1))
    assert not same(one, small(seed=2))


def test_history_has_what_the_contract_says():
    result = small()
    assert [line["round"] for line in result.history] == [0, 5, 10, 15, 20, 25, 30]
    last = result.history[-1]
    assert {"accuracy", "loss", "gradients", "seconds", "client_accuracy", "client_loss"} <= set(last)
    assert len(last["client_accuracy"]) == 4
    assert last["accuracy"] == pytest.approx(np.mean(last["client_accuracy"]))
    assert 0 <= last["accuracy"] <= 100
    assert last["gradients"] > 4 * 30


def test_models_are_ready_to_use_and_as_good_as_reported():
    result = small()
    for k, client in enumerate(people()):
        inputs, targets = client.test.fields
        accuracy = 100 * (result.models[client.name](inputs).argmax(1) == targets).float().mean().item()
        assert accuracy == pytest.approx(result.history[-1]["client_accuracy"][k], abs=1e-4)


def test_opposed_groups_are_found():
    result = small(rounds=400, method=cobo.CoBo(gamma=0.1))
    assert result.groups() == [["c0", "c2"], ["c1", "c3"]]
    assert result.history[-1]["accuracy"] > 95


@pytest.mark.parametrize(
    "changes",
    [
        {"method": cobo.CoBo(), "momentum": 0.9},
        {"method": cobo.CoBo.paper(), "optimizer": "adamw", "lr": 0.01, "schedule": "cosine", "weight_decay": 0.1},
        {"method": cobo.CoBo(output="uniform"), "schedule": "linear"},
        {"method": cobo.CoBo(domain="simplex", self_weight=True)},
        {"method": cobo.CoBo(gamma=2.0, switch=0.2, time_rate=1e-3, turns="even")},
        {"method": cobo.Local(), "schedule": lambda o: torch.optim.lr_scheduler.StepLR(o, 7, gamma=0.5)},
        {"method": cobo.Oracle(), "optimizer": "adamw", "lr": 0.01},
        {"schedule": lambda o: torch.optim.lr_scheduler.OneCycleLR(o, 0.2, total_steps=31), "momentum": 0.9},
        {
            "schedule": lambda o: torch.optim.lr_scheduler.SequentialLR(
                o,
                [
                    torch.optim.lr_scheduler.LinearLR(o, 0.1, total_iters=5),
                    torch.optim.lr_scheduler.MultiStepLR(o, [5, 12, 18]),
                ],
                milestones=[5],
            )
        },
        {"model": lambda: nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Dropout(0.3), nn.Linear(4, 2))},
    ],
    ids=[
        "momentum",
        "adamw",
        "uniform",
        "simplex",
        "parted asked rarely",
        "callable schedule",
        "oracle",
        "one cycle",
        "sequential",
        "buffers and dropout",
    ],
)
def test_a_stopped_and_resumed_run_is_the_same_run(tmp_path, changes):
    whole = small(out=tmp_path / "whole", **changes)

    def stop(event):
        if event["event"] == "round" and event["round"] == 17:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted, match="after round 17"):
        small(out=tmp_path / "parts", listeners=[stop], **changes)
    resumed = small(out=tmp_path / "parts", resume=True, **changes)
    assert same(whole, resumed)
    stored = [tmp_path / name / "metrics.jsonl" for name in ("whole", "parts")]
    lines = [[{**json.loads(x), "seconds": 0} for x in path.read_text().splitlines()] for path in stored]
    assert lines[0] == lines[1]


def test_what_a_run_leaves_behind(tmp_path):
    small(out=tmp_path)
    lines = [json.loads(x) for x in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [x["round"] for x in lines] == [0, 5, 10, 15, 20, 25, 30]
    assert set(lines[-1]["clients"]) == {"c0", "c1", "c2", "c3"}
    assert set(lines[-1]["clients"]["c0"]) == {"accuracy", "loss"}
    assert sorted(p.name for p in (tmp_path / "checkpoint").iterdir()) == ["round-00000025", "round-00000030"]
    assert sorted(p.name for p in (tmp_path / "models").iterdir()) == [f"c{k}.safetensors" for k in range(4)]
    events = [json.loads(x)["event"] for x in (tmp_path / "events.jsonl").read_text().splitlines()]
    assert events[0] == "started"
    assert events[-1] == "finished"
    started = json.loads((tmp_path / "events.jsonl").read_text().splitlines()[0])
    assert started["executor"] == "vectorised"
    files = [p for p in tmp_path.rglob("*") if p.is_file() and p.name != ".lock"]
    assert {p.suffix for p in files} == {".json", ".jsonl", ".safetensors"}


def test_a_finished_run_is_not_overwritten(tmp_path):
    small(out=tmp_path)
    with pytest.raises(CheckpointError, match="already holds a run"):
        small(out=tmp_path)


def test_resuming_a_finished_run_gives_its_result(tmp_path):
    assert same(small(out=tmp_path), small(out=tmp_path, resume=True))


@pytest.mark.parametrize("damage", ["torn", "edited tensor", "edited facts", "missing", "empty"])
def test_a_damaged_checkpoint_is_refused_and_the_one_before_is_used(tmp_path, damage):
    whole = small(out=tmp_path)
    newest = tmp_path / "checkpoint" / "round-00000030"
    tensors, facts = newest / "state.safetensors", newest / "state.json"
    if damage == "torn":
        tensors.write_bytes(tensors.read_bytes()[:-40])
    elif damage == "edited tensor":
        content = bytearray(tensors.read_bytes())
        content[-1] ^= 1
        tensors.write_bytes(bytes(content))
    elif damage == "edited facts":
        facts.write_text(facts.read_text().replace('"gradients": ', '"gradients": 9'))
    elif damage == "missing":
        tensors.unlink()
    else:
        facts.write_text("")
    heard = []
    resumed = small(out=tmp_path, resume=True, listeners=[heard.append])
    warnings = [e["message"] for e in heard if e["event"] == "warning" and "checkpoint" in e["message"]]
    assert len(warnings) == 1
    assert "round-00000030" in warnings[0]
    assert next(e for e in heard if e["event"] == "started")["round"] == 25
    assert same(whole, resumed)


def test_all_checkpoints_damaged_means_from_the_start(tmp_path):
    whole = small(out=tmp_path)
    for path in (tmp_path / "checkpoint").glob("*/state.json"):
        path.write_text("{}")
    heard = []
    assert same(whole, small(out=tmp_path, resume=True, listeners=[heard.append]))
    assert sum(e["event"] == "warning" and "checkpoint" in e["message"] for e in heard) == 2


def test_a_half_written_checkpoint_is_ignored_and_swept_away(tmp_path):
    whole = small(out=tmp_path)
    half = tmp_path / "checkpoint" / ".writing-00000035"
    shutil.copytree(tmp_path / "checkpoint" / "round-00000030", half)
    (half / "state.json").unlink()
    with open(tmp_path / "metrics.jsonl", "a") as file:
        file.write('{"round": 35, "acc')
    assert same(whole, small(out=tmp_path, resume=True))
    assert not half.exists()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"method": cobo.Local()}, "method = 'cobo', not 'local'"),
        ({"method": cobo.CoBo(rho=0.7)}, "cobo.rho = 0.5, not 0.7"),
        ({"model": lambda: mlp(2, [7], 2)}, "parameters"),
        ({"lr": 0.2}, "lr = 0.1, not 0.2"),
        ({"seed": 3}, "seed = 0, not 3"),
        ({"rounds": 40}, "rounds = 30, not 40"),
        ({"optimizer": "adamw"}, "optimizer = 'sgd', not 'adamw'"),
    ],
)
def test_resuming_with_other_settings_is_refused_by_name(tmp_path, changes, words):
    small(out=tmp_path)
    with pytest.raises(CheckpointError) as caught:
        small(out=tmp_path, resume=True, **changes)
    assert words in str(caught.value)


def test_a_run_from_damaged_checkpoints_can_itself_be_resumed(tmp_path):
    whole = small(out=tmp_path / "whole")
    small(out=tmp_path / "run")
    for path in (tmp_path / "run" / "checkpoint").glob("*/state.json"):
        path.write_text("{}")

    def stop(event):
        if event["event"] == "round" and event["round"] == 12:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(Interrupted):
        small(out=tmp_path / "run", resume=True, listeners=[stop])
    heard = []
    assert same(whole, small(out=tmp_path / "run", resume=True, listeners=[heard.append]))
    assert next(e for e in heard if e["event"] == "started")["round"] == 12


def test_damaged_metrics_are_named(tmp_path):
    small(out=tmp_path)
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    (tmp_path / "metrics.jsonl").write_text("\n".join([lines[0], "12", *lines[2:]]) + "\n")
    with pytest.raises(CheckpointError, match="line 2"):
        small(out=tmp_path, resume=True)


def test_w_is_kept_about_200_times_at_most():
    result = small(rounds=402, evaluate_every=1)
    assert [t for t, _ in result.snapshots] == list(range(0, 403, 3))
    assert len(result.history) == 403


def test_w_is_settled_when_it_has_not_moved_for_a_tenth_of_the_rounds():
    """However often it is looked at: one round apart, W hardly ever moves by much."""
    often, rarely = (small(rounds=100, evaluate_every=every, method=cobo.CoBo(gamma=0.01)) for every in (1, 10))
    assert [line["settled"] for line in often.history[:10]] == [0] * 10
    assert often.history[20]["settled"] == rarely.history[2]["settled"] < 1
    assert often.history[100]["settled"] == rarely.history[10]["settled"]


def test_a_run_that_ends_before_w_has_settled_says_so():
    for rounds, said in ((30, True), (400, False)):
        heard = []
        small(rounds=rounds, method=cobo.CoBo(gamma=0.1 if rounds > 100 else 0.05), listeners=[heard.append])
        assert any("W is undecided" in e.get("message", "") for e in heard) == said


def test_what_a_run_warns_of_is_a_python_warning_of_the_callers_line_unless_progress_shows_it(capsys):
    with pytest.warns(RunWarning, match="W is undecided, .* run again with more rounds") as said:
        result = small()
    assert [w.filename for w in said] == [__file__]
    assert repr(result).endswith(", W undecided)")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        small(progress=True)
        assert not repr(small(rounds=400, method=cobo.CoBo(gamma=0.1))).endswith(", W undecided)")
    assert "W is undecided" in capsys.readouterr().err


def test_who_never_gives_a_finite_gradient_ties_no_groups_together(tmp_path):
    x, y = torch.full((40, 2), torch.nan), torch.zeros(40, dtype=torch.long)
    clients = [*people(), cobo.Client("sick", train=(x, y))]
    options = {"model": lambda: mlp(2, [6], 2), "batch_size": 5, "lr": 0.1, "method": cobo.CoBo(gamma=0.1)}
    with pytest.warns(RunWarning, match="client 'sick' has values that are not finite in 40 training samples: drop or"):
        result = cobo.fit(clients, rounds=400, out=tmp_path, **options)
    assert result.groups() == cobo.load(tmp_path).groups() == [["c0", "c2"], ["c1", "c3"], ["sick"]]
    assert result.history[-1]["groups"] == 3
    assert not result.snapshots[-1][1][4, :4].any()


def test_data_that_are_not_finite_are_named_at_the_start():
    x, y = torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)
    bad = x.clone()
    bad[1, 0] = torch.nan
    heard = []
    clients = [cobo.Client("sick", train=(bad, y)), cobo.Client("well", train=(x, y))]
    cobo.fit(clients, model=nn.Linear(2, 2), rounds=1, listeners=[heard.append])
    (said,) = (e["message"] for e in heard if e["event"] == "warning")
    assert said.startswith("client 'sick' has values that are not finite in 1 training sample: drop or fill them")


@pytest.mark.parametrize("loss", ["cross_entropy", "binary_cross_entropy"])
def test_outputs_that_are_no_numbers_have_no_accuracy(loss):
    outputs = torch.tensor([[2.0, -torch.inf], [-1.0, -3.0]])
    targets = torch.zeros(2, dtype=torch.long) if loss == "cross_entropy" else torch.zeros(2, 2)

    def right(values):
        return Task(loss).measure(torch.nn.Identity(), (values, targets)).right

    assert right(outputs) == (1.0 if loss == "cross_entropy" else 0.75)
    for bad in (torch.nan, torch.inf):
        assert math.isnan(right(outputs.clone().fill_(bad)))
        outputs[0, 1] = bad
        assert math.isnan(right(outputs))


def test_a_plateau_schedule_is_refused():
    with pytest.raises(ConfigError, match="ReduceLROnPlateau"):
        small(schedule=torch.optim.lr_scheduler.ReduceLROnPlateau)


def test_a_schedule_that_leaves_the_stable_range_is_refused_when_it_does():
    rising = {"schedule": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda t: 1.0 + t)}
    with pytest.raises(ConfigError, match="needs rho <"):
        small(method=cobo.CoBo.paper(rho=1.0), rounds=100, **rising)


def test_fit_leaves_the_users_generators_alone():
    torch.manual_seed(7)
    before = torch.get_rng_state()
    small()
    assert torch.equal(before, torch.get_rng_state())


class Poison(torch.utils.data.Dataset):
    """Data that turn to NaN while `bad` is set."""

    def __init__(self):
        self.bad = False

    def __len__(self):
        return 8

    def __getitem__(self, k):
        return torch.tensor([float("nan") if self.bad else float(k), 1.0]), k % 2


@pytest.mark.parametrize("method", [cobo.CoBo(sampling="every"), cobo.CoBo.paper(sampling="every"), cobo.Local()])
def test_a_client_whose_gradient_is_not_finite_is_set_aside_for_that_round(method):
    poison = Poison()
    clients = [cobo.Client("sick", train=poison), *(blobs(n, seed=k) for k, n in enumerate("ab"))]
    seen, momenta, events = {}, {}, []

    def listen(event):
        if event["event"] == "round":
            poison.bad = event["round"] in (3, 4)  # rounds 4 and 5 will see NaN
        if event["event"] == "evaluated":
            seen[event["round"]] = (run[0].state.X.clone(), run[0].state.tensors.get("weights"))
            buffers = run[0].state.optimizer.state.get(run[0].state.models, {})
            if "momentum_buffer" in buffers:
                momenta[event["round"]] = buffers["momentum_buffer"][0].clone()
        if event["event"] == "set aside":
            events.append((event["round"], event["clients"]))

    run = []
    original = cobo.training.loop.Run.go

    def go(self):
        run.append(self)
        original(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cobo.training.loop.Run, "go", go)
        cobo.fit(
            clients, model=lambda: mlp(2, [4], 2), method=method, rounds=8, momentum=0.9, batch_size=3,
            evaluate_every=1, listeners=[listen], lr=0.05,
        )  # fmt: skip
    assert events == [(4, ["sick"]), (5, ["sick"])]
    for t in (4, 5):
        assert torch.equal(seen[t][0][0], seen[3][0][0])  # its row is untouched
        assert not torch.equal(seen[t][0][1], seen[t - 1][0][1])  # the others go on
        if method.name == "cobo":
            assert torch.equal(seen[t][1][0], seen[3][1][0])  # and so are its pairs
            assert torch.equal(seen[t][1][:, 0], seen[3][1][:, 0])
    assert not torch.equal(seen[6][0][0], seen[5][0][0])
    assert momenta[5].equal(momenta[3])  # its momentum is untouched, and not zero
    assert (momenta[3] != 0).any()
    assert all(torch.isfinite(x).all() for x, _ in seen.values())


def test_a_client_set_aside_does_not_pull_the_others():
    poison = Poison()
    poison.bad = True
    clients = [cobo.Client("sick", train=poison), *(blobs(n, seed=k) for k, n in enumerate("ab"))]
    for mixing in ("explicit", "implicit", "coupled"):
        method = cobo.CoBo(rho=1.0, mixing=mixing, gamma=0.0)
        federation = Federation(clients, mlp(2, [4], 2), batch_size=3)
        moved = []
        for far in (0.0, 100.0):
            X = nn.Parameter(federation.start)
            X.data[0] += far
            state = State(X, torch.optim.SGD([X], lr=0.1), 10, tensors=method.start(federation))
            assert method.round(state, federation) == ["sick"]
            moved.append(state.X[1:].clone())
        assert torch.equal(*moved)


def test_oracle_averages_over_the_members_that_are_finite():
    poison = Poison()
    poison.bad = True
    clients = [cobo.Client("sick", train=poison, group=0), *(blobs(n, seed=k, group=0) for k, n in enumerate("ab"))]
    federation = Federation(clients, mlp(2, [4], 2), batch_size=3)
    G = federation.gradients(federation.start).rows
    X = nn.Parameter(federation.start)
    method = cobo.Oracle()
    state = State(X, torch.optim.SGD([X], lr=0.1), 10, tensors=method.start(federation))
    assert method.round(state, federation) == ["sick"]
    assert torch.allclose(state.X, (federation.start[0] - 0.1 * (G[1] + G[2]) / 2).expand(3, -1), atol=1e-6)


def test_when_no_client_is_finite_the_run_stops_and_keeps_the_last_good_checkpoint(tmp_path):
    poison = [Poison(), Poison()]
    clients = [cobo.Client(n, train=p) for n, p in zip("ab", poison, strict=True)]

    def listen(event):
        if event["event"] == "round" and event["round"] == 12:
            for p in poison:
                p.bad = True

    options = {"model": lambda: mlp(2, [4], 2), "rounds": 20, "batch_size": 3, "evaluate_every": 5}
    with pytest.raises(RunError, match="round 12: no client has a finite gradient"):
        cobo.fit(clients, out=tmp_path, listeners=[listen], **options)
    assert sorted(p.name for p in (tmp_path / "checkpoint").iterdir()) == ["round-00000005", "round-00000010"]
    for p in poison:
        p.bad = False
    assert cobo.fit(clients, out=tmp_path, resume=True, **options).history[-1]["round"] == 20


def test_uniform_output_is_one_of_the_iterates_and_follows_the_seed():
    clients = [point_client("one", [1.0]), point_client("two", [-1.0])]
    run = {"model": Point([5.0]), "objective": quadratic, "rounds": 20}
    path = [cobo.fit(clients, method=cobo.CoBo(), **{**run, "rounds": t}).models["one"].x.item() for t in range(1, 21)]
    drawn = [
        cobo.fit(clients, method=cobo.CoBo(output="uniform"), seed=s, **run).models["one"].x.item() for s in range(6)
    ]
    assert len(set(drawn)) > 2
    assert drawn[0] in path
    result = small(method=cobo.CoBo(output="uniform", gamma=0.3), seed=1)
    inputs, targets = people()[0].test.fields
    accuracy = 100 * (result.models["c0"](inputs).argmax(1) == targets).float().mean().item()
    assert accuracy == pytest.approx(result.history[-1]["client_accuracy"][0], abs=1e-4)
    both = [
        [small(method=cobo.CoBo(output=output), seed=s).weights for output in ("uniform", "last")] for s in range(4)
    ]
    assert any(not np.array_equal(early, late) for early, late in both)


def test_adamw_with_a_schedule_is_torchs_own():
    clients = [point_client("one", [1.0]), point_client("two", [-1.0])]
    result = cobo.fit(
        clients, model=Point([5.0]), objective=quadratic, method=cobo.Local(), rounds=25, lr=0.3,
        optimizer="adamw", weight_decay=0.1, schedule="cosine",
    )  # fmt: skip
    x = nn.Parameter(torch.tensor([5.0], dtype=torch.float64))
    optimizer = torch.optim.AdamW([x], lr=0.3, weight_decay=0.1)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=25)
    for _ in range(25):
        x.grad = x.detach() - 1.0
        optimizer.step()
        schedule.step()
    assert result.models["one"].x.item() == pytest.approx(x.item(), abs=1e-9)


def test_saved_results_come_back_without_pickle(tmp_path):
    result = small()
    result.save(tmp_path)
    back = cobo.load(tmp_path)
    assert same(result, back)
    assert back.groups() == result.groups()
    assert {p.suffix for p in tmp_path.rglob("*") if p.is_file()} == {".json", ".safetensors"}


def test_a_result_replaces_one_that_was_saved_before_but_no_file(tmp_path):
    frozen = nn.Sequential(nn.Linear(2, 3).requires_grad_(False), nn.Linear(3, 2))
    small(model=frozen, rounds=1).save(tmp_path / "saved")
    result = small(method=cobo.Local(), rounds=1)
    result.save(tmp_path / "saved")
    back = cobo.load(tmp_path / "saved")
    assert same(result, back)
    assert back.snapshots == []
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file cannot be used as a folder: File exists; choose another"):
        result.save(tmp_path / "file")


class Own(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x):
        return self.layer(x)


def test_models_of_a_users_own_class_come_back_when_given_again(tmp_path):
    result = small(model=Own)
    result.save(tmp_path)
    assert same(result, cobo.load(tmp_path, model=Own))
    with pytest.raises(CheckpointError, match="model="):
        cobo.load(tmp_path).models["c0"]
    assert torch.equal(cobo.load(tmp_path).states["c0"]["layer.weight"], result.models["c0"].layer.weight)


def test_a_model_that_was_asked_for_is_the_same_when_asked_again_and_is_saved_as_it_is_then(tmp_path):
    result = small(model=Own)
    assert list(result.models) == result.names
    assert "c0" in result.models
    assert "nobody" not in result.models
    with pytest.raises(KeyError):
        result.models["nobody"]
    with pytest.raises(TypeError):
        result.models["c0"] = nn.Linear(2, 2)
    model = result.models["c0"]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    model(torch.ones(1, 2)).sum().backward()
    optimizer.step()
    assert result.models["c0"] is model
    result.save(tmp_path)
    assert torch.equal(cobo.load(tmp_path, model=Own).models["c0"].layer.weight, model.layer.weight)
    assert not torch.equal(result.models["c1"].layer.weight, model.layer.weight)


def test_a_result_can_be_pickled_and_copied_whatever_makes_its_models(tmp_path):
    result = small(model=lambda: Own(), out=tmp_path)
    for one in (result, cobo.load(tmp_path, model=lambda: Own())):
        assert same(one, pickle.loads(pickle.dumps(one)))
        assert same(one, copy.deepcopy(one))


def test_shared_layers_and_other_types_come_back_as_they_were(tmp_path):
    relu = nn.ReLU()
    model = nn.Sequential(nn.Linear(2, 4), relu, nn.Linear(4, 2), relu).double()
    result = small(model=model)
    result.save(tmp_path)
    back = cobo.load(tmp_path)
    x = torch.randn(5, 2, dtype=torch.float64)
    assert torch.equal(result.models["c0"](x), back.models["c0"](x))


def test_a_frozen_base_is_saved_once(tmp_path):
    model = nn.Sequential(nn.Linear(2, 50).requires_grad_(False), nn.Linear(50, 2))
    result = small(model=model, out=tmp_path)
    assert set(result.states["c0"]) == {"1.weight", "1.bias"}
    assert set(result.shared) == {"0.weight", "0.bias"}
    assert same(result, cobo.load(tmp_path))
    with pytest.raises(CheckpointError, match="does not fit"):
        cobo.load(tmp_path, model=nn.Linear(3, 3))


def test_groups_may_be_numpy_numbers(tmp_path):
    clients = [blobs(n, seed=k, group=np.int64(k % 2)) for k, n in enumerate("abcd")]
    cobo.fit(clients, model=nn.Linear(2, 2), rounds=2, out=tmp_path)
    assert cobo.load(tmp_path).true_groups == [0, 1, 0, 1]


def test_loading_nonsense_is_one_clear_line(tmp_path):
    with pytest.raises(CheckpointError, match="holds no result"):
        cobo.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"rounds": 0}, "rounds = 0"),
        ({"lr": -1}, "lr = -1"),
        ({"batch_size": 0}, "batch_size = 0"),
        ({"momentum": 1.5}, "momentum = 1.5"),
        ({"optimizer": "lbfgs"}, "'sgd' or 'adamw'"),
        ({"schedule": "cosign"}, "schedule"),
        ({"learning_rate": 1}, "no setting 'learning_rate'"),
        ({"loss": "hinge"}, "loss = 'hinge'"),
        ({"method": "cobo"}, "method = 'cobo'"),
        ({"model": 3}, "model = 3"),
        ({"resume": True}, "out="),
        ({"out": 5}, "out = 5"),
        ({"out": __file__}, "cannot be used as a folder"),
        ({"device": "cuda:77"}, "device = 'cuda:77'"),
        ({"buffers": "global"}, "'local', 'shared' or 'none'"),
    ],
)
def test_wrong_settings_get_one_clear_line(changes, words):
    with pytest.raises(ConfigError) as caught:
        small(**changes)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_tensorboard_gets_the_metrics(tmp_path):
    small(listeners=[TensorBoard(tmp_path)])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path))
    board.Reload()
    assert {"accuracy", "loss", "settled", "accuracy/c0"} <= set(board.Tags()["scalars"])
    assert [e.step for e in board.Scalars("accuracy")] == [0, 5, 10, 15, 20, 25, 30]


def test_fit_works_outside_the_main_thread():
    results = []
    thread = threading.Thread(target=lambda: results.append(small()))
    thread.start()
    thread.join()
    assert same(results[0], small())


def test_a_short_run_keeps_its_numbers():
    """A change that should not change results must not; one that should must say so and change these."""
    result = small(seed=0, rounds=50, method=cobo.CoBo.paper(gamma=0.3))
    assert result.history[-1]["gradients"] == PINNED["gradients"]
    assert result.history[-1]["loss"] == pytest.approx(PINNED["loss"], abs=1e-4)
    assert result.weights[0] == pytest.approx(PINNED["weights"], abs=1e-4)


PINNED = {"gradients": 524, "loss": 0.144403, "weights": [1.0, 0.0, 1.0, 0.0]}


def twice(fields, keys):
    return (2 * fields[0], *fields[1:])


def thrice(fields, keys):
    return (3 * fields[0], *fields[1:])


def test_a_run_goes_on_only_with_the_same_augmentation_of_ones_own(tmp_path):
    def stop(event):
        if event["event"] == "checkpoint":
            raise RunError("enough")

    with pytest.raises(RunError, match="enough"):
        small(out=tmp_path, augment=twice, listeners=[stop])
    for other in (None, thrice):
        with pytest.raises(CheckpointError, match=r"augment = .*twice"):
            small(out=tmp_path, augment=other, resume=True)
    small(out=tmp_path, augment=twice, resume=True)


def test_checkpoints_have_the_rights_of_all_other_files(tmp_path):
    small(out=tmp_path)
    rights = {path.name: path.stat().st_mode & 0o777 for path in tmp_path.glob("checkpoint/round-*/*")}
    assert set(rights) == {"state.json", "state.safetensors"}
    assert len({*rights.values(), (tmp_path / "metrics.jsonl").stat().st_mode & 0o777}) == 1


def test_a_checkpoint_that_cannot_be_written_is_an_error_of_the_file_and_leaves_the_last_one(tmp_path, monkeypatch):
    small(out=tmp_path, rounds=4)

    def full(tensors, path):
        raise SafetensorError("I/O error: No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", full)
    with pytest.raises(OSError, match="No space left") as caught:
        checkpoint.write(tmp_path / "checkpoint", 9, checkpoint.Checkpoint({}, {}))
    assert caught.value.filename.endswith("state.safetensors")
    found = checkpoint.read_latest(tmp_path / "checkpoint", pytest.fail)
    assert found is not None
    assert found.facts["round"] == 4


def test_what_a_kill_left_half_written_is_swept_away(tmp_path):
    small(out=tmp_path)
    for name in (".writing-1-weights.safetensors", "models/.writing-1-c0.safetensors"):
        (tmp_path / name).write_bytes(b"half")
    before = {path for path in tmp_path.rglob("*") if not path.name.startswith(".writing-")}
    small(out=tmp_path, resume=True)
    assert set(tmp_path.rglob("*")) == before


def test_nothing_of_a_run_outlives_it():
    """Without a collector of cycles: models and samples are large, and many runs may follow each other."""
    clients = [blobs("a", seed=0), blobs("b", seed=1)]
    held = [weakref.ref(clients[0].train)]
    gc.collect()
    gc.disable()
    try:
        cobo.fit(clients, model=lambda: nn.Linear(2, 2), rounds=2, listeners=[lambda event: None])
        del clients
        assert held[0]() is None
    finally:
        gc.enable()


def test_a_slow_run_says_seconds_a_round_and_not_none_a_second(monkeypatch, capsys):
    clock = iter([0.0, 0.0, 25.0, 50.0])
    monkeypatch.setattr(cobo.training.progress.time, "monotonic", lambda: next(clock))
    shown = LiveProgress("cobo")
    shown({"event": "started", "round": 0, "rounds": 10})
    for round in (0, 2, 10):
        shown({"event": "evaluated", "round": round, "loss": 1.0, "groups": 2, "settled": 1.0})
    lines = capsys.readouterr().err.splitlines()
    assert lines[1] == "cobo: round 2/10 12.5 s each loss 1, 2 groups, W at rest 100 %"
    assert lines[2].startswith("cobo: round 10/10 5 s each")


def test_a_damaged_model_of_a_saved_result_is_named(tmp_path):
    cobo.fit([blobs("a", seed=0), blobs("b", seed=1)], model=nn.Linear(2, 2), rounds=2).save(tmp_path)
    path = tmp_path / "models" / "b.safetensors"
    path.write_bytes(path.read_bytes()[:20])
    with pytest.raises(CheckpointError, match=r"models/b.safetensors is damaged: .*; run again"):
        cobo.load(tmp_path)
