"""Where and in what precision models are computed: bfloat16 layers, and every path on a GPU where there is one."""

from contextlib import contextmanager

import numpy as np
import pytest
import torch
from conftest import blobs
from test_images import picture_clients, standardised
from torch import nn

import cobo
from cobo import draws
from cobo.errors import CheckpointError, ConfigError
from cobo.experiments import EXPERIMENTS, load_experiment
from cobo.experiments.runner import run as run_one
from cobo.federation import Federation, Roster
from cobo.methods import METHODS
from cobo.models import mlp

CUDA = pytest.param(
    "cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU on this computer")
)


def parties(n: int = 4, samples: int = 40) -> list[cobo.Client]:
    return [blobs(f"c{k}", seed=k, flip=k % 2 == 1, group=k % 2, samples=samples) for k in range(n)]


def narrow() -> nn.Module:
    return mlp(2, [16], 2)


def normalised() -> nn.Module:
    return nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2), nn.Linear(8, 2))


# Precision


@pytest.mark.parametrize("executor", ["looped", "vectorised"])
@pytest.mark.parametrize(("clients", "model"), [(parties, narrow), (picture_clients, standardised)], ids=["mlp", "cnn"])
def test_gradients_in_bfloat16_are_close_float32_and_repeatable(clients, model, executor):
    def answer(precision):
        federation = Federation(clients(), model, executor=executor, precision=precision, batch_size=12)
        pairs = np.array([[0, 1], [1, 2]])
        return federation.gradients(federation.start, pairs=pairs), federation.evaluate(federation.start)

    (exact, judged), (rough, about), (again, _) = (answer(p) for p in ("float32", "bfloat16", "bfloat16"))
    assert rough.rows.dtype == rough.losses.dtype == rough.products.inner.dtype == torch.float32
    assert not torch.equal(rough.rows, exact.rows)
    off = (rough.rows - exact.rows).norm(dim=1) / exact.rows.norm(dim=1)
    assert off.max() < 0.08
    torch.testing.assert_close(rough.losses, exact.losses, rtol=0.02, atol=0.02)
    assert torch.equal(rough.rows, again.rows)
    assert torch.equal(rough.products.inner, again.products.inner)
    for one, other in zip(judged, about, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=0.02)


@pytest.mark.parametrize("method", [cobo.CoBo(), cobo.Ditto(local_steps=2, lam=0.1)])
def test_a_run_in_bfloat16_learns_and_resumes(tmp_path, method):
    def run(rounds=15, **options):
        return cobo.fit(
            parties(), model=narrow, method=method, rounds=rounds, lr=0.1, momentum=0.9, evaluate_every=5,
            precision="bfloat16", **options,
        )  # fmt: skip

    class Stop(Exception):
        pass

    def stop(event):
        if event["event"] == "checkpoint" and event["round"] == 10:
            raise Stop

    whole = run()
    assert whole.history[-1]["accuracy"] > 90
    assert all(p.dtype == torch.float32 for p in whole.models["c0"].parameters())
    with pytest.raises(Stop):
        run(out=tmp_path, listeners=[stop])
    resumed = run(out=tmp_path, resume=True)
    assert resumed.training["precision"] == "bfloat16"
    for name in whole.names:
        for a, b in zip(whole.models[name].parameters(), resumed.models[name].parameters(), strict=True):
            assert torch.equal(a, b)


@pytest.mark.parametrize(
    ("known", "expected"),
    [({"avx512_bf16": True}, "bfloat16"), ({"amx_bf16": True}, "bfloat16"), ({"avx512_f": True}, "float32")],
)
def test_auto_is_bfloat16_where_the_processor_has_it_and_is_recorded_as_what_it_came_to(known, expected, monkeypatch):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: known, raising=False)
    result = cobo.fit(parties(), model=narrow, rounds=1, precision="auto")
    assert result.training["precision"] == expected
    assert load_experiment("language-small", EXPERIMENTS).plain()["precision"] == expected


def test_another_precision_is_named_when_a_run_goes_on(tmp_path):
    options = {"model": narrow, "rounds": 4, "out": tmp_path}
    cobo.fit(parties(), **options)
    with pytest.raises(CheckpointError, match=r"precision = 'float32', not 'bfloat16'"):
        cobo.fit(parties(), precision="bfloat16", resume=True, **options)


def test_a_folder_from_before_there_was_a_choice_can_be_added_to(tmp_path):
    experiment = load_experiment("digits", EXPERIMENTS, ["rounds=2", "samples=20"])
    run_one(experiment, "local", 0, tmp_path, resume=False, progress=False)
    path = tmp_path / "experiment.toml"
    lines = path.read_text().splitlines()
    path.write_text("\n".join(line for line in lines if not line.startswith("precision")))
    run_one(experiment, "local", 1, tmp_path, resume=False, progress=False)
    with pytest.raises(CheckpointError, match=r"holds runs with precision = 'float32', not 'bfloat16'"):
        run_one(experiment.replace(precision="bfloat16"), "local", 2, tmp_path, resume=False, progress=False)


def test_bfloat16_needs_a_model_of_float32_and_other_precisions_are_refused():
    with pytest.raises(ConfigError, match=r"precision = 'bfloat16' needs a model of float32, but it has torch.float64"):
        cobo.fit(parties(), model=lambda: narrow().double(), rounds=1, precision="bfloat16")
    with pytest.raises(ConfigError, match=r"precision = 'float16' is not allowed.*'bfloat16'"):
        cobo.fit(parties(), model=narrow, rounds=1, precision="float16")


# Devices


ON_CUDA = [pytest.param("cuda", name, marks=CUDA.marks) for name in METHODS]


@pytest.mark.parametrize(("device", "name"), [("cpu", "ditto"), *ON_CUDA])
def test_every_method_runs_stops_and_goes_on_on_a_device(tmp_path, device, name):
    method = METHODS[name]()
    options = {"method": method, "model": normalised, "rounds": 6, "evaluate_every": 2, "momentum": 0.5, "lr": 0.05}
    whole = cobo.fit(parties(), device=device, out=tmp_path / "whole", **options)
    assert next(whole.models["c0"].parameters()).device.type == device
    cobo.fit(parties(), device=device, out=tmp_path / "part", **options)
    last = max((tmp_path / "part" / "checkpoint").iterdir())
    for path in last.iterdir():
        path.unlink()
    last.rmdir()
    resumed = cobo.fit(parties(), device=device, out=tmp_path / "part", resume=True, **options)
    for a, b in zip(whole.models["c0"].parameters(), resumed.models["c0"].parameters(), strict=True):
        torch.testing.assert_close(a, b)
    assert cobo.load(tmp_path / "part").names == whole.names


@pytest.mark.parametrize("device", ["cpu", CUDA])
def test_joining_stragglers_pictures_and_precision_on_a_device(device):
    common = {"device": device, "rounds": 6, "lr": 0.05, "batch_size": 4}
    roster = Roster(changes=[{"round": 2, "join": "c3"}, {"round": 4, "leave": "c0"}])
    cobo.fit(parties(), model=normalised, roster=roster, **common)
    clocks = {"times": "log-normal", "blocking": False, "delay": 0.3}
    cobo.fit(parties(), model=narrow, clocks=clocks, momentum=0.5, **common)
    for executor in ("looped", "vectorised"):
        result = cobo.fit(
            picture_clients(),
            model=standardised,
            augment="crop-flip",
            precision="bfloat16",
            executor=executor,
            **common,
        )
        assert result.history[-1]["loss"] < 10
    cobo.fit(parties(), model=narrow, method=cobo.CoBo(domain="simplex", mixing="implicit"), **common)
    cobo.fit(parties(), model=narrow, method=cobo.CoBo(output="uniform", ask="all"), **common)


@pytest.mark.parametrize("device", [CUDA])
def test_a_gpu_gives_the_numbers_of_the_cpu(device):
    rows = []
    for where in ("cpu", device):
        result = cobo.fit(parties(), model=narrow, rounds=20, lr=0.05, device=where)
        rows.append(torch.cat([p.detach().cpu().flatten() for p in result.models["c0"].parameters()]))
    torch.testing.assert_close(*rows, rtol=1e-3, atol=1e-4)


def test_the_generator_of_the_runs_own_gpu_is_seeded_and_put_back(monkeypatch):
    """Without a GPU: what torch is asked to do for cuda:1."""
    asked = []

    @contextmanager
    def fork_rng(devices):
        asked.append(("kept", devices))
        yield

    @contextmanager
    def current(device):
        asked.append(("on", device))
        yield

    monkeypatch.setattr(torch.random, "fork_rng", fork_rng)
    monkeypatch.setattr(torch.cuda, "device", current)
    monkeypatch.setattr(torch.cuda, "manual_seed", lambda seed: asked.append(("seeded", seed)))
    key, second = draws.key(0, "dropout", "north"), torch.device("cuda:1")
    state = torch.get_rng_state()
    with draws.torch_generators(second, key):
        pass
    torch.set_rng_state(state)
    assert asked == [("kept", [second]), ("on", second), ("seeded", draws.torch_seed(key))]


def test_a_device_that_is_not_there_is_one_clear_line():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ConfigError) as error:
        cobo.fit(parties(), model=narrow, rounds=1, device="cuda:1")
    assert "device = 'cuda:1' is not allowed; it should be a device that torch can use here" in str(error.value)
    assert "\n" not in str(error.value)
