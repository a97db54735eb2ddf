"""The reader of pickled arrays: it reads what it should, and runs nothing, whatever a file asks for."""

import pickle
import struct
import tracemalloc

import numpy as np
import pytest
import python2

from cobo.data.pickled import Array, read_pickled

NUMBERS = np.random.default_rng(0).integers(0, 256, (7, 300), dtype=np.uint8)
LABELS = [3, 1, 4, 1, 5, 9, 2]
ENTRIES = {"filenames": ["a", "b"], "batch_label": "", "fine_labels": LABELS, "none": None, "yes": True, "big": 1 << 40}


def pickled(numbers, **changed):
    """As Python 3 writes it, texts as bytes."""
    entries = {**ENTRIES, **changed}
    as_bytes = {
        key.encode(): value.encode() if isinstance(value, str) and value else value for key, value in entries.items()
    }
    return pickle.dumps({**as_bytes, b"data": numbers, b"names": [b"x", b"y\xff"]}, protocol=2)


@pytest.mark.parametrize("order", ["C", "F"])
@pytest.mark.parametrize(
    "write", [lambda numbers: python2.dumps(numbers, LABELS), pickled], ids=["python 2", "python 3"]
)
def test_arrays_are_read_as_python_2_and_3_write_them(write, order):
    content = write(np.asarray(NUMBERS, order=order))
    assert np.array_equal(pickle.loads(content, encoding="bytes")[b"data"], NUMBERS)
    read = read_pickled(content, most=1000)
    assert np.array_equal(read["data"].numbers(), NUMBERS)
    assert read["fine_labels"] == LABELS


def test_arrays_that_older_numpy_wrote_on_python_3_are_read_too():
    content = pickled(NUMBERS).replace(b"numpy._core.multiarray", b"numpy.core.multiarray")
    assert b"_core" not in content
    assert np.array_equal(read_pickled(content, most=1000)["data"].numbers(), NUMBERS)


def test_everything_beside_the_array_is_read_too():
    read = read_pickled(pickled(NUMBERS), most=1000)
    assert isinstance(read.pop("data"), Array)
    assert read.pop("names") == ["x", "y\xff"]
    assert read == ENTRIES
    assert read_pickled(pickle.dumps({"a": [1], "b": [(2,), (), (1, 2, 3, 4)][0:1]}, protocol=2), most=99) == {
        "a": [1],
        "b": [(2,)],
    }


def short(content):
    return b"U" + bytes([len(content)]) + content


def live(command):
    """Programs that Python's own reader runs, each in another way."""
    shell = command.encode()
    return {
        "GLOBAL": b"\x80\x02cos\nsystem\n" + short(shell) + b"\x85R.",
        "GLOBAL posix": b"\x80\x02cposix\nsystem\n" + short(shell) + b"\x85R.",
        "GLOBAL eval": b"\x80\x02c__builtin__\neval\n" + short(b"__import__('os').system('%s')" % shell) + b"\x85R.",
        "STACK_GLOBAL": b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c" + bytes([len(shell)]) + shell + b"\x85R.",
        "STACK_GLOBAL in protocol 2": b"\x80\x02X\2\0\0\0osX\6\0\0\0system\x93" + short(shell) + b"\x85R.",
        "INST": b"(S'" + shell + b"'\nios\nsystem\n.",
        "OBJ": b"\x80\x02(csubprocess\nPopen\n]" + b"".join(short(x) + b"a" for x in shell.split()) + b"o.",
        "in a dictionary": b"\x80\x02}" + short(b"data") + b"cos\nsystem\n" + short(shell) + b"\x85Rs.",
        "before the end": b"\x80\x02cos\nsystem\n" + short(shell) + b"\x85R0" + python2.dumps(NUMBERS, LABELS)[2:],
    }


@pytest.mark.parametrize("name", live(""))
def test_a_file_that_would_run_a_command_is_refused_and_runs_nothing(tmp_path, name):
    ran = tmp_path / "ran"
    content = live(f"touch {ran}")[name]
    with pytest.raises(ValueError, match=r"^it (names|has the operation|is written in protocol)") as caught:
        read_pickled(content, most=1000)
    assert "\n" not in str(caught.value)
    assert not ran.exists()
    made = pickle.loads(content, encoding="latin1")  # the file is a real threat
    if hasattr(made, "wait"):
        made.wait()
    assert ran.exists()


BYTE = b"cnumpy\ndtype\nU\x02u1K\x00K\x01\x87R"
EMPTY = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85U\x01b\x87R"
STRANGE = {
    "PERSID": (b"Psome\n.", "operation PERSID"),
    "BINPERSID": (b"K\x01Q.", "operation BINPERSID"),
    "EXT1": (b"\x82\x01.", "operation EXT1"),
    "EXT2": (b"\x83\x01\x00.", "operation EXT2"),
    "EXT4": (b"\x84\x01\x00\x00\x00.", "operation EXT4"),
    "DUP": (b"]2.", "operation DUP"),
    "POP": (b"]]0.", "operation POP"),
    "FRAME": (b"\x95\1\0\0\0\0\0\0\0].", "operation FRAME"),
    "BYTEARRAY8": (b"\x96\1\0\0\0\0\0\0\0a.", "operation BYTEARRAY8"),
    "NEXT_BUFFER": (b"\x97.", "operation NEXT_BUFFER"),
    "NEWOBJ_EX": (b"cnumpy\nndarray\n]}\x92.", "operation NEWOBJ_EX"),
    "NEWOBJ of a known name": (b"cnumpy\nndarray\nK\x08\x85\x81.", "operation NEWOBJ"),
    "OBJ of a known name": (b"(cnumpy\nndarray\no.", "operation OBJ"),
    "INST of a known name": (b"(inumpy\nndarray\n.", "operation INST"),
    "STRING": (b"S'x'\n.", "operation STRING"),
    "unknown operation": (b"\xff.", "cannot be parsed"),
    "another name": (b"cnumpy\nload\n.", "names 'numpy load'"),
    "a name that continues a known one": (b"cnumpy\nndarray.tofile\n.", "names 'numpy ndarray.tofile'"),
    "a long name": (b"cos\n" + b"x" * 10_000 + b"\n.", "names 'os xxx"),
    "call of what is no name": (b"]K\x01\x85R.", "calls something"),
    "another dtype": (b"cnumpy\ndtype\nU\x02O8K\x00K\x01\x87R.", "calls numpy dtype"),
    "array called directly": (b"cnumpy\nndarray\nK\x08\x85R.", "calls numpy ndarray"),
    "another class": (EMPTY.replace(b"ndarray", b"dtype") + b".", "calls numpy.core.multiarray _reconstruct"),
    "another code": (b"c_codecs\nencode\nX\1\0\0\0aX\5\0\0\0rot13\x86R.", "calls _codecs encode"),
    "text of no text": (b"c_codecs\nencode\n]X\6\0\0\0latin1\x86R.", "calls _codecs encode"),
    "arguments that are no tuple": (b"c_codecs\nencode\nK\x01R.", "calls _codecs encode"),
    "BUILD of a dictionary": (b"}}b.", "fills in something"),
    "BUILD of a name": (b"cnumpy\nndarray\n}U\x01aK\x01sb.", "fills in something"),
    "BUILD of a dtype with fields": (BYTE + b"(K\x03U\x01|N]}J\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb.", "fills in"),
    "array that is too short": (EMPTY + b"(K\x01K\x02K\x03\x86" + BYTE + b"\x89U\x05aaaaatb.", "not of the size"),
    "array of negative size": (
        EMPTY + b"(K\x01J\xff\xff\xff\xffJ\xff\xff\xff\xff\x86" + BYTE + b"\x89U\x01atb.",
        "not of the size",
    ),
    "array with many axes": (EMPTY + b"(K\x01(" + b"K\x01" * 99 + b"t" + BYTE + b"\x89U\x01atb.", "two axes"),
    "array of objects": (EMPTY + b"(K\x01K\x01K\x01\x86K\x08\x89]tb.", "fills in"),
    "append to no list": (b"}K\x01a.", "appends to what is no list"),
    "appends to no list": (b"K\x01(K\x01e.", "appends to what is no list"),
    "key that is no text": (b"}]K\x01s.", "no dictionary with texts"),
    "half an item": (b"}(U\x01au.", "no dictionary with texts"),
    "item of no dictionary": (b"]U\x01aK\x01s.", "no dictionary with texts"),
    "nothing": (b".", "do not fit together"),
    "no mark": (b"]e.", "do not fit together"),
    "empty stack": (b"R.", "do not fit together"),
    "two arguments of three": (b"]]\x87.", "do not fit together"),
    "never remembered": (b"h\x05.", "do not fit together"),
    "another protocol": (b"\x80\x05].", "protocol 5 instead of 2"),
}


@pytest.mark.parametrize("name", STRANGE)
def test_every_other_operation_name_or_shape_is_refused_by_name(name):
    content, said = STRANGE[name]
    with pytest.raises(ValueError) as caught:
        read_pickled(b"\x80\x02" + content if name != "another protocol" else content, most=1000)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 200


@pytest.mark.parametrize(
    "content",
    [
        b"T\xff\xff\xff\x7fabc.", b"T\xff\xff\xff\xffabc.", b"X\xff\xff\xff\xffabc.", b"U\xffabc.",
        b"\x8d" + b"\xff" * 8 + b"abc.", b"\x8b\xff\xff\xff\x7fabc.", b"\x96" + b"\xff" * 7 + b"\x7fabc.",
        b"S" + b"x" * 10_000 + b"\n.", b"I" + b"9" * 10_000 + b"\n.",
    ],
)  # fmt: skip
def test_lengths_that_are_not_there_are_refused_without_making_room_for_them(content):
    tracemalloc.start()
    with pytest.raises(ValueError, match="cannot be parsed") as caught:
        read_pickled(b"\x80\x02" + content, most=1000)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1 << 20
    assert len(str(caught.value)) < 200


def test_a_file_cannot_make_much_more_than_itself():
    text = b"T" + struct.pack("<i", 1 << 20) + bytes(1 << 20) + b"q\x01"
    many = b"]q\x02(" + b"h\x01" * 900 + b"e"
    arrays = BYTE + b"q\x03" + (EMPTY + b"(K\x01J\0\0\x10\0K\x01\x86h\x03\x89h\x01tb") * 60
    codes = b"c_codecs\nencode\nq\x04" + b"h\x04h\x01X\6\0\0\0latin1\x86R" * 60
    doubled = b"]q\x10" + b"".join(b"](h%ch%ceq%c" % (k, k, k + 1) for k in range(16, 100))
    for bomb in (many, arrays, codes, doubled):
        content = b"\x80\x02" + text + bomb + b"."
        tracemalloc.start()
        read_pickled(content, most=2000)
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert peak < 5 << 20


def test_too_many_operations_are_refused():
    with pytest.raises(ValueError, match="more than 1000 operations"):
        read_pickled(b"\x80\x02" + b"}" * 1_000_000 + b".", most=1000)


@pytest.mark.parametrize("content", [python2.dumps(NUMBERS, LABELS), pickled(NUMBERS)])
def test_a_file_that_ends_early_is_refused_wherever_it_ends(content):
    for end in range(len(content)):
        with pytest.raises(ValueError, match="cannot be parsed"):
            read_pickled(content[:end], most=1000)


def test_damaged_files_give_values_or_one_kind_of_error():
    draws = np.random.default_rng(1)
    small = NUMBERS[:2, :5].copy()
    said = []
    for content in (python2.dumps(small, LABELS), pickled(small)):
        for _ in range(4000):
            damaged = bytearray(content)
            for place in draws.integers(0, len(content), draws.integers(1, 4)):
                damaged[place] = draws.integers(0, 256)
            try:
                read_pickled(bytes(damaged), most=1000)
            except ValueError as error:
                said.append(str(error))
    assert len(said) > 1000
    assert max(map(len, said)) < 300
    assert not any("\n" in line for line in said)
