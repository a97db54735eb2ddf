"""Pickles as Python 2 wrote them in protocol 2, byte by byte: strings are raw bytes, and nothing is encoded."""

import struct

import numpy as np


def text(content: bytes) -> bytes:
    """A str of Python 2."""
    if len(content) < 256:
        return b"U" + bytes([len(content)]) + content
    return b"T" + struct.pack("<i", len(content)) + content


def number(value: int) -> bytes:
    if 0 <= value < 256:
        return b"K" + bytes([value])
    return b"M" + struct.pack("<H", value) if 0 <= value < 65536 else b"J" + struct.pack("<i", value)


def listed(items: list[bytes]) -> bytes:
    """A list, appended to in parts of a thousand."""
    parts = [items[start : start + 1000] for start in range(0, len(items), 1000)]
    return b"]" + b"".join(b"(" + b"".join(part) + b"e" for part in parts)


def array(numbers: np.ndarray) -> bytes:
    rows, columns = numbers.shape
    fortran = not numbers.flags.c_contiguous
    return b"".join(
        [
            b"cnumpy.core.multiarray\n_reconstruct\nq\x07cnumpy\nndarray\nq\x08K\x00\x85U\x01b\x87Rq\t",
            b"(K\x01" + number(rows) + number(columns) + b"\x86",
            b"cnumpy\ndtype\nq\nU\x02u1K\x00K\x01\x87Rq\x0b(K\x03U\x01|NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb",
            (b"\x88" if fortran else b"\x89") + text(numbers.tobytes("F" if fortran else "C")) + b"tb",
        ]
    )


def dumps(numbers: np.ndarray, labels: list[int]) -> bytes:
    """A side of CIFAR-100 as its author wrote it."""
    names = [text(b"bos_taurus_s_%06d.png" % k) + b"r" + struct.pack("<I", 1000 + k) for k in range(len(labels))]
    fine = listed([number(label) for label in labels])
    entries = {
        b"filenames": listed(names),
        b"batch_label": text(b"training batch 1 of 1"),
        b"fine_labels": fine,
        b"coarse_labels": fine,
        b"data": array(numbers),
    }
    return b"\x80\x02}q\x01(" + b"".join(text(key) + value for key, value in entries.items()) + b"u."
