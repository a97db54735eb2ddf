"""The image experiments: their models, what is done to a batch, who gets which images, and the presets."""

import sys

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import cobo
from cobo import cli, draws
from cobo.collaboration import graph
from cobo.collaboration.sampling import Constants, expected
from cobo.data import Split
from cobo.errors import ConfigError, DataError
from cobo.experiments import EXPERIMENTS, images, load_experiment
from cobo.experiments.runner import Claim
from cobo.experiments.runner import run as run_one
from cobo.federation import Federation
from cobo.federation.augment import PAD, crop_flip
from cobo.methods import METHODS
from cobo.models import Residual, Standardise, cnn, patch_cnn, resnet9
from cobo.training import architecture


def bytes_of(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def fake(per_class: int, size: int, seed: int) -> Split:
    """As many images of each of 100 classes, in mixed order."""
    targets = torch.arange(100 * per_class)[
        torch.randperm(100 * per_class, generator=torch.Generator().manual_seed(seed))
    ]
    return Split(bytes_of(100 * per_class, 3, size, size, seed=seed), targets % 100)


@pytest.fixture
def small(monkeypatch):
    """2,000 images to train on and 400 to judge by, 16x16, in the place of CIFAR-100."""
    sides = fake(20, 16, 0), fake(4, 16, 1)
    monkeypatch.setattr(images, "cifar100", lambda: sides)
    return sides


@pytest.fixture
def counted(monkeypatch):
    """As many images as CIFAR-100 has, of one pixel: for counting."""
    sides = fake(500, 1, 0), fake(100, 1, 1)
    monkeypatch.setattr(images, "cifar100", lambda: sides)
    return sides


# Models


def by_hand(width: int, outputs: int) -> int:
    """Kernels of 3x3 without bias, two numbers a channel for the normalisation after each, and the linear layer."""
    w = width
    ends = [(3, w), (w, 2 * w), (2 * w, 2 * w), (2 * w, 2 * w), (2 * w, 4 * w), (4 * w, 8 * w), (8 * w, 8 * w)]
    ends.append((8 * w, 8 * w))
    return sum(9 * a * b + 2 * b for a, b in ends) + (8 * w + 1) * outputs


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize("width", [1, 4, 10, 64])
def test_resnet9_has_the_parameters_counted_by_hand(width, norm):
    model = resnet9(3, 100, width=width, norm=norm)
    assert sum(p.numel() for p in model.parameters()) == by_hand(width, 100)
    assert by_hand(64, 100) == 6_619_300
    kinds = {"batch": nn.BatchNorm2d, "group": nn.GroupNorm}
    assert sum(isinstance(part, kinds[norm]) for part in model.modules()) == 8
    if width <= 4:
        for size in (8, 32, 33):
            assert model(torch.randn(2, 3, size, size)).shape == (2, 100)


def test_a_residual_block_adds_what_is_inside():
    x = torch.randn(2, 3)
    inside = nn.Linear(3, 3)
    assert torch.equal(Residual(inside, nn.ReLU())(x), x + F.relu(inside(x)))


@pytest.mark.parametrize("width", [1, 12, 16])
def test_patch_cnn_takes_any_width_and_images_from_16_pixels_on(width):
    model = patch_cnn(3, 10, width=width)
    for size in (16, 32, 35):
        assert model(torch.randn(2, 3, size, size)).shape == (2, 10)


def test_bytes_and_numbers_are_standardised_alike():
    raw = bytes_of(4, 3, 5, 5)
    layer = Standardise(images.MEAN, images.STD)
    assert layer(raw).dtype == torch.float32
    torch.testing.assert_close(layer(raw), layer(raw.float() / 255), rtol=1e-5, atol=1e-5)
    mean, std = (torch.tensor(v)[:, None, None] for v in (images.MEAN, images.STD))
    torch.testing.assert_close(layer(raw), (raw.float() / 255 - mean) / std, rtol=1e-5, atol=1e-5)
    for dtype in (torch.float64, torch.bfloat16):  # what comes out has the type of the model, whatever goes in
        twin = Standardise(images.MEAN, images.STD).to(dtype)
        assert twin(raw).dtype == twin(raw.float() / 255).dtype == dtype
    assert not list(layer.state_dict())


def picture_clients(count: int = 3, samples: int = 12, size: int = 8) -> list[cobo.Client]:
    def side(seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        return bytes_of(samples, 3, size, size, seed=seed), torch.arange(samples) % 4

    return [cobo.Client(f"c{k}", train=side(k), test=side(100 + k)) for k in range(count)]


def standardised() -> nn.Sequential:
    return nn.Sequential(Standardise(images.MEAN, images.STD), *cnn(3, 4, width=2))


def test_bytes_stay_bytes_in_the_pool_and_both_executors_agree():
    answers = []
    for executor in ("looped", "vectorised"):
        federation = Federation(picture_clients(), standardised, executor=executor, batch_size=5)
        assert federation._train._pool._fields[0].dtype == torch.uint8
        assert federation._train.draw(np.arange(3), federation.keys("batch"), 5)[0].dtype == torch.uint8
        answers.append(federation.gradients(federation.start).rows)
    torch.testing.assert_close(*answers, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("network", "norm"), [("resnet9", "batch"), ("resnet9", "group"), ("patch-cnn", "batch")])
def test_saved_image_models_come_back_without_the_model(tmp_path, small, network, norm):
    experiment = load_experiment("cross-silo", EXPERIMENTS, [f"network={network}", f"norm={norm}", "width=2"])
    clients, model, loss = experiment.parts(0)
    result = cobo.fit(clients[:2], model=model, loss=loss, rounds=1, batch_size=4, out=tmp_path, method=cobo.Local())
    loaded = cobo.load(tmp_path)
    x = small[1].inputs[:5]
    for name in result.names:
        assert torch.equal(loaded.models[name](x), result.models[name](x))


def test_a_norm_that_the_network_does_not_have_is_refused():
    with pytest.raises(ConfigError, match="norm = 'group' has a meaning only with network = 'resnet9'"):
        load_experiment("cross-silo-small", EXPERIMENTS, ["norm=group"])


def test_only_layers_of_torch_and_of_ours_are_ever_made():
    for name in ("Module", "Sequential2", "open", "layers", "Tensor", "functional", "__builtins__"):
        with pytest.raises((ValueError, AttributeError, TypeError)):
            architecture.rebuild({"class": name, "settings": {"file": "x"}})

    class Mine(Residual):
        pass

    assert architecture.describe(nn.Sequential(Mine(nn.Linear(2, 2)))) is None
    assert architecture.describe(nn.Sequential(Residual(nn.Linear(2, 2)))) is not None


# Augmentation


def drawn(keys: np.ndarray, count: int) -> np.ndarray:
    """[m, 3, count]: for every image the shift down, the shift to the right, and whether it is mirrored."""
    u = draws.uniform(draws.combine(keys, draws.key(0, "crop and flip")), 3 * count).reshape(len(keys), 3, count)
    return np.concatenate([np.floor(u[:, :2] * 9).astype(int) - 4, (u[:, 2:] < 0.5).astype(int)], axis=1)


@pytest.mark.parametrize("shape", [(3, 32, 32), (1, 5, 9), (3, 8, 8)])
def test_crop_and_flip_is_a_crop_of_the_padded_image(shape):
    keys = draws.combine(draws.key(0, "test"), np.arange(2, dtype=np.uint64))
    pictures, targets = bytes_of(2, 30, *shape), torch.arange(60).view(2, 30)
    changed, same = crop_flip((pictures, targets), keys)
    assert changed.dtype == torch.uint8
    assert torch.equal(same, targets)
    shifts = drawn(keys, 30)
    _, height, width = shape
    for m in range(2):
        padded = F.pad(pictures[m].float(), (PAD, PAD, PAD, PAD), mode="reflect").byte()
        for k in range(30):
            down, right, mirrored = shifts[m, :, k]
            crop = padded[k, :, PAD + down : PAD + down + height, PAD + right : PAD + right + width]
            assert torch.equal(changed[m, k], crop.flip(-1) if mirrored else crop)


def test_crops_are_uniform_and_half_are_mirrored():
    shifts = drawn(draws.combine(draws.key(0, "many"), np.arange(100, dtype=np.uint64)), 200)
    counts = np.bincount(9 * (shifts[:, 0] + 4).ravel() + (shifts[:, 1] + 4).ravel(), minlength=81)
    expected = 20_000 / 81
    assert len(counts) == 81
    assert ((counts - expected) ** 2 / expected).sum() < 130  # chi squared, 80 degrees of freedom: p about 0.0003
    assert 0.48 < shifts[:, 2].mean() < 0.52


def test_augmentation_follows_client_and_round_and_not_who_else_is_there():
    def batch(names: list[str], round: int) -> dict[str, torch.Tensor]:
        clients = [client for client in picture_clients() if client.name in names]
        federation = Federation(clients, standardised, batch_size=6, augment=crop_flip, seed=3)
        keys = draws.combine(federation._keys, round, 0)
        fields = federation._train.draw(np.arange(len(clients)), keys, 6)
        return dict(zip(federation.names, fields[0], strict=True))

    everyone, some = batch(["c0", "c1", "c2"], 5), batch(["c0", "c2"], 5)
    assert all(torch.equal(everyone[name], some[name]) for name in some)
    assert not torch.equal(everyone["c0"], batch(["c0", "c1", "c2"], 6)["c0"])
    same = [cobo.Client(n, train=picture_clients()[0].train, test=picture_clients()[0].test) for n in ("a", "b")]
    federation = Federation(same, standardised, batch_size=None, augment=crop_flip)
    one, other = federation._train.draw(np.arange(2), federation._keys, None)[0]
    assert not torch.equal(one, other)


def test_evaluation_is_not_augmented():
    plain, augmented = (
        Federation(picture_clients(), standardised, batch_size=6, augment=augment) for augment in (None, crop_flip)
    )
    assert plain.evaluate(plain.start) == augmented.evaluate(plain.start)
    gradients = [federation.gradients(federation.start).rows for federation in (plain, augmented)]
    assert not torch.allclose(*gradients)


@pytest.mark.parametrize("shape", [(4,), (3, 4, 8), (3, 8, 4), (8, 8)])
def test_what_is_no_image_cannot_be_cropped(shape):
    clients = [cobo.Client(n, train=(torch.randn(6, *shape), torch.zeros(6).long())) for n in "ab"]
    with pytest.raises(ConfigError) as error:
        cobo.fit(clients, model=lambda: cobo_mlp(shape), rounds=1, augment="crop-flip")
    assert "more than 4x4 pixels" in str(error.value)
    assert str(list(shape)) in str(error.value)
    assert "\n" not in str(error.value)


def cobo_mlp(shape: tuple[int, ...]) -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(int(np.prod(shape)), 2))


def test_an_augmentation_of_ones_own_and_unknown_names():
    seen = []

    def dark(fields, keys):
        seen.append(len(keys))
        return torch.zeros_like(fields[0]), *fields[1:]

    result = cobo.fit(picture_clients(), model=standardised, rounds=2, batch_size=4, augment=dark, method=cobo.Local())
    assert sum(seen) == 6
    assert result.history[-1]["accuracy"] is not None
    with pytest.raises(ConfigError) as error:
        cobo.fit(picture_clients(), model=standardised, rounds=1, augment="cut-out")
    assert "'cut-out'" in str(error.value)
    assert "'crop-flip'" in str(error.value)
    assert "\n" not in str(error.value)


# Who gets which images


def test_cross_silo_gives_each_client_half_and_each_group_its_own_names(counted):
    train, _ = counted
    shares = load_experiment("cross-silo", EXPERIMENTS)._shares(train, 0)
    assert [share.group for share in shares] == [0, 0, 1, 1, 2, 2, 3, 3]
    assert [len(share.positions) for share in shares] == [25_000] * 8
    for one, other in zip(shares[::2], shares[1::2], strict=True):
        assert np.array_equal(np.sort(np.concatenate([one.positions, other.positions])), np.arange(50_000))
        assert np.array_equal(one.labels, other.labels)
    names = np.stack([share.labels for share in shares[::2]])
    assert all(sorted(labels) == list(range(100)) for labels in names)
    assert all(len(set(names[:, c])) == 4 for c in range(100))
    clients = load_experiment("cross-silo", EXPERIMENTS).build(0).clients
    assert all(len(client.test) == 10_000 for client in clients)
    assert len({client.test.fields[0].data_ptr() for client in clients}) == 1


def test_cross_device_gives_each_group_ten_classes_of_its_own(counted):
    train, _ = counted
    experiment = load_experiment("cross-device", EXPERIMENTS)
    clients = experiment.build(0).clients
    sizes = [6, 6, 7, 7, 8, 8, 9, 9, 10, 10]
    assert len(clients) == 80
    assert [sum(client.group == g for client in clients) for g in range(10)] == sizes
    owned = []
    for group in range(10):
        members = [client for client in clients if client.group == group]
        assert sum(len(client.train) for client in members) == 5_000
        assert max(len(c.train) for c in members) - min(len(c.train) for c in members) <= 1
        classes = set(torch.cat([client.train.fields[1] for client in members]).tolist())
        assert all(set(client.test.fields[1].tolist()) == classes for client in members)
        assert all(len(client.test) == 1_000 for client in members)
        owned.append(classes)
    assert all(len(classes) == 10 for classes in owned)
    assert set.union(*owned) == set(range(100))
    positions = np.concatenate([share.positions for share in experiment._shares(train, 0)])
    assert np.array_equal(np.sort(positions), np.arange(50_000))


@pytest.mark.parametrize(("name", "each"), [("cross-silo", 2_500), ("cross-device", None)])
def test_a_fraction_of_the_images(counted, name, each):
    clients = load_experiment(name, EXPERIMENTS, ["fraction=0.1"]).build(0).clients
    held = [len(client.train) for client in clients]
    assert sum(held) == (20_000 if each else 5_000)
    assert each is None or held == [each] * 8


def test_a_quick_look_at_a_part_of_the_test_images(counted):
    clients = load_experiment("cross-silo", EXPERIMENTS, ["test_fraction=0.01"]).build(0).clients
    assert [len(client.test) for client in clients] == [100] * 8
    clients = load_experiment("cross-device", EXPERIMENTS, ["test_fraction=0.1"]).build(0).clients
    assert sum(len(client.test) for client in clients if client.name.endswith("client0")) == 1_000


def test_which_test_images_judge_does_not_depend_on_the_seed(small):
    def judged(seed: int) -> set[bytes]:
        clients = load_experiment("cross-silo", EXPERIMENTS, ["fraction=0.1", "test_fraction=0.3"]).build(seed).clients
        return {image.numpy().tobytes() for image in clients[0].test.fields[0]}

    assert judged(0) == judged(1)


@pytest.mark.parametrize("name", ["cross-silo-small", "cross-device-small"])
def test_validation_touches_no_test_image_and_nobody_trains_on_it(small, name):
    train, test = small
    clients = load_experiment(name, EXPERIMENTS, ["fraction=1.0", "test_fraction=1.0"]).build(0, validation=0.2).clients

    def pictures(samples) -> set[bytes]:
        return {image.numpy().tobytes() for image in samples}

    judged = set.union(*(pictures(client.test.fields[0]) for client in clients))
    trained = set.union(*(pictures(client.train.fields[0]) for client in clients))
    assert len(judged) == 400
    assert judged | trained == pictures(train.inputs)
    assert not judged & trained
    assert not (judged | trained) & pictures(test.inputs)


@pytest.mark.parametrize("name", ["cross-silo", "cross-device"])
def test_another_seed_divides_otherwise(counted, name):
    train, _ = counted
    experiment = load_experiment(name, EXPERIMENTS)
    one, again, other = (experiment._shares(train, seed) for seed in (0, 0, 1))
    assert all(np.array_equal(a.positions, b.positions) for a, b in zip(one, again, strict=True))
    assert not any(np.array_equal(a.positions, b.positions) for a, b in zip(one, other, strict=True))
    assert not any(np.array_equal(a.labels, b.labels) for a, b in zip(one, other, strict=True))


# The presets


@pytest.mark.parametrize(("name", "rounds", "share"), [("cross-silo", 40_000, 1.0), ("cross-device", 20_000, 0.1)])
def test_the_presets_are_the_papers(name, rounds, share):
    experiment = load_experiment(name, EXPERIMENTS)
    assert (experiment.rounds, experiment.batch_size, experiment.width) == (rounds, 128, 64)
    assert (experiment.network, experiment.norm, experiment.buffers) == ("resnet9", "batch", "local")
    assert experiment.augment == "crop-flip"
    assert experiment.cadence == rounds // 100
    for method in METHODS:
        training = experiment.training(method, 0)
        assert training["lr"] == {"ditto": 0.1, "fc": 0.05}.get(method, 0.01)
        assert (training["momentum"], training["weight_decay"], training["schedule"]) == (0, 0, "constant")
    assert experiment.method("ditto").lam == 1
    assert experiment.method("ifca").participation == share
    method = experiment.method("cobo")
    assert method == cobo.CoBo.paper(sampling="mixed", time_rate=method.time_rate)
    assert method.switch == 0.002
    n = {"cross-silo": 8, "cross-device": 80}[name]
    asked = expected("mixed", rounds, n, Constants(method.rate, method.time_rate, method.switch), symmetric=False)
    assert asked[-1] > 20  # every ordered pair; or W could not be right, however long it takes
    assert asked[rounds // 8] > 15
    assert 2 * (n - 1) * asked[-1] < 0.25 * rounds  # gradients of pairs, for each client, beside its own


def test_methods_that_cost_too_much_run_when_they_are_named(tmp_path, monkeypatch, capsys):
    for name in ("cross-device", "cross-device-small"):
        experiment = load_experiment(name, EXPERIMENTS)
        assert cli.runs._wanted("all", experiment) == [method for method in METHODS if method != "fc"]
        assert capsys.readouterr().err == f"{name}: fc left out, as it costs far more; name it to run it\n"
        assert cli.runs._wanted("fc,local", experiment) == ["fc", "local"]
        assert capsys.readouterr().err == ""
    assert cli.runs._wanted("all", load_experiment("digits", EXPERIMENTS)) == list(METHODS)
    with pytest.raises(ConfigError, match=r"leave_out.*'nobody'.*local, "):
        load_experiment("digits", EXPERIMENTS, ['leave_out=["nobody"]'])
    left = [method for method in METHODS if method != "local"]
    command = ["compare", "digits", "--set", f"leave_out={left}", "--rounds", "2", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["cobo", *command])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    assert capsys.readouterr().err.count("left out") == 1
    assert [path.name for path in tmp_path.iterdir() if path.is_dir() and path.name != "figures"] == ["local"]
    Claim(tmp_path, load_experiment("digits", EXPERIMENTS, ["rounds=2"]))  # the folder takes other methods, too


@pytest.mark.slow
def test_the_burst_of_cross_silo_small_finds_the_groups(real, tmp_path, monkeypatch):
    """The preset's first tenth: as many questions, and a pull that grows as steeply."""
    monkeypatch.setenv("COBO_DATA", str(real))
    preset = load_experiment("cross-silo-small", EXPERIMENTS)
    method, rounds = preset.method("cobo"), preset.rounds // 10
    changes = [f"cobo.switch={10 * method.switch}", "cobo.ramp=1.0", f"cobo.rho={method.rho / (10 * method.ramp)}"]
    experiment = load_experiment(
        "cross-silo-small",
        EXPERIMENTS,
        [f"rounds={rounds}", f"evaluate_every={rounds}", "test_fraction=0.02", *changes],
    )
    result = run_one(experiment, "cobo", 0, tmp_path, resume=False, progress=False)
    assert graph.groups_score(result.weights, result.true_groups) == 1
    off = ~np.eye(len(result.names), dtype=bool)
    assert graph.undecided(result.weights) == 0
    assert graph.weights_error(result.weights, result.true_groups) < 0.01
    assert result.weights[off].mean() == pytest.approx(1 / 7, abs=0.01)  # each has one friend


def test_augmentation_is_left_out_by_name_and_a_wrong_name_is_told_what_there_is():
    assert load_experiment("cross-silo", EXPERIMENTS, ["augment=none"]).augment is None
    with pytest.raises(ConfigError, match=r"augment = 'flip' is not allowed; it should be 'crop-flip' or 'none'"):
        load_experiment("cross-silo", EXPERIMENTS, ["augment=flip"])


def test_only_too_few_images_are_blamed_on_the_fraction(small):
    with pytest.raises(ConfigError) as error:
        load_experiment("cross-silo", EXPERIMENTS, ["groups=101"]).build(0)
    assert "fraction" not in str(error.value)
    with pytest.raises((ConfigError, DataError), match=r"^fraction = 0.0005 may be too small here: "):
        load_experiment("cross-silo", EXPERIMENTS, ["fraction=0.0005"]).build(0)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cross-silo-small", "cross-device-small"])
def test_small_presets_run_on_the_real_images(real, tmp_path, monkeypatch, name):
    monkeypatch.setenv("COBO_DATA", str(real))
    experiment = load_experiment(name, EXPERIMENTS, ["rounds=2", "test_fraction=0.2"])
    result = run_one(experiment, "cobo", 0, tmp_path, resume=False, progress=False)
    assert len(result.names) == (8 if name == "cross-silo-small" else 80)
    assert result.history[-1]["loss"] == pytest.approx(np.log(100), abs=1.0)
    assert result.weights.shape == (len(result.names),) * 2
    loaded = cobo.load(tmp_path / "cobo" / "seed-0")
    assert loaded.models[result.names[0]](images.cifar100()[1].inputs[:3]).shape == (3, 100)
