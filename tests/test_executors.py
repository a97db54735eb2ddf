"""Executors give the same numbers, whatever the module; buffers follow their policy; memory stays bounded."""

import copy
import weakref

import numpy as np
import pytest
import torch
from conftest import blobs
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import cobo
from cobo.compute.task import Task
from cobo.errors import ConfigError, DataError
from cobo.federation import Federation, judge
from cobo.models import cnn, mlp


def images(name: str, seed: int, samples: int = 12) -> cobo.Client:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(samples, 1, 8, 8, generator=generator)
    return cobo.Client(name, train=(x, torch.randint(0, 3, (samples,), generator=generator)))


class Tied(nn.Module):
    """One weight used twice, one parameter that the loss does not touch, and a constant buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.flat = nn.Flatten()
        self.first = nn.Linear(64, 64)
        self.last = nn.Linear(64, 64, bias=False)
        self.last.weight = self.first.weight
        self.unused = nn.Parameter(torch.ones(3))
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        return self.last(torch.tanh(self.first(self.flat(x))))[:, :3] * self.scale


def frozen_half() -> nn.Module:
    module = mlp(64, [16], 3)
    module[1].requires_grad_(False)
    return module


def batchnorm() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


MODULES = {
    "mlp": lambda: mlp(64, [16], 3),
    "cnn": lambda: cnn(1, 3, width=4),
    "groupnorm": lambda: nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.Flatten(), nn.Linear(144, 3)),
    "batchnorm": batchnorm,
    "layernorm": lambda: nn.Sequential(nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 3)),
    "tied": Tied,
    "half frozen": frozen_half,
}


@pytest.mark.parametrize("name", MODULES)
def test_executors_agree_on_gradients_buffers_and_products(name):
    clients = [images(f"c{k}", k) for k in range(5)]
    federations = {
        kind: Federation(clients, MODULES[name], batch_size=4, executor=kind) for kind in ("vectorised", "looped")
    }
    generator = torch.Generator().manual_seed(3)
    start = federations["looped"].start
    X = start + 0.1 * torch.randn(start.shape, generator=generator)
    pairs = np.array([[0, 1], [3, 2], [4, 0]])
    answers = {}
    for kind, federation in federations.items():
        assert federation.chosen.executor.name == kind
        for t in range(2):
            answers[kind] = federation.gradients(X, round=t, pairs=pairs)
    a, b = answers["vectorised"], answers["looped"]
    assert torch.allclose(a.rows, b.rows, atol=1e-5)
    assert torch.allclose(a.losses, b.losses, atol=1e-5)
    for field in ("inner", "norm_i", "norm_j"):
        assert torch.allclose(getattr(a.products, field), getattr(b.products, field), rtol=1e-4, atol=1e-5)
    for buffer, value in federations["looped"].buffers.items():
        assert torch.allclose(value.double(), federations["vectorised"].buffers[buffer].double(), atol=1e-5)
    assert (a.rows != 0).any()


def test_gradients_match_autograd_on_the_drawn_batch():
    client = blobs("a", seed=0, samples=1)  # one sample, so the batch is known
    federation = Federation([client, blobs("b", seed=1)], nn.Linear(2, 2), batch_size=3)
    module = nn.Linear(2, 2)
    federation.blueprint.load(federation.start[0], {})
    module.load_state_dict({k: v.clone() for k, v in federation.blueprint.module.state_dict().items()})
    inputs, targets = client.train.fields
    nn.functional.cross_entropy(module(inputs), targets).backward()
    expected = torch.cat([module.weight.grad.flatten(), module.bias.grad])
    assert torch.allclose(federation.gradients(federation.start).rows[0], expected, atol=1e-6)


def test_the_rule_and_its_reason():
    people = [images("a", 0), images("b", 1)]
    cases = {
        "mlp": ("vectorised", "many small models"),
        "cnn": ("looped", "convolutions"),
    }
    for name, (kind, word) in cases.items():
        chosen = Federation(people, MODULES[name], batch_size=4).chosen
        assert chosen.executor.name == kind
        assert word in chosen.reason
    dropout = nn.Sequential(nn.Flatten(), nn.Dropout(0.5), nn.Linear(64, 3))
    assert "random numbers" in Federation(people, dropout, batch_size=4).chosen.reason

    class Branching(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 3)

        def forward(self, x):
            y = self.layer(x.flatten(1))
            return y if float(y.detach().sum()) > 0 else 2 * y

    chosen = Federation(people, Branching, batch_size=4).chosen
    assert chosen.executor.name == "looped"
    assert "cannot vectorise" in chosen.reason


def test_dropout_follows_the_clients_key_and_not_its_place():
    model = nn.Sequential(nn.Linear(2, 8), nn.Dropout(0.5), nn.Linear(8, 2))
    people = [blobs(n, seed=k) for k, n in enumerate(("a", "b", "c"))]
    one, other = Federation(people, model, batch_size=4), Federation(people[::-1], model, batch_size=4)
    torch.manual_seed(123)  # the global generator must not matter, nor be moved
    before = torch.get_rng_state()
    first = one.gradients(one.start).rows
    assert torch.equal(before, torch.get_rng_state())
    torch.manual_seed(456)
    assert torch.equal(first, other.gradients(other.start).rows.flip(0))
    assert not torch.equal(first, one.gradients(one.start, round=1).rows)


def test_buffer_policies():
    people = [images("a", 0), images("b", 1)]
    local, shared, none = (
        Federation(people, batchnorm, batch_size=4, buffers=policy) for policy in ("local", "shared", "none")
    )
    for federation in (local, shared, none):
        federation.gradients(federation.start, pairs=np.array([[0, 1]]))
    mean = local.buffers["1.running_mean"]
    assert not torch.allclose(mean[0], mean[1])
    assert (local.buffers["1.num_batches_tracked"] == 1).all()  # pair gradients do not count
    assert torch.allclose(shared.buffers["1.running_mean"], mean.mean(0).expand_as(mean))
    assert none.buffers == {}
    module = local.build(local.start)["a"]
    assert torch.equal(module[1].running_mean, mean[0])
    assert none.build(none.start)["a"][1].running_mean is None


class Reassigning(nn.Module):
    """Keeps a running mean by putting a new tensor in the place of the old one."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(2, 2)
        self.register_buffer("mean", torch.zeros(2))

    def forward(self, x):
        if self.training:
            self.mean = 0.5 * self.mean + 0.5 * x.mean(0).detach()
        return self.layer(x - self.mean)


def test_buffers_that_are_replaced_stay_with_their_client():
    people = [blobs(n, seed=k) for k, n in enumerate("abc")]
    model = Reassigning()
    one, other = Federation(people, model, batch_size=4), Federation(people[::-1], model, batch_size=4)
    assert one.chosen.executor.name == "looped"
    for t in range(3):
        a, b = (f.gradients(f.start, round=t).rows for f in (one, other))
    assert torch.equal(a, b.flip(0))
    assert torch.equal(one.buffers["mean"], other.buffers["mean"].flip(0))
    assert not torch.equal(one.buffers["mean"][0], one.buffers["mean"][1])


@pytest.mark.parametrize("policy", ["local", "shared"])
def test_statistics_are_not_touched_by_a_batch_that_is_not_finite(policy):
    x, y = torch.randn(8, 2, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 2
    sick = cobo.Client("sick", train=(x * torch.nan, y))
    people = [sick, cobo.Client("a", train=(x, y)), cobo.Client("b", train=(x + 1, y))]
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2))
    federation = Federation(people, model, batch_size=4, buffers=policy)
    answer = federation.gradients(federation.start)
    assert answer.finite.tolist() == [False, True, True]
    mean = federation.buffers["1.running_mean"]
    assert torch.isfinite(mean).all()
    if policy == "local":
        assert (mean[0] == 0).all()
    assert (mean[1] != 0).any()


def test_what_is_not_trained_exists_once():
    federation = Federation([images("a", 0), images("b", 1)], frozen_half, batch_size=4)
    models = federation.build(federation.start)
    assert models["a"][1].weight.data_ptr() == models["b"][1].weight.data_ptr()
    assert models["a"][3].weight.data_ptr() != models["b"][3].weight.data_ptr()


def test_dict_batches_are_matched_by_key():
    x, y = torch.randn(6, 2, generator=torch.Generator().manual_seed(0)), torch.randn(6, 2)
    people = [cobo.Client("a", train={"x": x, "y": y}), cobo.Client("b", train={"y": y, "x": x})]

    def objective(module, batch):
        return (module(batch["x"]) - batch["y"]).square().mean()

    federation = Federation(people, nn.Linear(2, 2), task=Task(objective=objective), batch_size=None)
    rows = federation.gradients(federation.start).rows
    assert torch.equal(rows[0], rows[1])
    with pytest.raises(DataError, match="client 'c'"):
        Federation([*people, cobo.Client("c", train=(x, y))], nn.Linear(2, 2), task=Task(objective=objective))


class Squares(Dataset):
    """A map-style data set of the user's own."""

    def __len__(self):
        return 9

    def __getitem__(self, k):
        return torch.tensor([float(k), 1.0]), k % 2


class Augmented(Squares):
    """Adds noise from the global generators of torch and numpy."""

    def __getitem__(self, k):
        x, y = super().__getitem__(k)
        return x + torch.randn(2) + np.random.randn(), y


def test_augmentation_follows_the_key_and_not_the_global_generators():
    people = [cobo.Client("a", train=Augmented()), cobo.Client("b", train=Augmented())]
    federation = Federation(people, nn.Linear(2, 2), batch_size=4)
    one = federation.gradients(federation.start, round=1).rows
    torch.manual_seed(5)
    np.random.seed(5)
    assert torch.equal(one, federation.gradients(federation.start, round=1).rows)
    assert not torch.equal(one, federation.gradients(federation.start, round=2).rows)


def test_constant_buffers_exist_once():
    assert Federation([images("a", 0), images("b", 1)], Tied, batch_size=4).buffers == {}


def test_the_graph_of_a_model_is_gone_before_the_next_ones_pass():
    before = []

    def objective(module, batch):
        assert all(loss() is None for loss in before)
        loss = nn.functional.cross_entropy(module(batch[0]), batch[1])
        before.append(weakref.ref(loss))
        return loss

    people = [blobs(f"c{k}", seed=k) for k in range(3)]
    federation = Federation(people, nn.Linear(2, 2), task=Task(objective=objective), batch_size=4, executor="looped")
    before.clear()
    federation.gradients(federation.start)
    assert len(before) == 3


def test_rows_are_processed_in_chunks_of_at_most_the_number_asked_for():
    people = [blobs(f"c{k}", seed=k) for k in range(7)]
    whole = Federation(people, nn.Linear(2, 2), batch_size=4)
    chunked = Federation(people, nn.Linear(2, 2), batch_size=4, models_at_once=2)
    chunked.blueprint.start.copy_(whole.blueprint.start)
    seen = []
    inside = chunked.chosen.executor.gradients

    def spy(models, *others):
        seen.append(len(models))
        return inside(models, *others)

    chunked.chosen.executor.gradients = spy
    pairs = np.array([[0, 1], [2, 3], [4, 5], [5, 6], [6, 0]])
    a = whole.gradients(whole.start, pairs=pairs)
    b = chunked.gradients(whole.start, pairs=pairs)
    assert max(seen) == 2
    assert torch.allclose(a.rows, b.rows, atol=1e-6)
    assert torch.allclose(a.products.inner, b.products.inner, atol=1e-6)
    assert whole.computed == chunked.computed == 7 + 10


def test_tensors_arrays_and_datasets_give_the_same_gradients():
    x = torch.stack([Squares()[k][0] for k in range(9)])
    y = torch.tensor([k % 2 for k in range(9)])
    kinds = {
        "tensors": (x, y),
        "arrays": (x.double().numpy(), y.int().numpy()),
        "lists": (x.tolist(), y.tolist()),
        "TensorDataset": TensorDataset(x, y),
        "Dataset": Squares(),
    }
    model = nn.Linear(2, 2)
    found = {}
    for kind, data in kinds.items():
        people = [cobo.Client("a", train=data, test=data), cobo.Client("b", train=(x[:3], y[:3]))]
        federation = Federation(people, model, batch_size=4)
        found[kind] = (federation.gradients(federation.start).rows, federation.evaluate(federation.start)[0]["loss"])
    for rows, loss in found.values():
        assert torch.allclose(rows, found["tensors"][0], atol=1e-6)
        assert loss == pytest.approx(found["tensors"][1], abs=1e-6)


def test_full_batches_of_different_sizes_are_exact():
    people = [blobs(n, seed=k, samples=5 + 3 * (k % 2)) for k, n in enumerate("abcd")]
    federation = Federation(people, nn.Linear(2, 2), batch_size=None)
    X = federation.start
    answer = federation.gradients(X, pairs=np.array([[0, 1], [1, 2], [2, 3]]))
    for k, client in enumerate(people):
        module = federation.build(X)[client.name]
        inputs, targets = client.train.fields
        nn.functional.cross_entropy(module(inputs), targets).backward()
        expected = torch.cat([module.weight.grad.flatten(), module.bias.grad])
        assert torch.allclose(answer.rows[k], expected, atol=1e-6)
    G = answer.rows  # all start from one model, so midpoints are that model
    expected = torch.stack([G[0] @ G[1], G[1] @ G[2], G[2] @ G[3]])
    assert torch.allclose(answer.products.inner, expected, atol=1e-6)


def test_local_steps_are_sgd_pulled_toward_an_anchor():
    people = [blobs("a", seed=0), blobs("b", seed=1)]
    federation = Federation(people, nn.Linear(2, 2), batch_size=4)
    X = federation.start + torch.arange(12).view(2, 6) / 10
    pull = torch.tensor([0.5, 2.0])
    anchors = torch.randn(2, 6, generator=torch.Generator().manual_seed(0))
    expected = X.clone()
    for step in range(3):
        G = federation.gradients(expected, round=7, step=step).rows
        expected = torch.stack([expected[i] - 0.1 * (G[i] + pull[i] * expected[i] - anchors[i]) for i in range(2)])
    found = federation.local_steps(X, round=7, steps=3, lr=0.1, pull=pull, anchors=anchors)
    assert torch.allclose(found, expected, atol=1e-6)
    assert torch.equal(X, federation.start + torch.arange(12).view(2, 6) / 10)


def test_evaluation_covers_the_whole_test_set_with_dropout_off(monkeypatch):
    x = torch.randn(10, 2, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    people = [cobo.Client(n, train=(x, y), test=(x, y)) for n in "ab"]
    model = nn.Sequential(nn.Dropout(0.9), nn.Linear(2, 2))
    federation = Federation(people, model)
    module = copy.deepcopy(model).eval()
    expected = nn.functional.cross_entropy(module(x), y).item()
    accuracy = 100 * (module(x).argmax(1) == y).float().mean().item()
    for size in (3, 10, 100):
        monkeypatch.setattr(judge, "SAMPLES_AT_ONCE", size)
        measured = federation.evaluate(federation.start)
        assert measured[1]["loss"] == pytest.approx(expected, abs=1e-5)
        assert measured[1]["accuracy"] == pytest.approx(accuracy, abs=1e-4)


def good() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(4, 2), torch.zeros(4, dtype=torch.long)


class OnDemand(Dataset):
    """Samples that all have one label."""

    def __init__(self, label: int) -> None:
        self._label = label

    def __len__(self) -> int:
        return 4

    def __getitem__(self, k):
        return torch.zeros(2), self._label


def labelled(*targets, model=None, task=None) -> Federation:
    """Clients a, b, ... with these targets, or data sets that have them."""
    data = [y if isinstance(y, Dataset) else (torch.zeros(4, 2), y) for y in targets]
    clients = [cobo.Client(name, train=train) for name, train in zip("abc", data, strict=False)]
    return Federation(clients, model or nn.Linear(2, 2), task=task)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: cobo.Client("a", train=(torch.zeros(0, 2), torch.zeros(0))), DataError, "client 'a': train is empty"),
        (lambda: cobo.Client("a", train=(torch.zeros(3, 2), torch.zeros(2))), DataError, "different lengths [3, 2]"),
        (lambda: cobo.Client("a", train=(["x"], ["y"])), DataError, "client 'a': train should be"),
        (lambda: cobo.Client("../up", train=good()), ConfigError, "client name '../up'"),
        (lambda: cobo.Client("a/b", train=good()), ConfigError, "client name 'a/b'"),
        (lambda: cobo.Client(".hidden", train=good()), ConfigError, "client name '.hidden'"),
        (lambda: cobo.Client("", train=good()), ConfigError, "client name ''"),
        (lambda: Federation([cobo.Client("a", train=good())], nn.Linear(2, 2)), ConfigError, "at least two"),
        (
            lambda: Federation([cobo.Client("a", train=good()), cobo.Client("a", train=good())], nn.Linear(2, 2)),
            ConfigError,
            "distinct",
        ),
        (
            lambda: Federation(
                [cobo.Client("a", train=good()), cobo.Client("b", train=(torch.zeros(4, 3), good()[1]))],
                nn.Linear(2, 2),
            ),
            DataError,
            "client 'b'",
        ),
        (
            lambda: Federation([cobo.Client(n, train=good()) for n in "ab"], nn.Linear(5, 2)),
            ConfigError,
            "do not fit the data",
        ),
        (
            lambda: Federation(
                [cobo.Client("a", train=good()), cobo.Client("b", train=(good()[0], good()[1] + 7))], nn.Linear(2, 2)
            ),
            DataError,
            "client 'b' has class labels from 7 to 7",
        ),
        (
            lambda: labelled(good()[1] + 7, good()[1]),
            DataError,
            "client 'a' has class labels from 7 to 7, but the model's 2 outputs allow 0 to 1",
        ),
        (
            lambda: labelled(OnDemand(7), good()[1]),
            DataError,
            "client 'a' has class labels from 7 to 7, but the model's 2 outputs allow 0 to 1",
        ),
        (
            lambda: labelled(good()[1].float(), good()[1].float()),
            DataError,
            "client 'a' has class labels that are real numbers; give whole ones, 0 to 1: y.long()",
        ),
        (
            lambda: labelled(good()[1][:, None], good()[1][:, None]),
            DataError,
            "client 'a' has class labels of shape [4, 1], but the model needs [4]: y[:, 0]",
        ),
        (
            lambda: labelled(*[torch.zeros(4, 2, dtype=torch.long)] * 2),
            DataError,
            "client 'a' has class labels of shape [4, 2], but the model needs [4]: y.argmax(1)",
        ),
        (
            lambda: labelled(good()[1].float(), good()[1], good()[1]),
            DataError,
            "client 'a': train samples look like (float [2], float []), but 'b' has (float [2], integer [])",
        ),
        (
            lambda: labelled(["sick", "well", "well", "sick"]),
            DataError,
            "client 'a': train should be (inputs, targets), a dict of tensors, a tensor or a Dataset: there are texts",
        ),
        (
            lambda: labelled(good()[1], good()[1], model=nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))),
            ConfigError,
            "with one for two classes, binary_cross_entropy",
        ),
        (
            lambda: labelled(good()[1], good()[1], model=nn.Linear(2, 1), task=Task("binary_cross_entropy")),
            ConfigError,
            "outputs [32, 1] and targets [32] differ in shape; give targets as y[:, None], or squeeze the outputs",
        ),
        (
            lambda: Federation(
                [cobo.Client("north", train=good()), cobo.Client("North", train=good())], nn.Linear(2, 2)
            ),
            ConfigError,
            "'north' and 'North'",
        ),
        (
            lambda: Federation([cobo.Client(n, train=torch.zeros(4, 2)) for n in "ab"], nn.Linear(2, 2)),
            ConfigError,
            "objective=",
        ),
        (
            lambda: Federation([cobo.Client(n, train=good()) for n in "ab"], nn.Linear),
            ConfigError,
            "model() could not be made",
        ),
        (
            lambda: Federation([cobo.Client(n, train=good()) for n in "ab"], nn.LazyLinear(2)),
            ConfigError,
            "lazy layers",
        ),
        (
            lambda: Federation(
                [cobo.Client(n, train=good()) for n in "ab"],
                nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2)),
                batch_size=1,
            ),
            ConfigError,
            "more than 1 value",
        ),
        (
            lambda: Federation(
                [cobo.Client(n, train=(torch.zeros(4, 2), torch.zeros(4))) for n in "ab"],
                nn.Linear(2, 1),
                task=Task("mse"),
            ),
            ConfigError,
            "differ in shape",
        ),
        (lambda: cobo.Client("a", train=good(), group=1.5), ConfigError, "group = 1.5"),
        (
            lambda: Federation([cobo.Client(n, train=good()) for n in "ab"], nn.Linear(2, 2).requires_grad_(False)),
            ConfigError,
            "nothing to train",
        ),
    ],
)
def test_bad_clients_get_one_clear_line(make, error, words):
    with pytest.raises(error) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("executor", ["looped", "vectorised"])
def test_gradients_of_several_batches_are_those_of_one_large_batch(executor):
    clients = [blobs(name, seed=k, samples=30) for k, name in enumerate("ab")]
    model, pairs = (lambda: nn.Linear(2, 2)), np.array([[0, 1]])
    one = Federation(clients, model, batch_size=12, executor=executor)
    four = Federation(clients, model, batch_size=3, accumulate=4, executor=executor)
    X = one.start + torch.tensor([[0.0], [1.0]])
    found = [f.gradients(X, round=2, pairs=pairs) for f in (one, four)]
    assert torch.allclose(found[0].rows, found[1].rows, atol=1e-6)
    assert torch.allclose(found[0].losses, found[1].losses)
    assert torch.allclose(found[0].products.inner, found[1].products.inner)
    assert torch.allclose(one.losses(X, round=2), four.losses(X, round=2))
    assert one.computed == four.computed  # a gradient is a gradient, however many passes it takes


def test_passes_of_one_gradient_draw_their_own_dropout():
    clients = [cobo.Client(name, torch.ones(40, 8)) for name in "ab"]
    heard = []

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight, self.drop = nn.Parameter(torch.ones(8)), nn.Dropout(0.5)

        def forward(self, x):
            dropped = self.drop(x)
            heard.append(dropped.detach().clone())
            return dropped * self.weight

    task = Task(objective=lambda module, batch: module(batch).mean())
    federation = Federation(clients, Noisy, task=task, batch_size=5, accumulate=2)
    heard.clear()
    federation.gradients(federation.start)
    assert [len(x) for x in heard] == [5] * 4
    assert not torch.equal(heard[0], heard[1])


@pytest.mark.parametrize("executor", ["looped", "vectorised"])
def test_passes_count_by_the_tokens_they_predict(executor):
    """Padding is not predicted: the mean is that over all tokens, however they are spread over passes."""
    long, short = [1, 2, 3, 4, 5, 6, 7, 8, 9], [5, 4, -100, -100, -100, -100, -100, -100, -100]
    people = [cobo.Client(name, torch.tensor([long, short])) for name in ("a", "b")]
    options = {"task": Task("next_token"), "executor": executor, "seed": 3}
    model = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10))
    whole = Federation(people, model, batch_size=2, **options)
    passes = Federation(people, model, batch_size=1, accumulate=2, **options)
    for round in range(4):  # in some both samples are drawn
        a, b = (f.gradients(whole.start, round=round) for f in (whole, passes))
        assert torch.allclose(a.rows, b.rows, atol=1e-6)
        assert torch.allclose(a.losses, b.losses, atol=1e-6)
