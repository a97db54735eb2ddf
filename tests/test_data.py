"""Data sets: found where they are promised to be looked for, and refused by name when a byte is wrong."""

import gzip
import os
import struct
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest
import torch

from cobo.data import DATA, digits, fashion_mnist
from cobo.data.fashion_mnist import ORIGIN, Origin, fetch, locate
from cobo.data.idx import IdxFile, read_idx
from cobo.data.store import cache, folders
from cobo.errors import DataError


def idx(array):
    return bytes([0, 0, 8, array.ndim]) + struct.pack(f">{array.ndim}I", *array.shape) + array.tobytes()


def made(name, shape, most):
    array = np.random.default_rng(len(name)).integers(0, most, shape, dtype=np.uint8)
    return IdxFile(name, shape, sha256(idx(array)).hexdigest()), idx(array)


MADE = [
    made("train-images-idx3-ubyte", (5, 28, 28), 256), made("train-labels-idx1-ubyte", (5,), 10),
    made("t10k-images-idx3-ubyte", (3, 28, 28), 256), made("t10k-labels-idx1-ubyte", (3,), 10),
]  # fmt: skip
FILES = [file for file, _ in MADE]
BODIES = {f"/{file.name}.gz": gzip.compress(content, mtime=0) for file, content in MADE}


pytestmark = pytest.mark.usefixtures("home")


def origin(home, address="http://127.0.0.1:9"):
    return Origin(address, home / "package", train=tuple(FILES[:2]), test=tuple(FILES[2:]))


def put(folder, *, packed):
    folder.mkdir(parents=True)
    for file, content in MADE:
        path = folder / (file.name + ".gz" * packed)
        path.write_bytes(gzip.compress(content, mtime=0) if packed else content)
    return folder


def left_behind(home):
    return [path for path in home.rglob("*") if path.is_file()]


@pytest.fixture
def server(server):
    server.bodies.update(BODIES)
    return server


@pytest.mark.parametrize("packed", [False, True])
def test_an_idx_file_is_read_packed_or_not(tmp_path, packed):
    array = np.arange(24, dtype=np.uint8).reshape(2, 3, 4)
    path = tmp_path / "some"
    path.write_bytes(gzip.compress(idx(array), mtime=0) if packed else idx(array))
    file = IdxFile("some", (2, 3, 4), sha256(idx(array)).hexdigest())
    assert np.array_equal(read_idx(path, file), array)


GOOD = idx(np.arange(6, dtype=np.uint8).reshape(2, 3))
DAMAGED = [
    (b"", "magic number is missing"),
    (b"\x00\x00\x0d\x02" + GOOD[4:], "magic number is 00000d02 instead of 00000802"),
    (GOOD[:3] + b"\x01" + GOOD[4:], "magic number is 00000801"),
    (GOOD[:7], "dimensions"),
    (GOOD[:7] + b"\x03" + GOOD[8:], r"dimensions are \[3, 3\] instead of \[2, 3\]"),
    (GOOD[:-1], "shorter than 18 bytes"),
    (GOOD + b"\x00", "longer than 18 bytes"),
    (GOOD[:-1] + b"\xff", "checksum is wrong"),
    (gzip.compress(GOOD, mtime=0)[:-4], "cannot be unpacked"),
    (gzip.compress(GOOD, mtime=0)[:-8] + bytes(8), "cannot be unpacked"),
    (b"\x1f\x8b" + bytes(20), "cannot be unpacked"),
]


@pytest.mark.parametrize(("content", "said"), DAMAGED)
def test_a_damaged_idx_file_is_refused_with_what_is_wrong(tmp_path, content, said):
    path = tmp_path / "some"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=said):
        read_idx(path, IdxFile("some", (2, 3), sha256(GOOD).hexdigest()))


def test_the_loader_names_the_damaged_file_and_says_to_delete_it(home):
    folder = put(home / "package", packed=True)
    path = folder / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(DataError, match=r"t10k-labels-idx1-ubyte.gz is damaged: .*; delete it") as caught:
        fashion_mnist(origin(home))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("packed", [False, True])
def test_folders_are_looked_through_in_order(home, monkeypatch, packed):
    assert locate(origin(home)) is None
    package = put(home / "package", packed=packed)
    assert locate(origin(home)) == package
    cached = put(home / "cache" / "cobo" / "fashion-mnist", packed=packed)
    assert locate(origin(home)) == cached
    monkeypatch.setenv("COBO_DATA", str(home / "mine"))
    assert locate(origin(home)) == cached
    put(home / "mine", packed=packed)  # of MNIST, for all we know: its files have the same names
    assert locate(origin(home)) == cached
    torchvision = put(home / "mine" / "FashionMNIST" / "raw", packed=packed)
    assert locate(origin(home)) == torchvision
    mine = put(home / "mine" / "fashion-mnist", packed=packed)
    assert locate(origin(home)) == mine
    train, test = fashion_mnist(origin(home))
    assert train.inputs.shape == (5, 1, 28, 28)
    assert test.inputs.shape == (3, 1, 28, 28)
    assert train.inputs.dtype == torch.float32
    assert train.targets.tolist() == list(MADE[1][1][8:])
    assert torch.equal(test.inputs.flatten() * 255, torch.tensor(list(MADE[2][1][16:])).float())


def test_the_cache_follows_xdg_and_is_in_the_home_otherwise(home, monkeypatch):
    assert cache("some") == home / "cache" / "cobo" / "some"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache("some") == Path.home() / ".cache" / "cobo" / "some"
    assert folders("some") == [cache("some")]


def test_what_is_missing_is_downloaded_on_request_and_once(home, server, capsys):
    here = origin(home, server.address)
    with pytest.raises(DataError, match="run `cobo data fetch fashion-mnist`") as caught:
        fashion_mnist(here)
    assert "\n" not in str(caught.value)
    assert server.asked == []
    fetch(here)
    train, _ = fashion_mnist(here)
    assert train.targets.tolist() == list(MADE[1][1][8:])
    assert locate(here) == cache("fashion-mnist")
    assert sorted(path.name for path in left_behind(home)) == sorted(f"{file.name}.gz" for file in FILES)
    fetch(here)
    assert len(server.asked) == 4
    shown = capsys.readouterr()
    assert "train-images" in shown.err
    assert shown.out == ""


def test_a_broken_off_download_goes_on_with_what_is_missing(home, server):
    body = server.bodies.pop("/t10k-images-idx3-ubyte.gz")
    here = origin(home, server.address)
    with pytest.raises(DataError, match=r"is missing.*t10k-images-idx3-ubyte.gz.*404"):
        fetch(here)
    server.bodies["/t10k-images-idx3-ubyte.gz"] = body
    server.asked.clear()
    assert fetch(here) == cache("fashion-mnist")
    assert server.asked == ["/t10k-images-idx3-ubyte.gz", "/t10k-labels-idx1-ubyte.gz"]


def flip(body):
    return body[:40] + bytes([body[40] ^ 1]) + body[41:]


@pytest.mark.parametrize("damage", [flip, lambda body: body[:-20], lambda body: b"<html>moved</html>"])
def test_a_damaged_download_is_never_kept(home, server, damage):
    path = "/train-images-idx3-ubyte.gz"
    server.bodies[path] = damage(server.bodies[path])
    with pytest.raises(DataError, match=r"train-images-idx3-ubyte.gz sent a damaged file") as caught:
        fetch(origin(home, server.address))
    assert "\n" not in str(caught.value)
    assert left_behind(home) == []


def test_a_dead_address_gives_one_line_that_says_what_to_do_and_leaves_nothing(home, monkeypatch):
    monkeypatch.setenv("COBO_DATA", str(home / "mine"))
    with pytest.raises(DataError) as caught:
        fetch(origin(home))
    said = str(caught.value)
    assert "\n" not in said
    for words in (
        "is missing", str(home / "mine" / "fashion-mnist"), str(cache("fashion-mnist")), str(home / "package"),
        "cannot be fetched", "dataset-fashion-mnist", "COBO_DATA",
    ):  # fmt: skip
        assert words in said
    assert list(home.iterdir()) == []


def test_a_download_that_cannot_be_written_leaves_nothing(home, server, monkeypatch):
    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        fetch(origin(home, server.address))
    assert left_behind(home) == []


def test_every_source_says_where_it_is_or_how_to_get_it(home):
    assert DATA["digits"].where.startswith("present in ")
    assert (DATA["digits"].locate() / "digits.csv.gz").is_file()
    missing = DATA["fashion-mnist"]._replace(locate=lambda: locate(origin(home)))
    assert missing.where.startswith("missing: `cobo data fetch fashion-mnist`")
    put(home / "package", packed=True)
    assert missing.where == f"present in {home / 'package'}"


def test_digits_are_split_the_same_way_every_time():
    train, test = digits()
    assert train.inputs.shape == (1200, 64)
    assert test.inputs.shape == (597, 64)
    assert torch.equal(digits()[0].targets, train.targets)


FOUND = locate(ORIGIN)


@pytest.mark.skipif(FOUND is None, reason="Fashion-MNIST is not on this computer (Debian: dataset-fashion-mnist)")
def test_fashion_mnist_is_whole():
    train, test = fashion_mnist(ORIGIN._replace(package=FOUND))
    assert train.inputs.shape == (60_000, 1, 28, 28)
    assert test.inputs.shape == (10_000, 1, 28, 28)
    assert train.inputs.dtype == torch.float32
    assert (train.inputs.min(), train.inputs.max()) == (0, 1)
    assert train.targets.dtype == torch.int64
    assert train.targets.bincount().tolist() == [6000] * 10
    assert test.targets.bincount().tolist() == [1000] * 10
    assert train.inputs.mean().item() == pytest.approx(0.2860, abs=1e-4)
