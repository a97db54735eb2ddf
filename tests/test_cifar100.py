"""CIFAR-100: the same images from every form in which people have them, downloaded whole on request, else refused."""

import gzip
import io
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import tarfile
import threading
import time
import zlib
from contextlib import suppress
from functools import partial
from hashlib import md5
from pathlib import Path

import numpy as np
import pytest
import python2
import torch
from PIL import Image

from cobo import cli
from cobo.data import DATA, cifar100
from cobo.data.cifar100 import ORIGIN, SOURCE, Origin, fetch, locate
from cobo.data.fashion_mnist import ORIGIN as FASHION_MNIST
from cobo.data.fashion_mnist import fetch as fetch_fashion_mnist
from cobo.data.store import cache
from cobo.data.tarball import SLACK, read_members
from cobo.errors import DataError

pytestmark = pytest.mark.usefixtures("home")
ROOT = Path(__file__).parent.parent
DEAD = "http://127.0.0.1:9"
SMALL = Origin(f"{DEAD}/cifar-100-binary.tar.gz", "", train=200, test=100)


def side(count, seed):
    draws = np.random.default_rng(seed)
    return draws.integers(0, 256, (count, 3072), dtype=np.uint8), draws.permutation(count) % 100


SIDES = {"train": side(200, 0), "test": side(100, 1)}


def binary(images, labels):
    return np.column_stack([labels // 5, labels, images]).astype(np.uint8).tobytes()


def python3(images, labels):
    names = [b"some_%d.png" % k for k in range(len(labels))]
    entries = {b"filenames": names, b"fine_labels": labels.tolist(), b"batch_label": b"some", b"data": images}
    return pickle.dumps(entries, protocol=2)


def parquet(path, images, labels, **changed):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow.parquet import write_table

    rows = [{"bytes": png(image), "path": None} for image in images]
    columns = {"img": rows, "fine_label": labels.tolist(), "coarse_label": (labels // 5).tolist(), **changed}
    path.parent.mkdir(parents=True, exist_ok=True)
    write_table(pyarrow.table(columns), path)


def png(image, size=(32, 32), mode="RGB"):
    kept = io.BytesIO()
    Image.fromarray(image.reshape(3, 32, 32).transpose(1, 2, 0)).resize(size, 0).convert(mode).save(kept, "PNG")
    return kept.getvalue()


def put_binary(place, folder="cifar-100-binary"):
    folder = place / folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in SIDES.items():
        (folder / f"{name}.bin").write_bytes(binary(*made))
    return folder


def put_python(place, write=lambda images, labels: python2.dumps(images, labels.tolist()), folder="cifar-100-python"):
    folder = place / folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, made in SIDES.items():
        (folder / name).write_bytes(write(*made))
    return folder


def pack(folder, inside=""):
    """The archive of a folder, and the folder gone."""
    path = folder.with_name(f"{folder.name}.tar.gz")
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, f"{inside}{folder.name}")
    for file in folder.iterdir():
        file.unlink()
    folder.rmdir()
    return path


def put_parquet(place, folder="data", name="{}-00000-of-00001.parquet"):
    for side, made in SIDES.items():
        parquet(place / folder / name.format(side), *made)
    return place / folder


PUT = {
    "binary": put_binary,
    "binary archive": lambda place: pack(put_binary(place)),
    "binary archive packed by hand": lambda place: pack(put_binary(place), inside="./"),
    "python 2": put_python,
    "python 3": partial(put_python, write=python3),
    "python archive": lambda place: pack(put_python(place)),
    "parquet": put_parquet,
    "parquet in cifar100": partial(put_parquet, folder="cifar100"),
    "parquet right there": partial(put_parquet, folder="."),
    "parquet, a folder a side": partial(put_parquet, folder="cifar100", name="{}/0000.parquet"),
}
RIGHT_THERE = {
    "binary": partial(put_binary, folder="."),
    "python": partial(put_python, folder="."),
    "parquet": partial(put_parquet, folder=".", name="{}/0000.parquet"),
}


def is_whole(loaded):
    for found, (images, labels) in zip(loaded, SIDES.values(), strict=True):
        assert found.inputs.shape == (len(labels), 3, 32, 32)
        assert found.inputs.dtype == torch.uint8
        assert found.inputs.is_contiguous()
        assert np.array_equal(found.inputs.flatten(1), images)
        assert found.targets.dtype == torch.int64
        assert found.targets.tolist() == labels.tolist()


@pytest.mark.parametrize("form", PUT)
@pytest.mark.parametrize("place", ["mine/cifar100", "mine", "cache/cobo/cifar100"])
def test_every_form_gives_the_same_images_wherever_it_lies(home, monkeypatch, form, place):
    monkeypatch.setenv("COBO_DATA", str(home / "mine"))
    where = PUT[form](home / place)
    assert locate() == where
    is_whole(cifar100(SMALL))


@pytest.mark.parametrize("form", RIGHT_THERE)
def test_files_right_in_a_folder_are_the_data_only_if_it_is_called_so(home, monkeypatch, form):
    """Other data sets have files called train and test, too."""
    monkeypatch.setenv("COBO_DATA", str(home / "mine"))
    cached = RIGHT_THERE[form](cache("cifar100"))
    assert locate() == cached
    RIGHT_THERE[form](home / "mine")
    assert locate() == cached
    where = RIGHT_THERE[form](home / "mine" / "cifar100")
    assert locate() == where
    is_whole(cifar100(SMALL))


def test_what_the_user_names_comes_before_the_cache_and_what_loads_fast_before_what_is_slow(home, monkeypatch):
    assert locate() is None
    cached = put_binary(cache("cifar100"))
    assert locate() == cached
    monkeypatch.setenv("COBO_DATA", str(home / "mine"))
    assert locate() == cached
    for form in ("parquet", "python archive", "python 2", "binary archive", "binary"):
        where = PUT[form](home / "mine")
        assert locate() == where
    where = PUT["parquet"](home / "mine" / "cifar100")
    assert locate() == where


def test_a_file_without_its_other_half_is_not_taken_for_the_data(home, monkeypatch):
    monkeypatch.setenv("COBO_DATA", str(home))
    for path in (home / "cifar-100-binary/train.bin", home / "cifar-100-python/test", home / "data/train-0.parquet"):
        path.parent.mkdir()
        path.write_bytes(b"")
    assert locate() is None


def test_several_parquet_files_are_one_side(home, monkeypatch):
    monkeypatch.setenv("COBO_DATA", str(home))
    folder = put_parquet(home)
    (folder / "train-00000-of-00001.parquet").unlink()
    images, labels = SIDES["train"]
    parquet(folder / "train-00001-of-00002.parquet", images[150:], labels[150:])
    parquet(folder / "train-00000-of-00002.parquet", images[:150], labels[:150])
    is_whole(cifar100(SMALL))
    parquet(folder / "train-00002-of-00002.parquet", images[:1], labels[:1])
    refused(r"train-00002-of-00002.parquet cannot be used: it has 1 rows, more than 0")


def refused(said):
    with pytest.raises(DataError, match=said) as caught:
        cifar100(SMALL)
    assert "\n" not in str(caught.value)
    assert "put whole copies in place of" in str(caught.value)


IMAGES, LABELS = SIDES["train"]
WRONG = np.where(LABELS == 99, 100, LABELS)
ODD = np.where(LABELS == 7, 8, LABELS)
DAMAGED = [
    (binary(IMAGES, LABELS)[:-1], "614799 bytes long instead of 614800"),
    (binary(IMAGES, LABELS) + b"x", "614801 bytes long, and 200 images take at most 614800"),
    (b"", "0 bytes long"),
    (binary(*SIDES["test"]), "307400 bytes long instead of 614800"),
    (binary(IMAGES, WRONG), "has the label 100; labels are 0 to 99"),
    (binary(IMAGES, ODD), "has 0 images of class 7 instead of 2"),
    (binary(IMAGES, LABELS // 5), "has 10 images of class 0 instead of 2"),
]


@pytest.mark.parametrize(("content", "said"), DAMAGED)
def test_a_damaged_binary_file_is_refused_with_what_is_wrong(home, monkeypatch, content, said):
    monkeypatch.setenv("COBO_DATA", str(home))
    (put_binary(home) / "train.bin").write_bytes(content)
    refused(f"train.bin in {home}/cifar-100-binary cannot be used: it (is )?{said}")


def test_one_file_for_both_sides_is_refused(home, monkeypatch):
    monkeypatch.setenv("COBO_DATA", str(home))
    folder = put_binary(home)
    (folder / "test.bin").unlink()
    (folder / "test.bin").hardlink_to(folder / "train.bin")
    refused("test.bin in .* is 614800 bytes long, and 100 images take at most 307400")
    (folder / "train.bin").unlink()
    (folder / "train.bin").write_bytes(binary(*SIDES["test"]))
    (folder / "test.bin").unlink()
    (folder / "test.bin").symlink_to("train.bin")
    refused("train.bin in .* is 307400 bytes long instead of 614800")


NUMBERS = LABELS.tolist()


def entries(images=IMAGES, labels=NUMBERS, **more):
    return pickle.dumps({b"data": images, b"fine_labels": labels, **more}, protocol=2)


PICKLED = [
    (python2.dumps(IMAGES, NUMBERS)[:-100], "it cannot be parsed"),
    (b"", "it cannot be parsed"),
    (b"\x80\x02cos\nsystem\nU\x04true\x85R.", "it names 'os system', which no such file needs"),
    (python3(*SIDES["test"]), r"its array is \[100, 3072\] instead of \[200, 3072\]"),
    (entries(images=IMAGES.reshape(-1, 1024)), r"its array is \[600, 1024\]"),
    (entries(images=IMAGES.astype(np.int8)), "it calls numpy dtype"),
    (entries(labels=NUMBERS[1:]), "200 images and 199 labels"),
    (entries(labels=[-1, *NUMBERS[1:]]), "label -1"),
    (entries(labels=[1 << 70, *NUMBERS[1:]]), f"label {1 << 70}"),
    (entries(labels=[None] * 200), "no list of numbers called fine_labels"),
    (entries(labels=WRONG.tolist()), "label 100"),
    (pickle.dumps({b"data": IMAGES}, protocol=2), "no list of numbers called fine_labels"),
    (pickle.dumps({b"fine_labels": NUMBERS}, protocol=2), "no array called data"),
    (pickle.dumps([1, 2], protocol=2), "no array called data"),
    (entries(more=[[] for _ in range(6000)]), "more than 5000 operations"),
    (bytes(1_300_000), r"1300000 bytes long, and 200 images take at most 1290000"),
]


@pytest.mark.parametrize(("content", "said"), PICKLED)
def test_a_damaged_or_hostile_python_file_is_refused_with_what_is_wrong(home, monkeypatch, content, said):
    monkeypatch.setenv("COBO_DATA", str(home))
    (put_python(home) / "train").write_bytes(content)
    refused(f"train in {home}/cifar-100-python cannot be used: .*{said}")


def test_a_file_larger_than_expected_is_not_even_read(home, monkeypatch):
    monkeypatch.setenv("COBO_DATA", str(home))
    path = put_python(home) / "train"
    os.truncate(path, 1 << 40)  # takes no room on the disk
    refused("1099511627776 bytes long, and 200 images take at most")


def blank(**changed):
    """A member of an archive with its content, which is zeros."""
    member = tarfile.TarInfo("cifar-100-binary/train.bin")
    for key, value in changed.items():
        setattr(member, key, value)
    return member, bytes(member.size if member.isreg() else 0)


def archived(path, *members):
    with tarfile.open(path, "w:gz") as archive:
        for member, content in members:
            archive.addfile(member, io.BytesIO(content))


ARCHIVES = [
    ([blank(type=tarfile.SYMTYPE, linkname="/etc/passwd")], "its cifar-100-binary/train.bin is not a plain file"),
    ([blank(type=tarfile.LNKTYPE, linkname="other")], "is not a plain file"),
    ([blank(type=tarfile.DIRTYPE)], "is not a plain file"),
    ([blank(type=tarfile.FIFOTYPE)], "is not a plain file"),
    ([blank(size=614_801)], "its cifar-100-binary/train.bin is larger than 614800 bytes"),
    ([blank(name="other", size=614_800 + 307_400 + SLACK)], "far larger than it should be"),
    ([blank(name="/cifar-100-binary/train.bin"), blank(name="../train.bin")], "has no .*/test.bin and no .*/train.bin"),
    ([blank(size=614_800)], "it has no cifar-100-binary/test.bin"),
    ([], "it has no"),
]


@pytest.mark.parametrize(("members", "said"), ARCHIVES)
def test_a_strange_archive_is_refused_with_what_is_wrong(home, monkeypatch, members, said):
    monkeypatch.setenv("COBO_DATA", str(home))
    archived(home / "cifar-100-binary.tar.gz", *members)
    refused(said)
    assert [path.name for path in home.rglob("*")] == ["cifar-100-binary.tar.gz"]


def test_a_damaged_archive_is_refused_wherever_it_ends(home, monkeypatch):
    monkeypatch.setenv("COBO_DATA", str(home))
    path = pack(put_binary(home))
    content = path.read_bytes()
    for end in (0, 5, 1000, len(content) // 2, len(content) - 50_000):
        path.write_bytes(content[:end])
        refused(r"cifar-100-binary.tar.gz cannot be used: it (cannot be unpacked|has no)")
    path.write_bytes(b"<html>moved</html>")
    refused("cannot be unpacked")
    path.write_bytes(content[:1000] + bytes(100) + content[1100:])
    refused("cannot be")


def test_a_header_that_claims_a_long_name_fills_no_memory(tmp_path):
    claim = tarfile.TarInfo("././@LongLink")
    claim.type, claim.size = tarfile.GNUTYPE_LONGNAME, 1 << 33
    path = tmp_path / "some.tar.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        file.write(claim.tobuf(tarfile.GNU_FORMAT))
        file.write(bytes(4 << 20))
    with pytest.raises(ValueError, match="far larger than it should be"):
        read_members(path, {"train": 10})


def long_names(count):
    """So many headers, each of which names the next one."""
    name = tarfile.TarInfo("././@LongLink")
    name.type, name.size = tarfile.GNUTYPE_LONGNAME, 1
    return [(name, b"x")] * count


def test_headers_without_end_are_one_clear_line(home, monkeypatch):
    monkeypatch.setenv("COBO_DATA", str(home))
    archived(home / "cifar-100-binary.tar.gz", *long_names(900))
    refused("cifar-100-binary.tar.gz cannot be used: it cannot be unpacked")


def replaced(**changed):
    return [{"bytes": png(IMAGES[0], **changed), "path": None}, *({"bytes": png(x), "path": None} for x in IMAGES[1:])]


def chunk(kind, content=b""):
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def spoiled():
    """An image with an empty colour profile after its pixels."""
    whole = png(IMAGES[0])
    return whole[:-12] + chunk(b"iCCP") + whole[-12:]


def huge():
    """The head of an image of a hundred million pixels."""
    head = struct.pack(">IIBBBBB", 10_000, 10_000, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT")


PARQUET = [
    ({"fine_label": WRONG.tolist()}, "label 100"),
    ({"fine_label": [None, *NUMBERS[1:]]}, "no number in fine_label"),
    ({"fine_label": ["x"] * 200}, "no numbers in fine_label"),
    ({"fine_label": LABELS.astype(np.uint64) | np.uint64(1 << 63)}, "label 9223372036854775"),
    ({"img": [None] * 200}, "no bytes in img.bytes"),
    ({"img": [b"x"] * 200}, "no bytes in img.bytes"),
    ({"img": replaced(size=(31, 32))}, "an image is RGB 31x32 instead of RGB 32x32"),
    ({"img": replaced(mode="L")}, "an image is L 32x32"),
    ({"img": [{"bytes": b"GIF89a", "path": None}] * 200}, "not a whole PNG"),
    ({"img": [{"bytes": png(IMAGES[0])[:500], "path": None}] * 200}, "not a whole PNG"),
    ({"img": [{"bytes": spoiled(), "path": None}] * 200}, "not a whole PNG"),
    ({"img": [{"bytes": huge(), "path": None}] * 200}, "an image is RGB 10000x10000"),
    ({"fine_label": np.full(200, 1 << 62, dtype="timedelta64[s]")}, "no numbers in fine_label"),
    ({"fine_label": np.full(200, 1 << 30, dtype="datetime64[D]")}, "no numbers in fine_label"),
]


@pytest.mark.parametrize(("changed", "said"), PARQUET)
def test_a_strange_parquet_file_is_refused_with_what_is_wrong(home, monkeypatch, changed, said):
    monkeypatch.setenv("COBO_DATA", str(home))
    folder = put_parquet(home)
    parquet(folder / "train-00000-of-00001.parquet", IMAGES, LABELS, **changed)
    refused(said)


def test_a_parquet_file_that_is_none_or_of_other_data_is_refused(home, monkeypatch):
    monkeypatch.setenv("COBO_DATA", str(home))
    path = put_parquet(home) / "train-00000-of-00001.parquet"
    content = path.read_bytes()
    parquet(path, *SIDES["test"])
    refused("it has 100 images and 100 labels instead of 200")
    for damaged in (b"", b"PAR1", content[:-10], content[:100] + bytes(2000) + content[2100:]):
        path.write_bytes(damaged)
        refused("train-00000-of-00001.parquet cannot be used")


def test_without_pyarrow_a_parquet_file_says_what_to_install(home, monkeypatch):
    monkeypatch.setenv("COBO_DATA", str(home))
    put_parquet(home)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        DataError, match=r"parquet takes pyarrow to read; in cobo's clone: pip install '\.\[parquet\]'$"
    ):
        cifar100(SMALL)


def test_nothing_is_downloaded_unasked(home, server, monkeypatch):
    monkeypatch.setenv("COBO_DATA", str(home / "mine"))
    with pytest.raises(DataError) as caught:
        cifar100(SMALL._replace(address=f"{server.address}/cifar-100-binary.tar.gz"))
    assert server.asked == []
    said = str(caught.value)
    assert "\n" not in said
    for words in (
        "cifar100 is missing", f"{home}/mine/cifar100, {home}/mine, {home}/cache/cobo/cifar100",
        "`cobo data fetch cifar100`", "cifar-100-binary", "cifar-100-python", "parquet", "COBO_DATA",
    ):  # fmt: skip
        assert words in said


@pytest.fixture
def published(home, server):
    """A server that has the archive."""
    path = pack(put_binary(home / "published"))
    content = path.read_bytes()
    path.unlink()
    path.parent.rmdir()
    server.bodies["/cifar-100-binary.tar.gz"] = content
    return SMALL._replace(address=f"{server.address}/cifar-100-binary.tar.gz", md5=md5(content).hexdigest())


def call(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["cobo", *arguments])
    with pytest.raises(SystemExit) as end:
        cli.main()
    shown = capsys.readouterr()
    return end.value.code or 0, shown.out, shown.err


def test_it_is_fetched_once_with_a_bar_and_read_as_it_is(home, server, published, monkeypatch, capsys):
    monkeypatch.setitem(DATA, "cifar100", SOURCE._replace(fetch=partial(fetch, published)))
    code, out, err = call(monkeypatch, capsys, "data")
    assert all(words in out for words in ("cifar100", "100 classes", "missing: `cobo data fetch"))
    code, out, err = call(monkeypatch, capsys, "data", "fetch", "cifar100")
    path = home / "cache" / "cobo" / "cifar100" / "cifar-100-binary.tar.gz"
    assert (code, out) == (0, f"cifar100: present in {path}\n")
    assert "cifar-100-binary.tar.gz" in err
    assert list(path.parent.iterdir()) == [path]
    assert call(monkeypatch, capsys, "data", "fetch", "cifar100") == (0, out, "")
    assert len(server.asked) == 1
    is_whole(cifar100(published))


@pytest.mark.parametrize("damage", [lambda body: body[:-20], lambda body: b"<html>moved</html>", lambda body: b""])
def test_a_damaged_download_is_never_kept(home, server, published, damage):
    server.bodies["/cifar-100-binary.tar.gz"] = damage(server.bodies["/cifar-100-binary.tar.gz"])
    with pytest.raises(DataError, match=r"cifar-100-binary.tar.gz sent a damaged file \(its checksum is wrong\)"):
        fetch(published)
    assert [path for path in home.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("name", "fetching", "words"),
    [
        ("cifar100", partial(fetch, SMALL), ["cifar-100-python", "parquet"]),
        ("fashion-mnist", partial(fetch_fashion_mnist, FASHION_MNIST._replace(address=DEAD)), ["the four files"]),
    ],
)
def test_fetching_without_a_network_is_one_line_and_exit_2(home, monkeypatch, capsys, name, fetching, words):
    monkeypatch.setitem(DATA, name, DATA[name]._replace(locate=lambda: None, fetch=fetching))
    code, out, err = call(monkeypatch, capsys, "data", "fetch", name)
    assert (code, out) == (2, "")
    assert len(err.strip().splitlines()) == 1
    for word in ("is missing, looked for in", f"{home}/cache/cobo/{name}", "cannot be fetched", "COBO_DATA", *words):
        assert word in err
    assert list(home.iterdir()) == []


INTERRUPTED = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests were started in the background
from contextlib import suppress
from functools import partial
from cobo import cli
from cobo.data import DATA
from cobo.data.cifar100 import SOURCE, ORIGIN, fetch
DATA["cifar100"] = SOURCE._replace(fetch=partial(fetch, ORIGIN._replace(address=sys.argv.pop())))
cli.main()
"""


@pytest.mark.slow
@pytest.mark.parametrize(("sent", "code"), [(signal.SIGINT, 130), (signal.SIGKILL, -signal.SIGKILL)])
def test_an_interrupted_download_is_never_taken_for_the_data(home, sent, code):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def half():
            connection, _ = listening.accept()
            with connection, suppress(ConnectionError):  # a killed process resets the connection, or closes it
                connection.recv(10_000)
                connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Length: 9000000\r\n\r\n" + bytes(1_000_000))
                connection.recv(1)  # until the other side is gone

        thread = threading.Thread(target=half, daemon=True)
        thread.start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/cifar-100-binary.tar.gz"
        process = subprocess.Popen(
            [sys.executable, "-c", INTERRUPTED, "data", "fetch", "cifar100", address],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        end = time.monotonic() + 60
        while not any(path.stat().st_size for path in home.rglob(".*.part")) and time.monotonic() < end:
            time.sleep(0.02)
        process.send_signal(sent)
        out, err = process.communicate(timeout=60)
        thread.join()
    assert process.returncode == code, err
    assert out == ""
    assert "Traceback" not in err
    assert locate() is None
    left = [path.name for path in cache("cifar100").iterdir()]
    assert left == [] if sent == signal.SIGINT else all(name.startswith(".") for name in left)


def test_the_registry_has_it_with_what_its_author_publishes():
    assert DATA["cifar100"] is SOURCE
    assert Origin("https://www.cs.toronto.edu/~kriz/cifar-100-binary.tar.gz",
                  "03b5dce01913d631647c71ecec9e9cb8", 50_000, 10_000) == ORIGIN  # fmt: skip


def test_cifar100_is_whole(real, monkeypatch):
    monkeypatch.setenv("COBO_DATA", str(real))
    train, test = cifar100()
    assert train.inputs.shape == (50_000, 3, 32, 32)
    assert test.inputs.shape == (10_000, 3, 32, 32)
    assert train.inputs.dtype == torch.uint8
    assert train.targets.bincount().tolist() == [500] * 100
    assert test.targets.bincount().tolist() == [100] * 100
    means = [channel.double().mean().item() / 255 for channel in train.inputs.unbind(1)]
    assert means == pytest.approx([0.5071, 0.4865, 0.4409], abs=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["binary archive", "python 2"])
def test_cifar100_is_the_same_in_other_forms(real, tmp_path, monkeypatch, form):
    monkeypatch.setenv("COBO_DATA", str(real))
    sides = cifar100()
    if form == "binary archive":
        with tarfile.open(tmp_path / "cifar-100-binary.tar.gz", "w:gz", compresslevel=0) as archive:
            archive.add(real / "cifar-100-binary", "cifar-100-binary")
    else:
        (tmp_path / "cifar-100-python").mkdir()
        for name, split in zip(("train", "test"), sides, strict=True):
            content = python2.dumps(split.inputs.flatten(1).numpy(), split.targets.tolist())
            (tmp_path / "cifar-100-python" / name).write_bytes(content)
    monkeypatch.setenv("COBO_DATA", str(tmp_path))
    again = cifar100()
    for one, other in zip(sides, again, strict=True):
        assert torch.equal(one.inputs, other.inputs)
        assert torch.equal(one.targets, other.targets)
