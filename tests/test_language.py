"""Language models: texts, tokens, windows, adapters on one base; all offline, with a tiny GPT-2 made here."""

import copy
import gc
import io
import json
import math
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import threading
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from test_cli import run
from test_compare import Silent
from torch import nn

import cobo
from cobo import cli
from cobo.compute.task import PADDING, Task
from cobo.data import libreoffice_help, text, tokens
from cobo.errors import CheckpointError, ConfigError, DataError
from cobo.experiments import EXPERIMENTS, load_experiment, runner, tune
from cobo.experiments.language import LANGUAGES, Language, pretrained
from cobo.federation.windows import Windows

CONTEXT = 16


def speech(alphabet: str, count: int, seed: int) -> list[str]:
    """Lines in a language of its own: words of two letters that follow each other in a circle."""
    chance = random.Random(seed)
    words = [a + b for a, b in zip(alphabet, alphabet[1:] + alphabet[0], strict=True)]
    lines = []
    for _ in range(count):
        start = chance.randrange(len(words))
        lines.append(" ".join(words[(start + k) % len(words)] for k in range(12)) + "\n")
    return lines


@pytest.fixture(scope="session")
def tiny_gpt(tmp_path_factory) -> Path:
    """A folder as transformers writes it: a GPT-2 of random numbers and a tokenizer trained on the spot."""
    transformers = pytest.importorskip("transformers")
    from tokenizers import ByteLevelBPETokenizer

    folder = tmp_path_factory.mktemp("gpt")
    trained = ByteLevelBPETokenizer()
    trained.train_from_iterator(
        speech("abcdefgh", 50, 0) + speech("mnopqrst", 50, 1), vocab_size=300, special_tokens=["<end>"]
    )
    transformers.PreTrainedTokenizerFast(tokenizer_object=trained._tokenizer, eos_token="<end>").save_pretrained(folder)
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=300, n_positions=32, n_embd=16, n_layer=1, n_head=2, bos_token_id=0, eos_token_id=0
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def base(tiny_gpt):
    from cobo.language import LanguageModel

    return LanguageModel(tiny_gpt)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("COBO_DATA", raising=False)


# Texts


def test_blank_lines_separate_documents_and_without_any_every_line_is_one(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n\n \nthree\n")
    assert text.documents(path).train == ["one\ntwo", "three"]
    for ends in ("one\ntwo\r\nthree", "\ufeffone\ntwo\nthree\n\n", "\n\none\ntwo\nthree\n"):
        path.write_text(ends)
        assert text.documents(path).train == ["one\n", "two\n", "three\n"]
    path.write_text("one\x0c\ntwo\u2028half\n")  # only a newline ends a line
    assert text.documents(path).train == ["one\x0c\n", "two\u2028half\n"]


def test_tables_and_folders_of_a_data_set_are_read(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    (tmp_path / "data").mkdir()
    table = pyarrow.table({"id": [1, 2], "text": ["first\n", None]})
    parquet.write_table(table, tmp_path / "data" / "a.parquet")
    (tmp_path / "data" / "b.jsonl").write_text('{"text": "second"}\n\n{"text": "third", "n": 1}\n')
    path = tmp_path / "data" / "c.arrow"
    with path.open("wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
        writer.write_table(table)
    (tmp_path / "LICENSE.txt").write_text("not of the data set")
    (tmp_path / "dataset_info.json").write_text('{"features": {}}')
    assert text.documents(tmp_path) == (["first", "second", "third", "first"], [])


@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "dictionary"])
@pytest.mark.parametrize("name", ["a.arrow", "b.arrow", "c.feather", "d.parquet"])
def test_arrow_files_and_streams_with_any_kind_of_strings_are_read(tmp_path, kind, name):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    strings = pa.dictionary(pa.int32(), pa.string()) if kind == "dictionary" else getattr(pa, kind)()
    table = pa.table({"text": pa.array(["one", None, "two", "one"], pa.string()).cast(strings)})
    if name == "d.parquet":
        parquet.write_table(table, tmp_path / name)
    else:
        make = pa.ipc.new_stream if name == "b.arrow" else pa.ipc.new_file
        with (tmp_path / name).open("wb") as file, make(file, table.schema) as writer:
            writer.write_table(table, max_chunksize=3)
    for source in (tmp_path, tmp_path / name):
        assert text.documents(source).train == ["one", "two", "one"]


def test_a_column_of_lists_is_no_text(tmp_path):
    pa = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    parquet.write_table(pa.table({"text": [["one"], ["two"]]}), tmp_path / "a.parquet")
    with pytest.raises(DataError, match="has no column 'text' of strings; it has text"):
        text.documents(tmp_path)


def test_json_lines_may_begin_with_a_byte_order_mark(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "one"}\n')
    assert text.documents(tmp_path).train == ["one"]


def test_caches_and_hidden_files_are_no_documents(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    for name in ("train/data-0.arrow", "train/cache-1a2b.arrow", ".cache/old.arrow", "train/.draft.arrow"):
        path = tmp_path / ".home" / name  # the folder that is asked for may be hidden itself
        path.parent.mkdir(parents=True, exist_ok=True)
        table = pyarrow.table({"text": [name]})
        with path.open("wb") as file, pyarrow.ipc.new_stream(file, table.schema) as writer:
            writer.write_table(table)
    assert text.documents(tmp_path / ".home").train == ["train/data-0.arrow"]


def test_parts_that_a_data_set_calls_train_and_test_are_that(tmp_path, base):
    for name in ("train-0.jsonl", "test-0.jsonl", "validation-0.jsonl", "trained-notes.jsonl"):
        lines = speech("abcdefgh", 60, len(name))
        (tmp_path / name).write_text("".join(json.dumps({"text": f"{name} {line}"}) + "\n" for line in lines))
    train, test = text.documents(tmp_path)
    assert {t.split()[0] for t in train} == {"train-0.jsonl"}
    assert {t.split()[0] for t in test} == {"test-0.jsonl"}
    client = base.client("a", tmp_path, context=CONTEXT)
    assert torch.equal(client.test.tokens, tokens.tokenised(test, base.tokenizer, "a"))
    (tmp_path / "test-0.jsonl").unlink()  # without both, everything is one text
    assert len({t.split()[0] for t in text.documents(tmp_path).train}) == 3


@pytest.mark.parametrize(
    ("train", "test"), [("training", "test"), ("Train", "Test"), ("TRAIN-0", "testing"), ("training/a", "Test/b")]
)
def test_train_and_test_may_be_spelled_in_other_ways(tmp_path, train, test):
    for name in (train, test, "notes"):
        (tmp_path / f"{name}.jsonl").parent.mkdir(exist_ok=True)
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"text": name}))
    assert text.documents(tmp_path) == ([train], [test])


def test_a_text_to_test_by_is_never_trained_on_because_nothing_is_called_train(tmp_path, base):
    for name in ("test", "notes"):
        lines = speech("abcdefgh", 60, 0)
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    with pytest.raises(DataError, match=r"client 'a': .* has text called test, but none called train; call what"):
        base.client("a", tmp_path, context=CONTEXT)


def test_a_client_is_tested_by_the_test_part_of_the_data_set_that_is_given_to_test_by(tmp_path, base):
    for name in ("train", "test"):
        lines = speech("abcdefgh", 60, len(name))
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps({"text": line}) + "\n" for line in lines))
    train, test = text.documents(tmp_path)
    made = tokens.tokenised(test, base.tokenizer, "a")
    for source in (tmp_path, speech("mnopqrst", 60, 0)):
        assert torch.equal(base.client("a", source, test=tmp_path, context=CONTEXT).test.tokens, made)
    (tmp_path / "train.jsonl").unlink()  # what is called test is enough to test by
    assert torch.equal(base.client("a", train, test=tmp_path, context=CONTEXT).test.tokens, made)


def test_a_text_is_not_tested_by_itself(tmp_path, base):
    path = tmp_path / "a.txt"
    path.write_text("".join(speech("abcdefgh", 60, 0)))
    with pytest.raises(DataError, match="client 'a': it would be tested by the text that it trains on; give another"):
        base.client("a", path, test=tmp_path, context=CONTEXT, limit=50)


def test_the_innermost_name_says_which_part_a_file_is_of(tmp_path):
    for name in ("train/a", "test/b", "train/test-0", "test/2024/train/c", "train/validation", "test/latest"):
        path = tmp_path / f"{name}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"text": name}))
    train, test = text.documents(tmp_path)
    assert sorted(train) == ["test/2024/train/c", "train/a"]
    assert sorted(test) == ["test/b", "test/latest", "train/test-0"]


def test_a_part_of_a_data_set_of_the_hub_is_asked_for_by_its_folder(tmp_path, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")
    asked = {}

    def download(name, **options):
        asked.update(options, name=name)
        return str(tmp_path)

    monkeypatch.setattr(hub, "snapshot_download", download)
    (tmp_path / "ca").mkdir()
    (tmp_path / "ca" / "a.txt").write_text("one\ntwo\n")
    assert text.documents("hf:somebody/wiki/ca").train == ["one\n", "two\n"]
    assert asked["name"] == "somebody/wiki"
    assert all(pattern.startswith("ca/*") for pattern in asked["allow_patterns"])


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("a.txt", b"\xff\xfe", "is not UTF-8 text"),
        ("a.txt", b"\n \n", "has no text in it"),
        ("a.jsonl", b'{"text": 5}\n', "line 1, has no 'text'"),
        ("a.jsonl", b"{", "line 1, is not JSON"),
        ("a.parquet", b"nonsense", "is damaged"),
        ("a.arrow", b"nonsense", "is damaged"),
        ("a.arrow", b"ARROW1 nonsense", "is damaged"),
        *((f"a{kind}", b"one, two\n", "is a table, not text; save it as") for kind in (".csv", ".TSV", ".xlsx")),
    ],
)
def test_bad_texts_get_one_clear_line(tmp_path, name, content, words):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=words) as caught:
        text.documents(path)
    assert "\n" not in str(caught.value)


def test_missing_texts_get_one_clear_line(tmp_path):
    with pytest.raises(DataError, match="is not there; it should be a text file, a folder of a data set, or hf:"):
        text.documents(tmp_path / "none.txt")
    (tmp_path / "empty").mkdir()
    with pytest.raises(DataError, match="is a folder without texts"):
        text.documents(tmp_path / "empty")


def test_a_hub_that_cannot_be_reached_gets_one_clear_line():
    pytest.importorskip("huggingface_hub")
    with pytest.raises(DataError, match=r"from the Hugging Face hub: it cannot be reached; .* give its folder"):
        text.documents("hf:nobody/nothing")


def test_a_hub_that_never_answers_does_not_hang_a_data_set():
    """Somebody listens at its address, and is silent; the packages of Hugging Face by themselves wait for minutes."""
    pytest.importorskip("huggingface_hub")
    code = (
        "from cobo.data import text\ntext.PATIENCE = 1\n"
        "try:\n    text.documents('hf:nobody/nothing')\n"
        "except text.DataError as error:\n    print(error)"
    )
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": f"http://127.0.0.1:{silent.getsockname()[1]}"}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **address}, timeout=60
        )
    assert "from the Hugging Face hub: it cannot be reached; download it" in done.stdout, done.stderr


def test_a_hub_behind_a_failing_proxy_gets_one_clear_line(monkeypatch):
    hub, httpx = pytest.importorskip("huggingface_hub"), pytest.importorskip("httpx")

    def download(*_, **__):
        raise httpx.ProxyError("403\nForbidden")

    monkeypatch.setattr(hub, "snapshot_download", download)
    with pytest.raises(DataError, match="cannot be had from the Hugging Face hub: 403 Forbidden; download it"):
        text.documents("hf:nobody/nothing")


def test_texts_are_divided_between_documents():
    texts = [f"{k}" * 10 for k in range(10)]
    rest, judged = text.divided(texts, 0.2)
    assert rest + judged == texts
    assert len(judged) == 2
    assert text.divided(texts, 0.11)[1] == texts[8:]  # at least so much
    with pytest.raises(
        DataError, match="1 of 2 documents would be 70% of the text, not 10%, and documents are not cut"
    ):
        text.divided(["a" * 30, "b" * 70], 0.1)
    with pytest.raises(DataError, match=r"would be 70% of the text, not 0\.5%"):
        text.divided(["a" * 30, "b" * 70], 0.005)


# Tokens


def test_tokens_are_made_once_and_kept_by_content(base, monkeypatch):
    texts = speech("abcdefgh", 30, 3)
    made = tokens.tokenised(texts, base.tokenizer, "a")
    assert base.tokenizer.decode(made.tolist()) == "".join(texts)
    monkeypatch.setattr(tokens, "_encoded", lambda *_: pytest.fail("it was made again"))
    assert torch.equal(tokens.tokenised(texts, base.tokenizer, "b"), made)
    with pytest.raises(pytest.fail.Exception):
        tokens.tokenised([*texts, "more\n"], base.tokenizer, "a")


def test_a_tokenizer_is_looked_at_once_for_all_texts_that_are_kept(base, monkeypatch):
    lines = speech("abcdefgh", 60, 0)
    first = base.client("a", lines, context=CONTEXT)
    assert torch.equal(tokens.tokenised(lines[:54], base.tokenizer, "a"), first.train.tokens)
    monkeypatch.setattr(tokens, "_whole", lambda _: pytest.fail("it was looked at again"))
    assert torch.equal(base.client("b", lines, context=CONTEXT).train.tokens, first.train.tokens)


def test_nothing_is_read_beyond_the_limit(base, monkeypatch):
    monkeypatch.setattr(tokens, "AT_ONCE", 5)
    texts = speech("abcdefgh", 30, 3)
    whole = tokens.tokenised(texts, base.tokenizer, "a")
    read = []
    rules = tokens._whole

    class Counted:
        def __init__(self, tokenizer):
            self._rules = rules(tokenizer)

        def to_str(self):
            return self._rules.to_str()

        def encode_batch(self, some, **options):
            read.extend(some)
            return self._rules.encode_batch(some, **options)

    monkeypatch.setattr(tokens, "_whole", Counted)
    assert torch.equal(tokens.tokenised(texts, base.tokenizer, "a", 20), whole[:20])
    assert len(read) == 5
    assert torch.equal(tokens.tokenised(texts, base.tokenizer, "a", 10**6), whole)  # kept by its limit, too
    assert torch.equal(tokens.tokenised(texts, base.tokenizer, "a"), whole)


def test_a_text_shorter_than_its_limit_is_named_once(base, capsys):
    lines = speech("abcdefgh", 60, 0)
    base.client("a", lines, context=CONTEXT, limit=900_000)
    assert re.search(r"client 'a' has [\d,]+ tokens to train on, not 900,000\n", capsys.readouterr().err)
    base.client("a", lines, context=CONTEXT, limit=900_000)
    assert "tokens to train on" not in capsys.readouterr().err
    assert len(base.client("a", lines, context=CONTEXT, limit=100, judge_limit=30).test.tokens) == 30


def test_a_damaged_cache_is_made_again(base, tmp_path):
    texts = speech("abcdefgh", 5, 3)
    made = tokens.tokenised(texts, base.tokenizer, "a")
    (kept,) = (tmp_path / "cache" / "cobo" / "tokens").iterdir()
    kept.write_bytes(b"torn")
    assert torch.equal(tokens.tokenised(texts, base.tokenizer, "a"), made)


def test_a_cache_that_cannot_be_written_to_ends_no_run(base, tmp_path, monkeypatch):
    texts = speech("abcdefgh", 5, 3)
    made = tokens.tokenised(texts, base.tokenizer, "a")
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert torch.equal(tokens.tokenised(texts, base.tokenizer, "a"), made)


def test_threads_may_make_the_same_tokens_at_once_and_a_full_disk_leaves_nothing(base, tmp_path, monkeypatch):
    texts, both, write = speech("abcdefgh", 5, 3), threading.Barrier(2, timeout=60), tokens.write_synced
    used = set()

    def together(path, content):
        used.add(path)
        both.wait()
        write(path, content)

    monkeypatch.setattr(tokens, "write_synced", together)
    with ThreadPoolExecutor(2) as pool:
        made = list(pool.map(lambda name: tokens.tokenised(texts, base.tokenizer, name), "ab"))
    assert torch.equal(*made)
    assert len(used) == 2

    def full(path, content):
        write(path, content[:10])
        raise OSError("No space left on device")

    monkeypatch.setattr(tokens, "write_synced", full)
    tokens.tokenised(texts[:3], base.tokenizer, "a")
    assert len(list((tmp_path / "cache" / "cobo" / "tokens").iterdir())) == 1


def test_documents_end_with_the_end_of_text_unless_they_go_on(base):
    end = base.tokenizer.eos_token_id
    made = tokens.tokenised(["ab bc\ncd", "de"], base.tokenizer, "a").tolist()
    assert made.count(end) == 2
    assert made[-1] == end
    assert end not in tokens.tokenised(["ab bc\n", "de\n"], base.tokenizer, "a").tolist()


def test_a_half_of_a_character_is_replaced_and_a_whole_one_is_kept(base, tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text(r'{"text": "bad \ud83d \udE00 good \ud83d\ude00"}')
    for texts in (text.documents(path).train, ["bad \ud83d \ude00 good \U0001f600"]):
        made = tokens.tokenised(texts, base.tokenizer, "a")[:-1]  # without the end of text
        assert base.tokenizer.decode(made.tolist()) == "bad \ufffd \ufffd good \U0001f600"


def test_tokenizers_that_truncate_or_pad_do_not_do_it_to_texts(tiny_gpt, base, tmp_path):
    from cobo.language import LanguageModel

    other = tmp_path / "other"
    shutil.copytree(tiny_gpt, other)
    table = json.loads((other / "tokenizer.json").read_text())
    table["truncation"] = {"direction": "Right", "max_length": 3, "strategy": "LongestFirst", "stride": 0}
    table["padding"] = {"strategy": {"Fixed": 40}, "direction": "Right", "pad_to_multiple_of": None, "pad_id": 0,
                        "pad_type_id": 0, "pad_token": "<end>"}  # fmt: skip
    (other / "tokenizer.json").write_text(json.dumps(table))
    told = LanguageModel(other)
    texts = speech("abcdefgh", 9, 3)
    plain = tokens._encoded(texts, base.tokenizer, "a")
    assert torch.equal(tokens._encoded(texts, told.tokenizer, "a"), plain)
    assert told.reads == base.reads
    table = json.loads((other / "tokenizer_config.json").read_text())
    (other / "tokenizer_config.json").write_text(json.dumps(table | {"eos_token": "a"}))
    assert LanguageModel(other).reads != base.reads  # another end of text is another tokenizer


# Windows


def test_windows_to_train_on_begin_anywhere_and_follow_the_key():
    samples = Windows(torch.arange(100, dtype=torch.int32), 9)
    assert len(samples) == 11
    clients = [cobo.Client(n, samples, Windows.side_by_side(torch.arange(100), 9)) for n in ("a", "b")]
    federation = cobo.federation.Federation(clients, Bigram, task=_task(), batch_size=4)
    drawn = {}
    for round in (0, 1, 0):
        keys = cobo.draws.combine(federation.keys("batch"), round)
        fields = federation._train.draw(np.array([0, 1]), keys, 50)
        assert fields[0].shape == (2, 50, 10)
        assert (fields[0].diff(dim=2) == 1).all()  # whole windows
        assert int(fields[0].min()) >= 0
        assert int(fields[0].max()) <= 99
        drawn.setdefault(round, []).append(fields[0])
    assert torch.equal(*drawn[0])  # the same round draws the same
    assert not torch.equal(drawn[0][0], drawn[1][0])
    assert not torch.equal(drawn[0][0][0], drawn[0][0][1])  # each client its own
    torch.manual_seed(0)
    (many,) = Windows(torch.arange(15), 9).take(torch.zeros(6000, dtype=torch.long))
    assert (many[:, 0].bincount(minlength=6) - 1000).abs().max() < 150  # every start as often as any


@pytest.mark.parametrize("length", [2, 9, 10, 11, 19, 20])
def test_windows_to_judge_by_predict_every_token_but_the_first_once(length):
    samples = Windows.side_by_side(torch.arange(length), 9)
    (taken,) = samples.take(torch.arange(len(samples)))
    targets = taken[:, 1:]
    assert sorted(targets[targets != PADDING].tolist()) == list(range(1, length))


def test_parts_of_windows_predict_no_token_twice():
    client = cobo.Client("a", Windows(torch.arange(200), 9)).hold_out(0.3, seed=1)
    (train,), (held,) = (s.take(torch.arange(len(s))) for s in (client.train, client.test))
    assert not set(train[:, 1:].flatten().tolist()) & set(held[:, 1:].flatten().tolist())
    assert len(train) + len(held) == 22


@pytest.mark.parametrize("ask", ["own", "pair", "loss"])
def test_all_samples_of_a_text_are_every_window_once_whatever_the_round(ask):
    words = torch.randint(100, (75,), generator=torch.Generator().manual_seed(0))
    texts = {"a": words, "b": words.flip(0)}
    people = [cobo.Client(name, Windows(text, 9)) for name, text in texts.items()]
    whole = cobo.federation.Federation(people, Bigram, task=Task("next_token"), batch_size=None)
    X = whole.start
    if ask == "own":
        assert torch.equal(whole.gradients(X, round=1).rows, whole.gradients(X, round=2).rows)
        side_by_side = torch.stack([words[k * 9 : k * 9 + 10] for k in range(8)])
        module = whole.build(X)["a"]
        loss = nn.functional.cross_entropy(module(side_by_side[:, :-1]).flatten(0, 1), side_by_side[:, 1:].flatten())
        (expected,) = torch.autograd.grad(loss, list(module.parameters()))
        assert torch.allclose(whole.gradients(X).rows[0], expected.flatten(), atol=1e-7)
    elif ask == "pair":
        some = cobo.federation.Federation(people, Bigram, task=Task("next_token"), batch_size=3)
        one, other = (some.products(X, np.array([[0, 1]]), round, batches=None).inner for round in (1, 2))
        assert torch.equal(one, other)
    else:
        assert torch.equal(whole.losses(X[:1], round=1, whole=True), whole.losses(X[:1], round=2, whole=True))


def test_a_pair_gradient_of_many_batches_has_the_activations_of_one(monkeypatch):
    seen = []
    forward = Bigram.forward
    monkeypatch.setattr(Bigram, "forward", lambda self, t: (seen.append(len(t)), forward(self, t))[1])
    people = [cobo.Client(name, Windows(torch.arange(90), 9)) for name in "ab"]
    for executor in ("looped", "vectorised"):
        federation = cobo.federation.Federation(
            people, Bigram, task=Task("next_token"), batch_size=2, executor=executor
        )
        seen.clear()
        federation.products(federation.start, np.array([[0, 1]]), 0, batches=5)
        assert set(seen) == {2}
        assert federation.activations(5) == federation.activations(1)


def test_a_pass_has_no_more_tokens_than_fit_and_the_gradient_is_the_same(monkeypatch):
    from cobo.federation import federation as place

    seen = []
    forward = Bigram.forward
    monkeypatch.setattr(Bigram, "forward", lambda self, t: (seen.append(len(t)), forward(self, t))[1])
    people = [cobo.Client(name, Windows(torch.arange(90), 9)) for name in "ab"]

    def gradient():
        federation = cobo.federation.Federation(
            people, Bigram, task=Task("next_token"), batch_size=7, executor="looped"
        )
        return federation.gradients(federation.start).rows

    whole = gradient()
    assert sorted(seen) == [7, 7, 7, 7]  # a batch to see what the model knows, one to try it, two gradients
    seen.clear()
    monkeypatch.setattr(place, "TOKENS_AT_ONCE", 30)  # three windows of ten
    torch.testing.assert_close(gradient(), whole)
    assert sorted(seen) == [1, 1, 3, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("ask", ["pair", "loss"])
def test_passes_over_all_samples_weigh_by_their_tokens(ask, monkeypatch):
    monkeypatch.setattr("cobo.federation.batches.SAMPLES_AT_ONCE", 2)
    rows = torch.randint(100, (4, 6), generator=torch.Generator().manual_seed(0))
    rows[2:, 2:] = PADDING  # the second pass has two tokens to predict, the first ten
    people = [cobo.Client(name, rows) for name in "ab"]
    federation = cobo.federation.Federation(people, Bigram, task=Task("next_token"), batch_size=2)
    module = federation.build(federation.start)["a"]
    logits = module(rows[:, :-1].clamp(min=0)).flatten(0, 1)
    loss = nn.functional.cross_entropy(logits, rows[:, 1:].flatten(), ignore_index=PADDING)
    if ask == "loss":
        torch.testing.assert_close(federation.losses(federation.start[:1], whole=True)[0, 0], loss.detach())
    else:
        (expected,) = torch.autograd.grad(loss, list(module.parameters()))
        products = federation.products(federation.start, np.array([[0, 1]]), batches=None)
        torch.testing.assert_close(products.norm_i[0], expected.norm())


def test_too_little_text_gets_one_clear_line(base, capsys):
    with pytest.raises(DataError, match=r"client 'a': there are \d+ tokens to train on, too few for a window of 16"):
        base.client("a", ["a\n"] * 8, context=CONTEXT)
    with pytest.raises(DataError, match="client 'a': there are 0 tokens to judge by"):
        base.client("a", speech("abcdefgh", 9, 0), test=[], context=CONTEXT, limit=10**6)
    assert capsys.readouterr().err == ""
    with pytest.raises(ConfigError, match="context = 64 is more than the 32 tokens"):
        base.client("a", speech("abcdefgh", 9, 0), context=64)


class Bigram(nn.Module):
    """Logits of the next token from the last one alone."""

    def __init__(self, size: int = 100) -> None:
        super().__init__()
        self.table = nn.Embedding(size, size)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        return self.table(tokens)


def _task():
    return Task(objective=lambda module, batch: module(batch[:, :-1].clamp(min=0)).square().mean())


# Models and adapters


def parties(base, count: int = 60):
    languages = {"north": "abcdefgh", "south": "abcdefgh", "east": "mnopqrst"}
    return [base.client(n, speech(a, count, k), context=CONTEXT) for k, (n, a) in enumerate(languages.items())]


def trained(base, **options):
    settings = {
        "model": base.adapters(rank=2),
        "method": cobo.CoBo(domain="simplex", rho=20.0),
        "rounds": 6,
        "batch_size": 4,
        "lr": 1e-2,
    }
    return cobo.fit(parties(base), loss="next_token", optimizer="adamw", **{**settings, **options})


def frozen(module: nn.Module) -> dict[str, int]:
    return {p.data_ptr(): p.nbytes for p in module.parameters() if not p.requires_grad}


def test_the_base_exists_once_however_many_models_there_are(base):
    make = base.adapters()
    result = trained(base)
    places = frozen(base.base)
    for module in (make(), make(), *result.models.values()):
        assert {p.data_ptr() for p in module.parameters() if not p.requires_grad} == set(places)
    own = [sum(p.numel() for p in module.parameters() if p.requires_grad) for module in result.models.values()]
    assert set(own) == {sum(t.numel() for t in result.states["north"].values())}


def alive() -> tuple[int, int]:
    """How many modules there are, and the bytes of all tensors."""
    gc.collect()
    things = gc.get_objects()
    tensors = [t for t in things if issubclass(type(t), torch.Tensor)]
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in tensors}
    return sum(issubclass(type(thing), nn.Module) for thing in things), sum(storages.values())


def test_another_client_is_a_few_rows_of_adapters_and_no_module_while_a_run_is_saved_and_after(
    base, tmp_path, monkeypatch
):
    write = cobo.training.result.write_adapter

    def held(n):
        """What is alive when the last adapter is being written, and when the run is over, beside what was before."""
        text = Windows.side_by_side(torch.arange(100), CONTEXT, reads=base.reads)
        clients = [cobo.Client(f"c{k}", train=text, test=text) for k in range(n)]
        before, found = alive(), []

        def look(folder, name, module):
            write(folder, name, module)
            if name == clients[-1].name:
                found.append(alive())

        monkeypatch.setattr(cobo.training.result, "write_adapter", look)
        settings = {"method": cobo.CoBo(rate=0.01), "optimizer": "adamw", "rounds": 2, "batch_size": 2}
        result = cobo.fit(clients, model=base.adapters(rank=2), loss="next_token", out=tmp_path / str(n), **settings)
        assert len(result.models) == n
        found.append(alive())
        return np.array(found) - before

    row = sum(p.nbytes for p in base.adapters(rank=2)().parameters() if p.requires_grad)
    few, many = held(4), held(64)
    assert (many[:, 0] == few[:, 0]).all()
    assert (many[:, 1] - few[:, 1] < 6 * 60 * row).all()


def test_models_are_made_for_everyone_when_what_only_training_needs_is_gone(base, monkeypatch):
    left = []
    build = cobo.federation.Federation.build

    def spy(self, models):
        gc.collect()
        rows = [t for t in gc.get_objects() if type(t) in (torch.Tensor, nn.Parameter) and t.shape == models.shape]
        left.extend({t.data_ptr() for t in rows})
        return build(self, models)

    monkeypatch.setattr(cobo.federation.Federation, "build", spy)
    trained(base)
    assert len(left) == 1  # X, and not its gradient nor AdamW's two moments


def test_rows_are_the_adapters_of_attention_and_mlp_only(base):
    names = [name for name, p in base.adapters()().named_parameters() if p.requires_grad]
    assert all(".lora_A." in name or ".lora_B." in name for name in names)
    assert {name.partition("h.0.")[2].partition(".lora")[0] for name in names} == {
        "attn.c_attn", "attn.c_proj", "mlp.c_fc", "mlp.c_proj",
    }  # fmt: skip


def test_the_perplexity_of_a_run_is_that_of_transformers_and_peft_on_the_whole_test_part(base, tiny_gpt, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM, AutoTokenizer

    said = trained(base, out=tmp_path / "run").history[-1]
    tokenizer, found = AutoTokenizer.from_pretrained(tiny_gpt), []
    for k, (name, alphabet) in enumerate({"north": "abcdefgh", "south": "abcdefgh", "east": "mnopqrst"}.items()):
        plain = AutoModelForCausalLM.from_pretrained(tiny_gpt)
        model = PeftModel.from_pretrained(plain, tmp_path / "run" / "adapters" / name).eval()
        lines = speech(alphabet, 60, k)[-6:]  # a tenth
        ids = torch.tensor([i for line in lines for i in tokenizer(line).input_ids])
        windows = [ids[None, start : start + CONTEXT + 1] for start in range(0, len(ids) - 1, CONTEXT)]
        losses = [(w.shape[1] - 1) * model(w, labels=w).loss.item() for w in windows]
        found.append(math.exp(sum(losses) / (len(ids) - 1)))
    assert said["client_perplexity"] == pytest.approx(found, rel=1e-5)
    assert said["perplexity"] == pytest.approx(np.mean(found), rel=1e-5)


def test_all_methods_train_on_the_same_windows(base, monkeypatch):
    """Gradients of pairs, and Ditto's of the shared model, come on top."""
    from cobo.federation.batches import Batches

    draw, ask, seen, asking = Batches.draw, cobo.federation.Federation._ask, set(), []

    def drawn(self, clients, keys, size):
        fields = draw(self, clients, keys, size)
        if not asking:
            seen.update((int(c), str(windows.tolist())) for c, windows in zip(clients, fields[0], strict=True))
        return fields

    def pair(self, *parts):
        asking.append(1)
        try:
            return ask(self, *parts)
        finally:
            asking.clear()

    monkeypatch.setattr(Batches, "draw", drawn)
    monkeypatch.setattr(cobo.federation.Federation, "_ask", pair)
    found = []
    for method in ("local", "fedavg", "finetune", "ditto", "cobo"):
        seen.clear()
        trained(base, method=load_experiment("language", EXPERIMENTS).method(method), rounds=4)
        found.append(set(seen))
    assert len(found[0]) == 3 * 4  # a batch for each client and round
    assert all(windows == found[0] for windows in found)


def test_every_client_gets_an_adapter_that_peft_loads(base, tiny_gpt, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    result = trained(base, out=tmp_path / "run")
    tokens = torch.randint(300, (2, CONTEXT))
    for name in result.names:
        fresh = AutoModelForCausalLM.from_pretrained(tiny_gpt)
        loaded = PeftModel.from_pretrained(fresh, tmp_path / "run" / "adapters" / name).eval()
        assert torch.equal(loaded(tokens).logits, result.models[name](tokens).logits)
    config = json.loads((tmp_path / "run" / "adapters" / "north" / "adapter_config.json").read_text())
    assert (config["r"], config["base_model_name_or_path"]) == (2, str(tiny_gpt))
    assert not (tmp_path / "run" / "adapters" / "north" / "README.md").exists()  # it names paths
    assert not (tmp_path / "run" / "shared.safetensors").exists()  # the base is not ours to give


@pytest.mark.slow
def test_a_client_can_have_its_adapter_merged_into_the_base(base, tmp_path):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    result = trained(base, out=tmp_path / "run", lr=0.04, rounds=12)
    code, out, err = run("merge", str(tmp_path / "run" / "adapters" / "north"), str(tmp_path / "merged"))
    assert (code, out) == (0, f"written to {tmp_path / 'merged'}\n"), err
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    tokens = torch.randint(300, (2, CONTEXT))
    assert torch.allclose(merged(tokens).logits, result.models["north"](tokens).logits, atol=1e-5)
    assert not torch.allclose(merged(tokens).logits, base.base.eval()(tokens).logits, atol=1e-3)
    assert AutoTokenizer.from_pretrained(tmp_path / "merged")("ab bc").input_ids == base.tokenizer("ab bc").input_ids
    code, _, err = run("merge", str(tmp_path / "run" / "adapters" / "north"), str(tmp_path / "merged"))
    assert (code, err) == (2, f"cobo: {tmp_path / 'merged'} is already there; choose another folder to write to\n")
    code, _, err = run("merge", str(tmp_path / "run"), str(tmp_path / "other"))
    assert code == 2
    assert "holds no adapter; give a folder such as" in err


@pytest.fixture(scope="session")
def tiny_gguf(tiny_gpt, tmp_path_factory) -> Path:
    """A quantised Llama of random numbers in one file, with the tokenizer inside."""
    gguf = pytest.importorskip("gguf")
    table = json.loads((tiny_gpt / "tokenizer.json").read_text())["model"]
    vocabulary = sorted(table["vocab"], key=table["vocab"].get)
    width, inner, heads = 32, 64, 2
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    file = gguf.GGUFWriter(path, "llama")
    for add, value in (
        ("name", "tiny"), ("context_length", 64), ("embedding_length", width), ("block_count", 1),
        ("feed_forward_length", inner), ("head_count", heads), ("head_count_kv", heads), ("layer_norm_rms_eps", 1e-5),
        ("rope_freq_base", 10000.0), ("rope_dimension_count", width // heads), ("vocab_size", len(vocabulary)),
        ("tokenizer_model", "gpt2"), ("tokenizer_pre", "gpt-2"), ("token_list", vocabulary),
        ("token_types", [3 if token == "<end>" else 1 for token in vocabulary]),
        ("token_merges", [" ".join(merge) for merge in table["merges"]]), ("bos_token_id", 0), ("eos_token_id", 0),
    ):  # fmt: skip
        getattr(file, f"add_{add}")(value)
    chance = np.random.default_rng(0)

    def numbers(*shape: int) -> np.ndarray:
        return (0.3 * chance.standard_normal(shape)).astype(np.float32)

    kind = gguf.GGMLQuantizationType.Q8_0
    file.add_tensor("token_embd.weight", numbers(len(vocabulary), width))
    for name in ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"):
        file.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    square = (width, width)
    shapes = {"attn_q": square, "attn_k": square, "attn_v": square, "attn_output": square,
              "ffn_gate": (inner, width), "ffn_up": (inner, width), "ffn_down": (width, inner)}  # fmt: skip
    for name, shape in shapes.items():
        file.add_tensor(f"blk.0.{name}.weight", gguf.quants.quantize(numbers(*shape), kind), raw_dtype=kind)
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
    return path


def test_models_in_one_file_are_adapted_and_merged(tiny_gguf, tmp_path):
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    from cobo.language import LanguageModel, merge

    base = LanguageModel(tiny_gguf)
    texts = speech("abcdefgh", 9, 0)
    assert base.tokenizer.decode(tokens.tokenised(texts, base.tokenizer, "a").tolist()) == "".join(texts)
    result = trained(base, out=tmp_path / "run", lr=0.04, rounds=12)
    ids = torch.randint(250, (2, CONTEXT))
    plain = AutoModelForCausalLM.from_pretrained(tiny_gguf.parent, gguf_file=tiny_gguf.name, dtype=torch.float32).eval()
    before = plain(ids).logits
    loaded = PeftModel.from_pretrained(plain, tmp_path / "run" / "adapters" / "north").eval()
    assert torch.equal(loaded(ids).logits, result.models["north"](ids).logits)
    assert not torch.allclose(before, loaded(ids).logits, atol=1e-3)
    merge(tmp_path / "run" / "adapters" / "north", tmp_path / "merged")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged").eval()
    assert torch.allclose(merged(ids).logits, loaded(ids).logits, atol=1e-4)
    assert merged.config.use_cache


@pytest.mark.parametrize("how", ["torn", "lacking", "too much", "nonsense config"])
@pytest.mark.filterwarnings("ignore:Found missing adapter keys")
def test_a_torn_adapter_gets_one_clear_line(base, tmp_path, how):
    from safetensors.torch import load_file, save_file

    from cobo.language import merge

    base.adapters(rank=2)().save_pretrained(tmp_path / "north")
    path = tmp_path / "north" / "adapter_model.safetensors"
    held = load_file(path)
    if how == "torn":
        path.write_bytes(path.read_bytes()[:-50])
    elif how == "lacking":
        save_file(dict(list(held.items())[:2]), path)
    elif how == "too much":  # as of a base with more layers
        save_file(held | {k.replace("h.0.", "h.1."): v.clone() for k, v in held.items()}, path)
    else:
        config = path.with_name("adapter_config.json")
        config.write_text(json.dumps(json.loads(config.read_text()) | {"r": "x"}))
    with pytest.raises(ConfigError, match="does not fit") as caught:
        merge(path.parent, tmp_path / "merged")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "merged").exists()


@pytest.mark.parametrize("kind", ["file", "folder"])
def test_a_package_that_carries_a_model_is_found_and_not_run(kind, tiny_gguf, tiny_gpt, tmp_path, monkeypatch):
    from cobo.language import LanguageModel

    (tmp_path / "carries_tiny").mkdir()
    (tmp_path / "carries_tiny" / "__init__.py").write_text("raise RuntimeError")
    if kind == "file":
        shutil.copy(tiny_gguf, tmp_path / "carries_tiny")
    else:
        shutil.copytree(tiny_gpt, tmp_path / "carries_tiny" / "models" / "tiny")
    monkeypatch.syspath_prepend(tmp_path)
    base = LanguageModel("package:carries_tiny")
    assert base.adapters()().peft_config["default"].base_model_name_or_path == "package:carries_tiny"


def test_an_adapter_knows_its_base_from_any_folder(tiny_gpt, monkeypatch):
    from cobo.language import LanguageModel

    monkeypatch.chdir(tiny_gpt.parent)
    model = LanguageModel(tiny_gpt.name).adapters()()
    assert model.peft_config["default"].base_model_name_or_path == str(tiny_gpt)


def test_a_saved_result_is_loaded_with_the_model_it_adapts(base, tmp_path):
    result = trained(base, out=tmp_path / "run")
    loaded = cobo.load(tmp_path / "run", model=base.adapters(rank=2))
    tokens = torch.randint(300, (2, CONTEXT))
    for name in result.names:
        assert torch.equal(loaded.models[name](tokens).logits, result.models[name](tokens).logits)
    with pytest.raises(CheckpointError, match="the model given does not fit"):
        cobo.load(tmp_path / "run", model=base.adapters(rank=3))


def test_a_run_goes_on_as_if_it_had_not_been_stopped(base, tmp_path):
    whole = trained(base, rounds=6)

    def stop(event):
        if event["event"] == "checkpoint" and event["round"] == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(base, rounds=6, evaluate_every=3, out=tmp_path / "run", listeners=[stop])
    resumed = trained(base, rounds=6, evaluate_every=3, out=tmp_path / "run", resume=True)
    for name in whole.names:
        for key, value in whole.states[name].items():
            assert torch.equal(value, resumed.states[name][key])


def test_checkpointing_changes_memory_and_not_the_gradient(base):
    found = []
    for checkpointing in (False, True):
        model = base.adapters(dropout=0.2, checkpointing=checkpointing)
        federation = cobo.federation.Federation(parties(base), model, task=Task("next_token"), batch_size=4)
        found.append((federation.gradients(federation.start, round=2).rows, federation.activations()))
    assert torch.allclose(found[0][0], found[1][0], atol=1e-6)
    assert found[1][1] < found[0][1]


def test_in_bfloat16_the_base_is_half_as_large_and_adapters_are_float32(base, tiny_gpt, tmp_path):
    from safetensors.torch import load_file

    from cobo.language import LanguageModel

    half = LanguageModel(tiny_gpt, dtype="bfloat16")
    assert 2 * sum(frozen(half.base).values()) == sum(frozen(base.base).values())
    exact = trained(base)
    rough = trained(half, precision="bfloat16", out=tmp_path / "run")
    kept = load_file(tmp_path / "run" / "adapters" / "north" / "adapter_model.safetensors")
    assert {t.dtype for t in kept.values()} == {torch.float32}
    assert rough.history[-1]["loss"] == pytest.approx(exact.history[-1]["loss"], rel=0.01)
    assert rough.history[-1]["loss"] < rough.history[0]["loss"]
    assert rough.history[-1]["loss"] != exact.history[-1]["loss"]


def test_in_bfloat16_attention_is_by_plain_products_and_adapters_cast_nothing_twice(tiny_gpt, monkeypatch):
    from cobo import attention
    from cobo.language import LanguageModel

    looked, seen = [], []
    plain = attention.look_back
    monkeypatch.setattr(attention, "look_back", lambda *heads: (looked.append(1), plain(*heads))[1])
    half = LanguageModel(tiny_gpt, dtype="bfloat16")
    for name, part in half.base.named_parameters():
        if ".attn." in name:
            part.data *= 20  # so that what attention does is far more than rounding
    model = half.adapters()().eval()
    (reads,) = (part for name, part in model.named_modules() if name.endswith("c_attn.lora_A.default"))
    reads.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].dtype))
    ids = torch.randint(300, (2, CONTEXT), generator=torch.Generator().manual_seed(0))
    looked.clear()
    with torch.autocast("cpu", torch.bfloat16):
        fast = model(ids).logits
    assert (len(looked), seen) == (1, [torch.bfloat16])
    alone = model(ids).logits  # without autocast float32 adapters still fit
    assert seen[1:] == [torch.float32]
    model.base_model.model.set_attn_implementation("eager")  # that of transformers
    theirs = model(ids).logits
    assert len(looked) == 2
    for ours in (fast, alone):
        torch.testing.assert_close(ours.float(), theirs.float(), rtol=0.1, atol=0.02)


def test_wrong_targets_get_one_clear_line(base):
    with pytest.raises(ConfigError, match=r"has no linear layer 'q_proj'; it has c_attn, c_proj, c_fc"):
        base.adapters(targets=("c_attn", "q_proj"))()
    with pytest.raises(ConfigError, match="'lm_head' shares its weights with the embedding"):
        base.adapters(targets=("c_attn", "lm_head"))()
    with pytest.raises(ConfigError, match="has no linear layer 'q_proj'"):
        base.adapters(targets="q_proj")()
    with pytest.raises(ConfigError, match="targets names no layer"):
        base.adapters(targets=())


def test_one_target_needs_no_list(base, tiny_gpt):
    assert base.adapters(targets="c_attn")().peft_config["default"].target_modules == {"c_attn"}
    assert small(tiny_gpt, "targets=c_attn").targets == "c_attn"


@pytest.mark.parametrize("settings", [{"rank": 0}, {"alpha": 0}, {"dropout": 1.5}])
def test_bad_adapters_get_one_clear_line(base, settings):
    with pytest.raises(ConfigError, match=r"should be at least 1, at least 1 and in \[0, 1\)"):
        base.adapters(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"test": 0.0}, "test = 0.0 should be a share"),
        ({"validation": 1.5}, "validation = 1.5 should be a share"),
        ({"limit": -5}, "limit = -5 should be 1 or more"),
        ({"judge_limit": 0}, "judge_limit = 0 should be 1 or more"),
        ({"context": 0}, "context = 0 should be 1 or more"),
        ({"context": 16.5}, "context = 16.5 should be 1 or more whole tokens"),
    ],
)
def test_bad_settings_of_a_client_get_one_clear_line(base, settings, words):
    with pytest.raises(ConfigError, match=words):
        base.client("a", speech("abcdefgh", 60, 0), **{"context": CONTEXT, **settings})


@pytest.mark.parametrize(
    ("source", "words"),
    [
        *((source, "its text should be a file, a data set, or a list of strings") for source in ([b"bytes"], None, 5)),
        ("x" * 5000, "'x*'...: File name too long; text itself goes into a list of strings"),
        ("", "its text is an empty string; it should be a text file"),
    ],
)
def test_what_is_no_text_gets_one_clear_line(base, source, words):
    with pytest.raises(DataError, match=f"client 'a': {words}"):
        base.client("a", source, context=CONTEXT)


def test_text_of_another_tokenizer_gets_one_clear_line(base, tmp_path, tiny_gpt):
    from cobo.language import LanguageModel

    other = tmp_path / "other"
    shutil.copytree(tiny_gpt, other)
    table = json.loads((other / "tokenizer.json").read_text())
    table["model"]["merges"] = table["model"]["merges"][:5]
    (other / "tokenizer.json").write_text(json.dumps(table))
    stranger = LanguageModel(other)
    with pytest.raises(DataError, match="but the model reads tokens of tokenizer"):
        cobo.fit(parties(stranger), model=base.adapters(), loss="next_token", rounds=1)
    mixed = [*parties(base)[:2], stranger.client("west", speech("mnopqrst", 60, 3), context=CONTEXT)]
    with pytest.raises(DataError, match=r"client 'west': train samples look like tokens of .* make all by one"):
        cobo.fit(mixed, model=base.adapters(), loss="next_token", rounds=1)


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("nobody/nothing", "cannot be loaded: there is no such folder here, and the hub cannot be reached"),
        ("./nothing", "'./nothing' is no folder that is there, nor NAME or OWNER/NAME on the hub"),
        ("~/models/gpt2/nothing", "is no folder that is there"),
        ("missing.gguf", "is no file that is there"),
        ("", "has no name; it should be a name on the hub"),
        (os.path.dirname(__file__), r"is a folder without a model \(config.json\)"),
        ("package:nothing_of_the_kind", "no package of that name is installed"),
        ("package:__main__", "no package of that name is installed"),
        ("package:json", "that package has 0 models"),
        ("package:os.path", "no package of that name is installed"),
    ],
)
def test_models_that_cannot_be_had_get_one_clear_line(source, words):
    from cobo.language import LanguageModel

    with pytest.raises(ConfigError, match=words) as caught:
        LanguageModel(source)
    assert "\n" not in str(caught.value)


def test_a_hub_that_cannot_be_reached_is_asked_once():
    """Nobody listens at its address; the packages of Hugging Face by themselves try for a minute."""
    code = (
        "import cobo.language\n"
        "try:\n    cobo.language.LanguageModel('nothing')\n"
        "except cobo.errors.ConfigError as error:\n    print(error)"
    )
    address = {"HF_HUB_OFFLINE": "0", "HF_ENDPOINT": "http://127.0.0.1:9"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env={**os.environ, **address})
    assert done.stdout.endswith("there is no such folder here, and the hub cannot be reached\n")
    assert "Retrying" not in done.stderr


BAD_VALUES = {"no heads": {"n_head": 0}, "words for numbers": {"n_embd": "x"}, "list for a name": {"model_type": ["a"]}}
DAMAGES = ["torn", "other shape", "lacking", "code", "torn tokenizer", "list for a config", *BAD_VALUES]


def damaged(tiny_gpt, folder: Path, how: str) -> Path:
    from safetensors.torch import load_file, save_file

    shutil.copytree(tiny_gpt, folder)
    path = folder / "model.safetensors"
    if how == "torn":
        path.write_bytes(path.read_bytes()[:-100])
    elif how == "other shape":
        save_file({k: v[:-1] if k.endswith("wte.weight") else v for k, v in load_file(path).items()}, path)
    elif how == "lacking":
        save_file({k: v for k, v in load_file(path).items() if not k.endswith("ln_f.weight")}, path)
    elif how == "torn tokenizer":
        path = folder / "tokenizer.json"
        path.write_text(path.read_text()[:-100])
    elif how == "list for a config":
        (folder / "config.json").write_text("[]")
    elif how in BAD_VALUES:
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.json").write_text(json.dumps(config | BAD_VALUES[how]))
    else:  # code of its own, which would be run if somebody said so
        config = json.loads((folder / "config.json").read_text())
        config |= {"model_type": "mine", "auto_map": {"AutoConfig": "conf.Conf", "AutoModelForCausalLM": "conf.Model"}}
        (folder / "config.json").write_text(json.dumps(config))
        (folder / "conf.py").write_text(f"open({str(folder / 'ran')!r}, 'w')")
    return folder


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_models_get_one_clear_line_and_their_code_never_runs(tiny_gpt, tmp_path, how, monkeypatch):
    from cobo.language import LanguageModel

    monkeypatch.setattr("sys.stdin", io.StringIO("y\ny\n"))
    folder = damaged(tiny_gpt, tmp_path / "model", how)
    with pytest.raises(ConfigError, match=f"{folder}' cannot be loaded: ") as caught:
        LanguageModel(folder)
    assert "\n" not in str(caught.value)
    assert not (folder / "ran").exists()


@pytest.mark.parametrize("left", [3, 10, 100, 3000, -50])
def test_a_model_in_one_file_that_is_cut_gets_one_clear_line(tiny_gguf, tmp_path, left):
    from cobo.language import LanguageModel

    path = tmp_path / "cut.gguf"
    path.write_bytes(tiny_gguf.read_bytes()[:left])
    with pytest.raises(ConfigError, match=f"{path}' cannot be loaded: ") as caught:
        LanguageModel(path)
    assert "\n" not in str(caught.value)


def test_a_model_without_its_tokenizer_is_refused(tiny_gpt, tmp_path):
    from cobo.language import LanguageModel

    folder = shutil.copytree(tiny_gpt, tmp_path / "model")
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(ConfigError, match="its tokenizer gives all words the same tokens; put its own"):
        LanguageModel(folder)


def test_a_tokenizer_that_knows_few_words_and_no_capitals_is_taken(tiny_gpt, tmp_path):
    import tokenizers

    from cobo.language import LanguageModel

    folder = shutil.copytree(tiny_gpt, tmp_path / "model")
    few = tokenizers.Tokenizer(tokenizers.models.WordLevel({"<unk>": 0, "<end>": 1, "water": 2}, unk_token="<unk>"))
    few.normalizer = tokenizers.normalizers.Lowercase()
    few.save(str(folder / "tokenizer.json"))
    assert LanguageModel(folder).tokenizer.backend_tokenizer.encode("Water").ids == [2]


def test_a_text_with_words_that_a_tokenizer_has_no_token_for_gets_one_clear_line(tiny_gpt, tmp_path):
    import tokenizers

    from cobo.language import LanguageModel

    folder = shutil.copytree(tiny_gpt, tmp_path / "model")
    few = tokenizers.Tokenizer(tokenizers.models.WordLevel({"water": 0, "<end>": 1}))
    few.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    few.save(str(folder / "tokenizer.json"))
    base = LanguageModel(folder)
    assert base.client("sea", ["water water water"] * 9, context=2).train.tokens[:3].tolist() == [0, 0, 0]
    with pytest.raises(DataError, match=r"client 'fire': the model's tokenizer cannot read its text: .*UNK"):
        base.client("fire", ["water and fire"] * 9, context=2)


@pytest.mark.parametrize("named", ["_attn_implementation", "attn_implementation", "_experts_implementation"])
def test_code_that_a_config_names_is_not_fetched(tiny_gpt, tmp_path, named, monkeypatch):
    from transformers import modeling_utils

    from cobo.language import LanguageModel

    asked = []
    monkeypatch.setattr(modeling_utils, "lazy_import_flash_attention", lambda *name, **_: asked.append(name))
    folder = shutil.copytree(tiny_gpt, tmp_path / "model")
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {named: "somebody/kernel"}))
    assert LanguageModel(folder).base.config._attn_implementation == "cobo"  # our own, in place of torch's
    assert asked == []


def test_a_model_is_looked_at_wherever_it_is_made_and_named_if_its_numbers_are_none(tiny_gpt, tmp_path):
    import transformers

    from cobo.language import LanguageModel

    with torch.no_grad():
        LanguageModel(tiny_gpt)
    folder = shutil.copytree(tiny_gpt, tmp_path / "nan")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder)
    model.get_input_embeddings().weight.data[:] = torch.nan
    model.save_pretrained(folder)
    with pytest.raises(ConfigError, match="cannot be trained as a language model: its logits are not finite"):
        LanguageModel(folder)


def test_who_is_judged_by_few_tokens_is_named(base, capsys):
    lines = [f"a line of text with the number {k}\n" for k in range(40)]
    base.client("few", lines, context=8, test=0.1)
    assert "client 'few' is judged by" in capsys.readouterr().err
    base.client("many", lines * 20, context=8, test=0.5)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_models_that_look_at_later_tokens_are_refused(tiny_gpt, tmp_path, dtype):
    import transformers

    from cobo.language import LanguageModel

    config = transformers.BertConfig(
        vocab_size=300, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16
    )
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(tiny_gpt / name, tmp_path)
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match="is no causal language model: it looks at later tokens"):
        LanguageModel(tmp_path, dtype=dtype)
    config.is_decoder = True  # the same numbers, and no token looks ahead
    config.save_pretrained(tmp_path)
    LanguageModel(tmp_path, dtype=dtype)


def test_tokens_that_the_model_does_not_know_get_one_clear_line(base):
    clients = parties(base)
    clients[1].train.tokens[5] = 300
    with pytest.raises(DataError, match=r"client 'south' has tokens from \d+ to 300, but the model knows 0 to 299"):
        cobo.fit(clients, model=base.adapters(), loss="next_token", rounds=1)


def test_ifca_refuses_adapters(base):
    with pytest.raises(ConfigError, match="adapters all start as their base"):
        trained(base, method=cobo.IFCA(k=2))


def test_a_run_is_not_gone_on_with_on_another_base(base, tiny_gpt, tmp_path):
    from cobo.language import LanguageModel

    def stop(event):
        if event["event"] == "checkpoint":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        trained(base, rounds=6, evaluate_every=3, out=tmp_path / "run", listeners=[stop])
    other = LanguageModel(tiny_gpt)
    other.base.get_input_embeddings().weight.data[0] += 1
    for model in (other.adapters(rank=2), base.adapters(rank=2, alpha=64)):
        with pytest.raises(CheckpointError, match="was run with what is not trained ="):
            trained(base, rounds=6, evaluate_every=3, out=tmp_path / "run", resume=True, model=model)
    dropping = base.adapters(rank=2, dropout=0.3)
    with pytest.raises(CheckpointError, match=r"was run with dropout of adapter default = 0\.0, not 0\.3"):
        trained(base, rounds=6, evaluate_every=3, out=tmp_path / "run", resume=True, model=dropping)


def test_a_result_is_not_loaded_with_another_base(base, tiny_gpt, tmp_path):
    from cobo.language import LanguageModel

    trained(base, out=tmp_path / "run")
    cobo.load(tmp_path / "run", model=base.adapters(rank=2)).save(tmp_path / "again")
    other = LanguageModel(tiny_gpt)
    other.base.get_input_embeddings().weight.data[0] += 1
    for model in (other.adapters(rank=2), base.adapters(rank=2, alpha=64)):
        for folder in (tmp_path / "run", tmp_path / "again"):
            with pytest.raises(CheckpointError, match="its base, dtype or alpha is another"):
                cobo.load(folder, model=model)
    for model in (base.adapters(rank=2, dropout=0.3), base.adapters(rank=2)().requires_grad_(False)):
        cobo.load(tmp_path / "run", model=model)  # what they say is the same
    path = tmp_path / "run" / "result.json"  # as it was written before there was a checksum
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "base"}))
    cobo.load(tmp_path / "run", model=other.adapters(rank=2))


def test_a_loaded_result_has_one_base(base, tmp_path):
    trained(base, out=tmp_path / "run")
    loaded = cobo.load(tmp_path / "run", model=base.adapters(rank=2)())
    places = [tuple(sorted(frozen(module))) for module in loaded.models.values()]
    assert len(set(places)) == 1


def test_without_the_extra_there_is_one_clear_line(tmp_path):
    """In a process of its own that cannot import transformers or peft."""
    code = (
        "import sys; sys.modules['transformers'] = sys.modules['peft'] = None\n"
        "import cobo.language\n"
        "try:\n    cobo.language.LanguageModel('gpt2')\n"
        "except cobo.errors.ConfigError as error:\n    print(error)"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert said == "language models need more packages; in cobo's clone: pip install '.[llm]'\n"


def test_without_peft_alone_there_is_one_clear_line(base, tmp_path, monkeypatch):
    from cobo.language import merge

    base.adapters()().save_pretrained(tmp_path / "north")
    monkeypatch.setitem(sys.modules, "peft", None)
    for ask in (base.adapters, lambda: merge(tmp_path / "north", tmp_path / "merged")):
        with pytest.raises(ConfigError, match=r"adapters need more packages; .* pip install '\.\[llm\]'"):
            ask()


def test_without_gguf_alone_there_is_one_clear_line(tiny_gguf, monkeypatch):
    from cobo.language import LanguageModel

    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(ConfigError, match=r"language models need more packages; .* pip install '\.\[llm\]'"):
        LanguageModel(tiny_gguf)


def test_importing_cobo_imports_nothing_of_hugging_face():
    names = "transformers", "peft", "huggingface_hub"
    code = f"import sys, cobo, cobo.cli; print([m for m in {names} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_pair_gradients_take_both_clients_data(base):
    """A pair's answer changes with the data of either of them, and only of them."""

    def asked(texts: dict[str, int]) -> torch.Tensor:
        clients = [base.client(n, speech("abcdefgh", 60, seed), context=CONTEXT) for n, seed in texts.items()]
        federation = cobo.federation.Federation(clients, base.adapters(), task=Task("next_token"), batch_size=4)
        X = federation.start + 0.1 * torch.randn(federation.start.shape, generator=torch.Generator().manual_seed(0))
        products = federation.products(X, np.array([[0, 1]]), 5)
        return torch.stack([products.inner, products.norm_i, products.norm_j])

    first = asked({"a": 0, "b": 1, "c": 2})
    other_i, other_j, other_k = (
        asked({"a": 7, "b": 1, "c": 2}),
        asked({"a": 0, "b": 7, "c": 2}),
        asked({"a": 0, "b": 1, "c": 7}),
    )
    assert torch.equal(first, other_k)
    assert not torch.equal(first[1], other_i[1])
    assert torch.equal(first[2], other_i[2])
    assert not torch.equal(first[2], other_j[2])
    assert torch.equal(first[1], other_j[1])
    assert first[0] != other_i[0]
    assert first[0] != other_j[0]


# The experiment


@pytest.fixture
def texts(tmp_path, monkeypatch) -> Path:
    """A folder that COBO_DATA names, with four languages, the first two of which are alike."""
    folder = tmp_path / "data" / "wikipedia"
    folder.mkdir(parents=True)
    for k, (code, alphabet) in enumerate(
        {"ca": "abcdefgh", "es": "abcdefgh", "de": "mnopqrst", "nl": "mnopqrst"}.items()
    ):
        (folder / f"{code}.txt").write_text("".join(speech(alphabet, 80, k)))
    monkeypatch.setenv("COBO_DATA", str(tmp_path / "data"))
    return folder


def small(tiny_gpt, *changes: str):
    settings = [f"model={tiny_gpt}", f"context={CONTEXT}", "batch_size=4", "accumulate=1", "rounds=4", "lr=0.01"]
    return load_experiment("language", EXPERIMENTS, [*settings, "evaluate_every=2", "dropout=0.0", *changes])


def test_the_preset_has_the_papers_numbers():
    experiment = load_experiment("language", EXPERIMENTS)
    assert (experiment.model, experiment.tokens, experiment.context) == ("gpt2", 800_000, 512)
    assert (experiment.batch_size, experiment.accumulate, experiment.rounds) == (50, 4, 500)
    assert (experiment.lr, experiment.dropout, experiment.rank, experiment.optimizer) == (0.002, 0.1, 4, "adamw")
    assert experiment.method("ditto").lam == 0.1
    assert experiment.method("cobo").domain == "simplex"
    assert experiment.judge_tokens == 80_000  # ours: however large a corpus is


def test_the_small_preset_has_a_model_that_cobo_brings_and_weights_that_sum_to_one():
    from cobo.language import LanguageModel

    experiment = load_experiment("language-small", EXPERIMENTS)
    assert experiment.method("cobo").domain == "simplex"
    base = LanguageModel(experiment.model)
    assert sum(p.numel() for p in base.base.parameters()) == 2_615_424
    english = torch.tensor([base.tokenizer.encode("The function returns an array of the same shape as the input.")])
    with torch.no_grad():
        known, none = (base.base(tokens, labels=tokens).loss.item() for tokens in (english, english.flip(1)))
    assert known < 4.5 < none  # it was trained: English is likely, and the same words backwards are not


@pytest.mark.parametrize("preset", ["language", "language-small"])
def test_a_search_holds_the_presets_own_rho_and_every_rho_it_tries_is_stable(preset):
    experiment = load_experiment(preset, EXPERIMENTS)
    method, ranges = experiment.method("cobo"), experiment.search["cobo"]
    assert ranges["rho"].low < method.rho < ranges["rho"].high
    largest_lr = ranges["lr"].high if "lr" in ranges else 10 * experiment.lr
    assert method.mixing == "implicit" or ranges["rho"].high * largest_lr < 1


def test_gpt_2_has_the_papers_share_of_trained_parameters(base):
    """0.47 % of 124 million: adapters on the real layers, which have no numbers here."""
    transformers = pytest.importorskip("transformers")
    like = copy.copy(base)
    with torch.device("meta"):
        like.base = transformers.GPT2LMHeadModel(transformers.GPT2Config()).requires_grad_(False)
        whole = sum(p.numel() for p in like.base.parameters())
        adapted = like.adapters(rank=4)()
    share = sum(p.numel() for p in adapted.parameters() if p.requires_grad) / whole
    assert round(100 * share, 2) == 0.47


@pytest.mark.parametrize("method", ["ifca", "fc", "oracle"])
def test_methods_of_groups_refuse_with_the_reason(method, tiny_gpt):
    with pytest.raises(
        ConfigError, match=f"{method} gives every client the model of one group, and languages are in no"
    ):
        small(tiny_gpt).method(method)


def test_what_is_left_out_has_its_own_reason(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["cobo", "compare", "language", "--set", "model=./nowhere"])
    with pytest.raises(SystemExit):
        cli.main()
    *left, _ = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in left] == ["ifca", "fc", "oracle"]
    assert all("languages are in no groups" in line for line in left)


def test_clients_never_train_on_what_judges_them(tiny_gpt, texts):
    experiment = small(tiny_gpt, "tokens=1000")
    plain, validated = experiment.build(0), experiment.build(0, validation=0.2)  # of which as much as tests is taken
    assert [c.name for c in plain.clients] == ["catalan", "spanish", "german", "dutch"]
    assert plain.loss == "next_token"
    for client, tuned in zip(plain.clients, validated.clients, strict=True):
        assert len(client.train.tokens) <= 1000
        assert not torch.equal(client.test.tokens[:50], tuned.test.tokens[:50])
        lines = (texts / f"{LANGUAGES[client.name]}.txt").read_text().splitlines(keepends=True)
        ids = [
            tokens.tokenised(part, pretrained(str(tiny_gpt), "float32").tokenizer, "")
            for part in (lines[:72], lines[72:])
        ]
        assert torch.equal(client.train.tokens, ids[0][:1000])
        assert torch.equal(client.test.tokens, ids[1])
        ids = [tokens.tokenised(part, pretrained(str(tiny_gpt), "float32").tokenizer, "")
               for part in text.divided(lines[:72], 0.1)]  # fmt: skip
        assert torch.equal(tuned.train.tokens, ids[0][:1000])
        assert torch.equal(tuned.test.tokens, ids[1])


def numbered(texts: Path) -> None:
    """Every line of a language begins with its own number, so that tokens say where they come from."""
    for path in texts.iterdir():
        lines = path.read_text().splitlines()
        path.write_text("".join(f"<{k}> {line}\n" for k, line in enumerate(lines)))


@pytest.mark.parametrize("share", ["0.03", "0.1", "0.15", "0.3"])
def test_a_search_never_sees_what_a_comparison_tests_by(tiny_gpt, texts, share):
    numbered(texts)
    settings = ("test_share=0.1", "tokens=100000")
    compared, searched = small(tiny_gpt, *settings), small(tiny_gpt, *settings, f"validation_share={share}")
    decode = pretrained(str(tiny_gpt), "float32").tokenizer.decode

    def lines(samples) -> set[str]:
        return set(re.findall(r"<\d+>", decode(samples.tokens.tolist())))

    for reported, tuned in zip(compared.build(0).clients, searched.build(0, validation=0.2).clients, strict=True):
        tested, judged, trained = lines(reported.test), lines(tuned.test), lines(tuned.train)
        assert len(tested) == 8  # a tenth of 80
        assert len(judged) == pytest.approx(72 * float(share), abs=1.5)
        assert not tested & judged
        assert not trained & (tested | judged)
        assert lines(reported.train) == trained | judged


@pytest.mark.parametrize(("share", "said"), [("validation_share=0.3", "30%"), ("test_share=0.125", "12.5%")])
def test_a_search_says_by_how_much_it_judged(tiny_gpt, texts, tmp_path, share, said):
    tune.tune(small(tiny_gpt, share, "rounds=1"), ["local"], 1, 1, tmp_path / "search", Silent())
    assert f"1 rounds, judged by {said} of the training samples" in (tmp_path / "search" / "tuned.toml").read_text()


def test_other_texts_than_the_four_languages(tiny_gpt, tmp_path, texts):
    (tmp_path / "a.txt").write_text("".join(speech("abcdefgh", 60, 0)))
    where = f'texts={{north="{tmp_path / "a.txt"}", south="{texts / "de.txt"}"}}'
    assert [c.name for c in small(tiny_gpt, where).build(0).clients] == ["north", "south"]


def test_the_settings_of_a_run_say_where_its_files_are_from_any_folder(tiny_gpt, tmp_path, monkeypatch):
    (tmp_path / "a.txt").write_text("".join(speech("abcdefgh", 60, 0)))
    shutil.copytree(tiny_gpt, tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    texts = 'texts={north="a.txt", south="hf:somebody/wiki", west="b.txt", east=""}'
    settings = small(tiny_gpt, texts, "model=./model").plain()
    assert settings["model"] == str(tmp_path / "model")
    given = {"north": str(tmp_path / "a.txt"), "south": "hf:somebody/wiki", "west": "b.txt", "east": ""}
    assert settings["texts"] == given
    assert small(tiny_gpt, "model=gpt2").plain()["model"] == "gpt2"  # a name on the hub


def test_the_experiment_hands_its_settings_on(tiny_gpt, texts):
    settings = ("rank=2", "alpha=6", "dropout=0.3", 'targets=["c_attn"]', "checkpointing=true", "judge_tokens=20")
    parts = small(tiny_gpt, *settings, "precision=bfloat16").build(0)
    model = parts.model()
    config = model.peft_config["default"]
    assert (config.r, config.lora_alpha, config.lora_dropout, config.target_modules) == (2, 6, 0.3, {"c_attn"})
    assert model.base_model.model.is_gradient_checkpointing
    assert {len(client.test.tokens) for client in parts.clients} == {20}
    assert {p.dtype for p in model.parameters() if not p.requires_grad} == {torch.bfloat16}


def test_while_runs_have_processes_of_their_own_the_first_one_holds_no_base(tiny_gpt, texts, tmp_path, monkeypatch):
    loaded, alive = [], []
    build = Language.build

    def spy(self, *given, **options):
        parts = build(self, *given, **options)
        loaded.append(weakref.ref(pretrained(self.model, self.precision).base.get_input_embeddings().weight))
        return parts

    def elsewhere(jobs, *given, **options):
        alive.extend(weight() for weight in loaded)
        return []

    monkeypatch.setattr(Language, "build", spy)
    monkeypatch.setattr(runner, "run_side_by_side", elsewhere)
    experiment = small(tiny_gpt, "precision=float32")
    runner.compare(experiment, ["local", "cobo"], [0], tmp_path / "run", resume=False, watch=Silent(), at_once=2)
    assert alive == [None]


def test_a_text_of_one_line_is_too_little(tiny_gpt, tmp_path, monkeypatch, capsys):
    (tmp_path / "a.txt").write_text("one line\n")
    settings = (f"model={tiny_gpt}", f"context={CONTEXT}", f'texts={{a="{tmp_path / "a.txt"}"}}')
    changes = [part for setting in settings for part in ("--set", setting)]
    monkeypatch.setattr(sys, "argv", ["cobo", "run", "language-small", *changes, "--out", str(tmp_path / "run")])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 2
    line = "cobo: client 'a': only one document, or line, is left to divide, and it is not cut; give more text\n"
    assert capsys.readouterr().err == line


def test_a_missing_corpus_says_what_to_do(tiny_gpt):
    with pytest.raises(DataError, match=r"wikipedia: there is no ca.txt, looked for in .*; put ca.txt, es.txt"):
        small(tiny_gpt).build(0)


def test_help_pages_become_documents(tmp_path):
    long = "a paragraph that is long enough to be kept, in {}"
    for code in ("ca", "es"):
        folder = tmp_path / code / "text" / "swriter"
        folder.mkdir(parents=True)
        page = f"""<p class="paragraph">{long.format(code)} <b>bold</b><span hidden="true">no <i>way</i></span>!</p>
            <p class="howto">{long.format("menus")}</p><p class="paragraph">short</p>
            <p class="paragraph">{long.format("English, not translated")}</p>"""
        (folder / "a.html").write_text(page)
        (folder / "b.html").write_text(page + f'<p class="paragraph">{long.format("b, " + code)}</p>')
    assert sorted(libreoffice_help("ca", tmp_path)) == [long.format("b, ca"), f"{long.format('ca')} bold!"]
    with pytest.raises(DataError, match="install Debian's package libreoffice-help-de"):
        libreoffice_help("de", tmp_path)


def test_every_book_of_help_is_trained_on_and_tested_by_and_no_page_is_on_both_sides(tmp_path):
    books = ("sbasic", "scalc", "simpress", "swriter")
    for code in ("ca", "es"):
        for book in books:
            for page in range(20):
                folder = tmp_path / code / "text" / book
                folder.mkdir(parents=True, exist_ok=True)
                paragraph = f"{code} {book}/{page} is a paragraph that is long enough to be kept"
                (folder / f"{page}.html").write_text(f'<p class="paragraph">{paragraph}</p>')
    pages = {code: [page.split()[1] for page in libreoffice_help(code, tmp_path)] for code in ("ca", "es")}
    assert pages["ca"] == pages["es"]
    for part in text.divided(pages["ca"], 0.25):
        assert {page.split("/")[0] for page in part} == set(books)


@pytest.mark.slow
def test_a_comparison_from_the_command_line(tiny_gpt, texts, tmp_path):
    settings = [f"model={tiny_gpt}", f"context={CONTEXT}", "batch_size=4", "evaluate_every=2", "lr=0.01", "cobo.rho=10"]
    changes = [part for setting in settings for part in ("--set", setting)]
    code, _, err = run("compare", "language", *changes, "--rounds", "4", "--out", str(tmp_path / "run"))
    assert code == 0, err
    results = json.loads((tmp_path / "run" / "results.json").read_text())
    assert list(results["methods"]) == ["local", "fedavg", "finetune", "ditto", "cobo"]
    assert all(m["perplexity"]["mean"] > 1 and m["accuracy"] is None for m in results["methods"].values())
    assert (tmp_path / "run" / "figures" / "domain-weights.png").exists()
    assert (tmp_path / "run" / "ditto" / "seed-0" / "adapters" / "catalan" / "adapter_model.safetensors").exists()
    W = np.array(json.loads((tmp_path / "run" / "cobo" / "seed-0" / "result.json").read_text())["weights"])
    assert np.allclose(W.sum(1), 1, atol=1e-5)
    code, _, err = run("run", "language", "--method", "ifca", *changes, "--out", str(tmp_path / "other"))
    assert (code, len(err.splitlines())) == (2, 1)
