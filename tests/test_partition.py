"""Partitions: they end, cover what they promise, overlap nowhere, and follow from the seed alone."""

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import cobo
from cobo.errors import ConfigError, DataError
from cobo.federation import partition
from cobo.federation.client import check_clients
from cobo.federation.partition import Share

few = settings(max_examples=40, deadline=None)
small = st.integers(1, 6)
seeds = st.integers(0, 2**40)


def sizes(shares):
    return [len(share.positions) for share in shares]


def together(shares):
    return np.sort(np.concatenate([share.positions for share in shares])).tolist()


def same(one, other):
    return len(one) == len(other) and all(
        a.name == b.name and a.group == b.group and np.array_equal(a.positions, b.positions)
        and np.array_equal(a.labels, b.labels) for a, b in zip(one, other, strict=True)
    )  # fmt: skip


def of_group(shares, group):
    return [share for share in shares if share.group == group]


def is_even(numbers):
    return max(numbers) - min(numbers) <= 1


@few
@given(st.integers(6, 60), st.integers(6, 12), small, small, seeds)
def test_permuted_labels_cover_and_name_a_class_differently_in_every_group(size, classes, groups, clients, seed):
    shares = partition.permuted_labels(size, classes, groups=groups, clients_per_group=clients, seed=seed)
    for group in range(groups):
        mine = of_group(shares, group)
        assert len(mine) == clients
        assert together(mine) == list(range(size))
        assert is_even(sizes(mine))
        assert all(sorted(share.labels) == list(range(classes)) for share in mine)
    names = np.array([of_group(shares, group)[0].labels for group in range(groups)])
    assert all(len(set(column)) == groups for column in names.T)


@few
@given(small, small, st.integers(1, 9), seeds)
def test_permuted_labels_give_exactly_the_samples_asked_for(groups, clients, samples, seed):
    shares = partition.permuted_labels(
        60, 6, groups=groups, clients_per_group=clients, samples=samples, seed=seed
    )  # fmt: skip
    assert sizes(shares) == [samples] * groups * clients
    for group in range(groups):
        assert len(set(together(of_group(shares, group)))) == samples * clients


@few
@given(st.lists(st.integers(6, 12), min_size=5, max_size=9), st.lists(small, min_size=1, max_size=5), seeds)
def test_disjoint_classes_cover_and_no_class_is_in_two_groups(counts, group_sizes, seed):
    classes = 2 * np.arange(len(counts))  # numbers may have gaps
    targets = np.random.default_rng(seed).permutation(np.repeat(classes, counts))
    shares = partition.disjoint_classes(targets, group_sizes=group_sizes, seed=seed)
    assert together(shares) == list(range(len(targets)))
    owned = []
    for group, clients in enumerate(group_sizes):
        mine = of_group(shares, group)
        assert len(mine) == clients
        assert is_even(sizes(mine))
        owned.append(np.flatnonzero(mine[0].labels >= 0).tolist())
        for share in mine:
            assert set(targets[share.positions]) <= set(owned[-1])
            assert np.array_equal(share.labels[owned[-1]], owned[-1])
    assert sorted(chain.from_iterable(owned)) == classes.tolist()
    assert is_even([len(numbers) for numbers in owned])


def test_the_papers_cross_device_split_has_80_clients_in_10_groups_of_10_classes():
    targets = torch.arange(100).repeat(500)
    group_sizes = [6, 6, 7, 7, 8, 8, 9, 9, 10, 10]
    shares = partition.disjoint_classes(targets, group_sizes=group_sizes)
    assert len(shares) == 80
    assert [len(of_group(shares, group)) for group in range(10)] == group_sizes
    assert {int((share.labels >= 0).sum()) for share in shares} == {10}
    assert sizes(of_group(shares, 9)) == [500] * 10
    assert sizes(partition.disjoint_classes(targets, group_sizes=group_sizes, samples=123)) == [123] * 80


alphas = st.sampled_from([1e-320, 1e-6, 0.05, 1.0, 30.0, 1e6, 1e300])


@few
@given(st.lists(st.integers(0, 9), min_size=1, max_size=120), small, small, alphas, st.integers(1, 4), seeds)
def test_dirichlet_ends_covers_and_gives_everyone_the_minimum(targets, groups, clients, alpha, minimum, seed):
    def split():
        return partition.dirichlet(
            np.array(targets), groups=groups, clients_per_group=clients, alpha=alpha, seed=seed, minimum=minimum
        )

    if groups * clients * minimum > len(targets):
        with pytest.raises(ConfigError, match=r"^minimum = "):
            split()
        return
    shares = split()
    assert len(shares) == groups * clients
    assert together(shares) == list(range(len(targets)))
    assert min(sizes(shares)) >= minimum
    for group in range(groups):
        mine = of_group(shares, group)
        assert is_even(sizes(mine))
        present = sorted({targets[row] for row in together(mine)})
        assert np.flatnonzero(mine[0].labels >= 0).tolist() == present
        assert mine[0].labels[present].tolist() == present


def test_alpha_says_how_unlike_the_groups_are():
    targets = np.arange(10_000) % 10

    def largest_share(alpha):
        shares = partition.dirichlet(targets, groups=4, clients_per_group=1, alpha=alpha)
        counts = np.array([np.bincount(targets[share.positions], minlength=10) for share in shares])
        return (counts.max(axis=0) / counts.sum(axis=0)).mean()

    assert largest_share(1e-6) == 1.0
    assert 0.4 < largest_share(1.0) < 0.8
    assert largest_share(1e6) == pytest.approx(0.25, abs=0.01)


def test_dirichlet_proportions_have_the_mean_and_variance_they_should():
    from cobo.federation.proportions import dirichlet_counts

    for alpha in (0.05, 0.5, 5.0):
        amounts = np.full(20_000, 1_000_000)
        drawn = dirichlet_counts(np.random.default_rng(0), amounts, groups=4, alpha=alpha, least=1) / 1e6
        assert drawn.mean(axis=0) == pytest.approx(0.25, abs=0.01)
        assert drawn.var(axis=0) == pytest.approx(0.25 * 0.75 / (4 * alpha + 1), rel=0.05)


@few
@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(0, 10), seeds)
def test_by_quantity_honours_sizes(wanted, spare, seed):
    shares = partition.by_quantity(sum(wanted) + spare, sizes=wanted, seed=seed)
    assert sizes(shares) == wanted
    assert len(set(together(shares))) == sum(wanted)
    assert {share.group for share in shares} == {0}


@few
@given(st.lists(st.text(max_size=4).filter(str.strip) | st.integers(), min_size=2, max_size=30), seeds)
def test_by_column_makes_a_group_of_every_value_and_names_that_clients_can_have(values, seed):
    try:
        shares = partition.by_column(values, seed=seed)
    except ConfigError as error:
        if "would give clients of one name" not in str(error):
            raise
        return
    assert together(shares) == list(range(len(values)))
    for share in shares:
        assert {str(values[row]) for row in share.positions} == {share.group}
    clients = partition.make_clients(shares, (np.zeros((len(values), 2)), np.zeros(len(values))))
    if len(clients) > 1:
        check_clients(clients)


@pytest.mark.parametrize(
    "values", [[3, 1, 3, 3], np.array([3, 1, 3, 3]), torch.tensor([3, 1, 3, 3]), ["3", "1", "3", np.int64(3)]]
)
def test_by_column_takes_lists_arrays_and_tensors(values):
    shares = partition.by_column(values)
    assert [(s.name, s.group, s.positions.tolist()) for s in shares] == [("3", "3", [0, 2, 3]), ("1", "1", [1])]


def test_by_column_splits_a_group_evenly_and_cleans_names():
    shares = partition.by_column(["a/b"] * 5 + [".\ud800" * 200] * 4, clients_per_group=2)
    assert [s.name for s in shares[:2]] == ["a_b-client0", "a_b-client1"]
    assert sizes(shares) == [3, 2, 2, 2]
    assert shares[0].group == "a/b"
    partition.make_clients(shares, (np.zeros((9, 2)), np.zeros(9)))


TARGETS = [0, 1, 2, 3] * 30
CALLS = {
    "permuted_labels": lambda seed: partition.permuted_labels(90, 8, groups=3, clients_per_group=4, seed=seed),
    "disjoint_classes": lambda seed: partition.disjoint_classes(TARGETS, group_sizes=[2, 3], seed=seed),
    "dirichlet": lambda seed: partition.dirichlet(TARGETS, groups=3, clients_per_group=2, alpha=0.5, seed=seed),
    "by_quantity": lambda seed: partition.by_quantity(90, sizes=[40, 10], seed=seed),
    "by_column": lambda seed: partition.by_column(TARGETS, clients_per_group=2, seed=seed),
}


@pytest.mark.parametrize("split", CALLS.values(), ids=CALLS.keys())
def test_shares_follow_from_the_seed(split):
    assert same(split(5), split(5))
    assert not same(split(5), split(6))
    for share in split(5):
        assert share.positions.dtype == np.int64
        assert np.all(np.diff(share.positions) > 0)


def test_a_group_of_a_column_is_dealt_the_same_whatever_else_is_in_it():
    alone = partition.by_column(["n"] * 9, clients_per_group=3)
    beside = partition.by_column(["n"] * 9 + ["s"] * 5, clients_per_group=3)
    assert same(alone, of_group(beside, "n"))


@pytest.mark.parametrize(
    ("call", "field"),
    [
        (lambda: partition.permuted_labels(0, 3, groups=1, clients_per_group=1), "size = 0"),
        (lambda: partition.permuted_labels(9, 2.5, groups=1, clients_per_group=1), "classes = 2.5"),
        (lambda: partition.permuted_labels(9, 3, groups=4, clients_per_group=1), "groups = 4"),
        (lambda: partition.permuted_labels(9, 3, groups=1, clients_per_group=0), "clients_per_group = 0"),
        (lambda: partition.permuted_labels(9, 3, groups=1, clients_per_group=10), "clients_per_group = 10"),
        (lambda: partition.permuted_labels(9, 3, groups=1, clients_per_group=2, samples=5), "samples = 5"),
        (lambda: partition.permuted_labels(9, 3, groups=1, clients_per_group=2, samples=0), "samples = 0"),
        (lambda: partition.permuted_labels(9, 3, groups=1, clients_per_group=2, seed="a"), "seed = 'a'"),
        (lambda: partition.disjoint_classes([0.5, 1.0], group_sizes=[1]), "targets"),
        (lambda: partition.disjoint_classes([-1, 1], group_sizes=[1]), "targets"),
        (lambda: partition.disjoint_classes([], group_sizes=[1]), "targets"),
        (lambda: partition.disjoint_classes([[1], [1, 2]], group_sizes=[1]), "targets"),
        (lambda: partition.disjoint_classes(TARGETS, group_sizes=3), "group_sizes = 3"),
        (lambda: partition.disjoint_classes(TARGETS, group_sizes=[]), r"group_sizes = \[\]"),
        (lambda: partition.disjoint_classes(TARGETS, group_sizes=[1, 0]), r"group_sizes\[1\] = 0"),
        (lambda: partition.disjoint_classes(TARGETS, group_sizes=[1] * 5), "group_sizes has 5 groups"),
        (lambda: partition.disjoint_classes(TARGETS, group_sizes=[200]), "group_sizes = 200"),
        (lambda: partition.disjoint_classes(TARGETS, group_sizes=[2, 2], samples=31), "samples = 31"),
        (lambda: partition.dirichlet(TARGETS, groups=2, clients_per_group=1, alpha=0), "alpha = 0"),
        (lambda: partition.dirichlet(TARGETS, groups=2, clients_per_group=1, alpha=float("nan")), "alpha = nan"),
        (lambda: partition.dirichlet(TARGETS, groups=2, clients_per_group=1, alpha=float("inf")), "alpha = inf"),
        (lambda: partition.dirichlet(TARGETS, groups=2, clients_per_group=1, alpha="1"), "alpha = '1'"),
        (lambda: partition.dirichlet(TARGETS, groups=2, clients_per_group=1, alpha=1, minimum=0), "minimum = 0"),
        (lambda: partition.dirichlet(TARGETS, groups=2, clients_per_group=1, alpha=1, minimum=61), "minimum = 61"),
        (lambda: partition.by_quantity(10, sizes=[5, 6]), "sizes add up to 11"),
        (lambda: partition.by_quantity(10, sizes=[5, -1]), r"sizes\[1\] = -1"),
        (lambda: partition.by_quantity(10, sizes=[0.5, 0.5]), r"sizes\[0\] = 0.5"),
        (lambda: partition.by_column([]), "values is empty"),
        (lambda: partition.by_column(["a", " "]), "values .* row 1"),
        (lambda: partition.by_column([1.0, 2.0]), "values .* row 0"),
        (lambda: partition.by_column(["a", None]), "values .* row 1"),
        (lambda: partition.by_column(["north", "North"]), "values 'north' and 'North'"),
        (lambda: partition.by_column(["a", "b", "b"], clients_per_group=2), "clients_per_group = 2 .*'a' has 1"),
    ],
)
def test_what_cannot_be_is_said_in_one_line_that_names_the_argument(call, field):
    with pytest.raises(ConfigError, match="^" + field) as caught:
        call()
    assert "\n" not in str(caught.value)


def toy(size=12):
    return np.arange(size, dtype=np.float32)[:, None], np.arange(size) % 4


def test_a_common_test_set_is_restricted_and_renamed():
    share = Share("a", 1, np.array([0, 1, 4]), np.array([3, 0, -1, -1]))
    (client,) = partition.make_clients([share], toy(), toy(8))
    assert client.group == 1
    assert client.train.fields[0][:, 0].tolist() == [0, 1, 4]
    assert client.train.fields[1].tolist() == [3, 0, 3]
    assert client.test.fields[0][:, 0].tolist() == [0, 1, 4, 5]
    assert client.test.fields[1].tolist() == [3, 0, 3, 0]


def test_clients_that_name_classes_alike_share_one_test_set_in_memory():
    shares = partition.disjoint_classes(toy()[1], group_sizes=[2, 2])
    clients = partition.make_clients(shares, toy(), toy())
    where = [client.test.fields[0].data_ptr() for client in clients]
    assert where[0] == where[1] != where[2] == where[3]


@few
@given(st.integers(2, 40), st.floats(0.001, 0.999), seeds)
def test_a_held_out_part_is_the_clients_own_and_on_one_side_only(size, part, seed):
    shares = partition.by_quantity(size, sizes=[size])
    (client,) = partition.make_clients(shares, (np.arange(size), np.arange(size) / 2), part, seed=seed)
    train, test = client.train.fields[0].tolist(), client.test.fields[0].tolist()
    assert sorted(train + test) == list(range(size))
    assert abs(len(test) - part * size) <= 1
    assert train
    assert test
    assert (client.test.fields[1] * 2).tolist() == test


def test_what_is_held_out_follows_from_seed_and_name():
    shares = partition.by_quantity(12, sizes=[12])

    def held(seed, name="client0"):
        (client,) = partition.make_clients([shares[0]._replace(name=name)], toy(), 0.5, seed=seed)
        return client.test.fields[0][:, 0].tolist()

    assert held(1) == held(1)
    assert held(1) != held(2)
    assert held(1) != held(1, "other")


ALL = np.array([0, 1, 2, 3])


@pytest.mark.parametrize(
    ("share", "train", "test", "error", "said"),
    [
        (Share("a", 0, np.array([0]), ALL), toy(), 0.5, DataError, "client 'a' has 1 sample"),
        (Share("a", 0, np.array([0, 1]), ALL), toy(), 1.0, ConfigError, "test = 1.0"),
        (Share("a", 0, np.array([12]), ALL), toy(), None, ConfigError, "shares: client 'a'.* 0 to 11"),
        (Share("a", 0, np.array([0]), ALL), (np.zeros(3), np.zeros(4)), None, DataError, "train .*3 inputs and 4"),
        (Share("a", 0, np.array([0]), ALL), toy(), np.zeros(3), DataError, "test should be"),
        (Share("a", 0, np.array([0]), ALL), (np.zeros(3), np.zeros(3)), None, DataError, "client 'a': train .*None"),
        (Share("a", 0, np.array([3]), ALL[:3]), toy(), None, DataError, "client 'a': train .*outside 0 to 2"),
        (Share("a", 0, np.array([3]), -ALL), toy(), None, DataError, "client 'a': train .*label -1"),
        (Share("a", 0, np.array([0]), ALL), toy(), (np.zeros(1), [4]), DataError, "client 'a': test .*outside"),
        (
            Share("a", 0, np.array([0]), np.array([0, -1, -1, -1])), toy(), (np.zeros(1), [2]), DataError,
            "client 'a': test has no sample",
        ),
    ],
)  # fmt: skip
def test_shares_that_do_not_fit_the_data_are_refused_by_name(share, train, test, error, said):
    with pytest.raises(error, match="^" + said) as caught:
        partition.make_clients([share], train, test)
    assert "\n" not in str(caught.value)


def test_partitions_train():
    x = torch.randn(80, 3, generator=torch.Generator().manual_seed(0))
    y = (x[:, 0] > 0).long()
    shares = partition.dirichlet(y, groups=2, clients_per_group=2, alpha=1.0, minimum=5)
    clients = partition.make_clients(shares, (x, y), (x, y))
    result = cobo.fit(clients, model=lambda: torch.nn.Linear(3, 2), rounds=3, lr=0.1)
    assert set(result.models) == {share.name for share in shares}
