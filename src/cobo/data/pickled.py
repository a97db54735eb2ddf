"""Arrays in Python's pickle format, read by parsing alone: nothing that a file names is ever imported or called.

A file of this format is a program for a small stack machine, and Python's own machine calls whatever function the
file names. This one knows the operations that dictionaries, lists, texts, numbers and NumPy arrays of bytes take in
protocol 2, and refuses everything else. What it makes is at most a few times as large as the file.
"""

from collections.abc import Iterator, Sequence
from enum import Enum
from pickletools import OpcodeInfo, genops

import numpy as np
from numpy.typing import NDArray


class Array:
    """An array of bytes with two axes as a file describes it; `text` has one character for each byte."""

    def __init__(self) -> None:
        self.shape = (0, 0)
        self.fortran = False
        self.text = ""

    def numbers(self) -> NDArray[np.uint8]:
        """The array itself."""
        try:
            flat = np.frombuffer(self.text.encode("latin-1"), dtype=np.uint8)
        except UnicodeEncodeError:
            raise ValueError("its array holds more than bytes") from None
        return flat.reshape(self.shape, order="F" if self.fortran else "C")


class Name(Enum):
    """What a file may name: a sign for each, since nothing is looked up."""

    ARRAY = "numpy ndarray"
    DTYPE = "numpy dtype"
    ENCODE = "_codecs encode"  # how Python 3 writes bytes in protocol 2
    RECONSTRUCT = "numpy.core.multiarray _reconstruct"
    BYTE = "the dtype of bytes"


NAMES = {name.value: name for name in (Name.ARRAY, Name.DTYPE, Name.ENCODE, Name.RECONSTRUCT)}
NAMES["numpy._core.multiarray _reconstruct"] = Name.RECONSTRUCT  # since NumPy 2


def read_pickled(content: bytes, most: int) -> object:
    """What a file of at most so many operations describes, or a `ValueError` that says what is wrong with it.

    Texts and bytes both become `str`: Python 2, which wrote the files that matter, made no difference.
    """
    stack: list[object] = []
    outer: list[list[object]] = []  # what lies below each mark
    memo: dict[object, object] = {}
    try:
        for count, (operation, argument) in enumerate(_operations(content)):
            if count >= most:
                raise ValueError(f"it has more than {most} operations")
            match operation.name:
                case "BININT" | "BININT1" | "BININT2" | "LONG1" | "BINSTRING" | "SHORT_BINSTRING" | "BINUNICODE":
                    stack.append(argument)
                case "BINPUT" | "LONG_BINPUT":
                    memo[argument] = stack[-1]
                case "BINGET" | "LONG_BINGET":
                    stack.append(memo[argument])
                case "NONE":
                    stack.append(None)
                case "NEWTRUE" | "NEWFALSE":
                    stack.append(operation.name == "NEWTRUE")
                case "EMPTY_DICT":
                    stack.append({})
                case "EMPTY_LIST":
                    stack.append([])
                case "MARK":
                    outer.append(stack)
                    stack = []
                case "TUPLE":
                    items, stack = stack, outer.pop()
                    stack.append(tuple(items))
                case "APPENDS":
                    items, stack = stack, outer.pop()
                    _append(stack[-1], items)
                case "SETITEMS":
                    items, stack = stack, outer.pop()
                    _set(stack[-1], items)
                case "TUPLE1" | "TUPLE2" | "TUPLE3":
                    stack.append(tuple(_last(stack, int(operation.name[-1]))))
                case "APPEND":
                    items = _last(stack, 1)
                    _append(stack[-1], items)
                case "SETITEM":
                    items = _last(stack, 2)
                    _set(stack[-1], items)
                case "REDUCE":
                    what, arguments = _last(stack, 2)
                    stack.append(_called(what, arguments))
                case "BUILD":
                    (state,) = _last(stack, 1)
                    _fill(stack[-1], state)
                case "GLOBAL":
                    if argument not in NAMES:
                        raise ValueError(f"it names {_short(argument)}, which no such file needs")
                    stack.append(NAMES[argument])
                case "PROTO":
                    if argument != 2:
                        raise ValueError(f"it is written in protocol {argument} instead of 2")
                case "STOP":
                    break
                case other:
                    raise ValueError(f"it has the operation {other}, which no such file needs")
        return stack[-1]
    except LookupError:
        raise ValueError("its operations do not fit together") from None


def _operations(content: bytes) -> Iterator[tuple[OpcodeInfo, object]]:
    """The operations in a file, up to the one that ends it."""
    try:
        for operation, argument, _ in genops(content):
            yield operation, argument
    except ValueError as error:
        raise ValueError(f"it cannot be parsed ({_short(error)})") from None


def _last(stack: list[object], count: int) -> list[object]:
    """Take the last few items off a stack."""
    items = [stack.pop() for _ in range(count)]
    return items[::-1]


def _append(target: object, items: Sequence[object]) -> None:
    if not isinstance(target, list):
        raise ValueError("it appends to what is no list")
    target.extend(items)


def _set(target: object, items: Sequence[object]) -> None:
    keys, values = items[::2], items[1::2]
    if not isinstance(target, dict) or len(keys) != len(values) or not all(isinstance(key, str) for key in keys):
        raise ValueError("it sets items of what is no dictionary with texts as keys")
    target.update(zip(keys, values, strict=True))


def _called(what: object, arguments: object) -> object:
    """What a call would give, if it is one of the three that an array of bytes needs."""
    match what, arguments:
        case Name.ENCODE, (str(text), "latin1"):
            return text
        case Name.DTYPE, ("u1", 0, 1):
            return Name.BYTE
        case Name.RECONSTRUCT, (Name.ARRAY, (0,), "b"):
            return Array()
    raise ValueError(f"it calls {what.value if isinstance(what, Name) else 'something'} as no such file needs to")


def _fill(what: object, state: object) -> None:
    """Give an array its contents; the dtype of bytes needs none."""
    match what, state:
        case Name.BYTE, (3, "|", None, None, None, -1, -1, 0):
            pass
        case Array(), (1, (int(rows), int(columns)), Name.BYTE, bool(fortran), str(text)):
            if min(rows, columns) < 0 or rows * columns != len(text):
                raise ValueError("its array is not of the size it says")
            what.shape, what.fortran, what.text = (rows, columns), fortran, text
        case _:
            raise ValueError("it fills in something that is no array of bytes with two axes")


def _short(text: object) -> str:
    return repr(" ".join(str(text).split())[:80])
