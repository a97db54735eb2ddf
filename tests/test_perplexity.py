"""Language models: the loss of the next token, perplexity by hand and in all that people see."""

import csv
import io
import json
import math
import sys
from itertools import pairwise
from pathlib import Path
from statistics import fmean, stdev
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F

import cobo
from cobo.cli import main
from cobo.compute.task import Task
from cobo.errors import ConfigError, DataError
from cobo.experiments import EXPERIMENTS, load_experiment
from cobo.experiments.experiment import Experiment, Parts
from cobo.federation import Federation, judge
from cobo.report import comparison, domain_weights, figures, summary, table
from cobo.training.progress import LiveProgress
from cobo.training.trackers import TensorBoard

VOCABULARY, LENGTH = 6, 8


def bigram(vocabulary: int = VOCABULARY) -> nn.Sequential:
    """The next token from the last."""
    return nn.Sequential(nn.Embedding(vocabulary, 8), nn.Linear(8, vocabulary))


def chain(seed: int) -> torch.Tensor:
    """How likely each token is after each other one."""
    weights = torch.rand(VOCABULARY, VOCABULARY, generator=torch.Generator().manual_seed(seed)) ** 8
    return weights / weights.sum(1, keepdim=True)


def text(chain: torch.Tensor, samples: int, seed: int) -> torch.Tensor:
    """Rows of tokens [samples, LENGTH + 1] that follow a chain."""
    generator = torch.Generator().manual_seed(seed)
    tokens = [torch.randint(0, VOCABULARY, (samples,), generator=generator)]
    for _ in range(LENGTH):
        tokens.append(torch.multinomial(chain[tokens[-1]], 1, generator=generator)[:, 0])
    return torch.stack(tokens, 1)


def people() -> list[cobo.Client]:
    """Three clients, of whom the first two speak the same."""
    return [
        cobo.Client(name, train=text(chain(which), 20, seed), test=text(chain(which), 30, 100 + seed))
        for seed, (name, which) in enumerate([("ca", 0), ("es", 0), ("de", 1)])
    ]


def small(**changes) -> cobo.Result:
    options = {"model": bigram, "loss": "next_token", "rounds": 20, "lr": 0.5, "batch_size": 4, "evaluate_every": 5}
    return cobo.fit(people(), **{**options, **changes})


def padded(samples: int = 7) -> torch.Tensor:
    """Rows of which ever more are padding: of the last, all but two tokens."""
    tokens = text(chain(3), samples, 5)
    for k in range(1, samples):
        tokens[k, LENGTH + 1 - k :] = -100
    return tokens


def by_hand(module: nn.Module, tokens: torch.Tensor) -> list[float]:
    """The losses of all tokens that are counted, one after the other."""
    losses = []
    with torch.no_grad():
        for row in tokens.tolist():
            for last, token in pairwise(row):
                if token != -100:
                    logits = module(torch.tensor([[max(last, 0)]]))[0, 0].double()
                    losses.append(float(logits.logsumexp(0) - logits[token]))
    return losses


# The loss


@pytest.mark.parametrize("at_once", [1, 20, 30, 2048])
def test_the_loss_is_the_mean_over_all_tokens_however_samples_are_parted(at_once, monkeypatch):
    monkeypatch.setattr(judge, "TOKENS_AT_ONCE", at_once)
    tokens = padded()
    federation = Federation(
        [cobo.Client(name, train=tokens, test=tokens) for name in "ab"], bigram, task=Task("next_token")
    )
    losses = by_hand(federation.build(federation.start)["a"], tokens)
    assert len(losses) == 8 + 7 + 6 + 5 + 4 + 3 + 2
    found = federation.evaluate(federation.start)[0]
    assert found == {
        "loss": pytest.approx(np.mean(losses), rel=1e-6),
        "perplexity": pytest.approx(math.exp(np.mean(losses)), rel=1e-6),
    }


def test_a_forward_pass_has_so_many_tokens_at_most(monkeypatch):
    seen = []

    class Watched(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = bigram()

        def forward(self, tokens):
            seen.append(tokens.shape)
            return self.inner(tokens)

    federation = Federation(people(), Watched, task=Task("next_token"), batch_size=4)
    monkeypatch.setattr(judge, "TOKENS_AT_ONCE", 65)
    seen.clear()
    federation.evaluate(federation.start, clients=[0])
    assert [samples for samples, _ in seen] == [6] * 5  # of at most 65 // 9
    federation.batch_size = 30
    assert federation.rehearse_evaluation() == 6


def test_gradients_are_those_of_torchs_cross_entropy_in_both_executors():
    tokens = padded()
    clients = [cobo.Client(name, train=tokens) for name in "ab"]
    module = bigram()
    outputs = module(tokens[:, :-1].clamp(min=0)).flatten(0, 1)
    loss = F.cross_entropy(outputs, tokens[:, 1:].flatten(), ignore_index=-100)
    gradients = torch.autograd.grad(loss, list(module.parameters()))
    expected = torch.cat([gradient.flatten() for gradient in gradients])
    for executor in ("vectorised", "looped"):
        federation = Federation(clients, module, task=Task("next_token"), batch_size=None, executor=executor)
        found = federation.gradients(federation.start)
        assert torch.allclose(found.rows[0], expected, atol=1e-7)
        assert float(found.losses[0]) == pytest.approx(loss.item(), rel=1e-6)


class WithLogits(nn.Module):
    """Answers as the models of Hugging Face do."""

    def __init__(self):
        super().__init__()
        self.inner = bigram()

    def forward(self, input_ids, attention_mask=None):
        return SimpleNamespace(logits=self.inner(input_ids), past_key_values=None)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int32, torch.int64])
def test_logits_may_be_the_output_or_an_attribute_of_it_and_tokens_of_any_integer_type(dtype):
    def run(model):
        clients = [cobo.Client(c.name, train=c.train.fields[0].to(dtype), test=c.test.fields[0]) for c in people()]
        return cobo.fit(clients, model=model, loss="next_token", rounds=5, lr=0.5, batch_size=4)

    assert run(WithLogits).history[-1]["client_loss"] == run(bigram).history[-1]["client_loss"]


def test_the_loss_is_float32_where_logits_are_bfloat16():
    torch.manual_seed(0)
    logits, tokens = 5 * torch.randn(4, 8, VOCABULARY), text(chain(0), 4, 0)

    class Fixed(nn.Module):
        def forward(self, inputs):
            return logits.bfloat16()

    loss = Task("next_token").loss(Fixed(), tokens)
    assert loss.dtype == torch.float32
    exact = F.cross_entropy(logits.bfloat16().double().flatten(0, 1), tokens[:, 1:].flatten())
    assert float(loss) == pytest.approx(float(exact), rel=1e-6)


def test_a_batch_of_padding_teaches_nothing_and_nobody_is_set_aside():
    nothing = torch.cat([people()[0].train.fields[0][:1], torch.full((19, LENGTH + 1), -100)])
    clients = [cobo.Client("few", train=nothing), people()[2]]
    heard = []
    cobo.fit(clients, model=bigram, loss="next_token", rounds=20, batch_size=1, listeners=[heard.append])
    assert not [event for event in heard if event["event"] == "set aside"]


@pytest.mark.parametrize(
    ("tokens", "model", "error", "words"),
    [
        (lambda: text(chain(0), 4, 0) + 1, bigram, ConfigError, "do not fit the data"),
        (lambda: torch.zeros(4, 9), bigram, ConfigError, "one row of two or more token numbers each"),
        (lambda: torch.zeros(4, dtype=torch.long), bigram, ConfigError, "one row of two or more token numbers each"),
        (lambda: torch.zeros(4, 1, dtype=torch.long), bigram, ConfigError, "two or more"),
        (lambda: (torch.zeros(4, 9).long(), torch.zeros(4).long()), bigram, ConfigError, "one row of two or more"),
        (lambda: torch.full((4, 9), -100), bigram, DataError, "client 'bad' has samples without any token to predict"),
        (lambda: text(chain(0), 4, 0) - 1, bigram, DataError, "client 'bad' has tokens from -1 to 4, but the model"),
        (
            lambda: text(chain(0), 4, 0),
            lambda: nn.Sequential(nn.Embedding(6, 8), nn.Flatten(), nn.Linear(64, 6)),
            ConfigError,
            r"gives \[4, 6\], not logits of shape \[4, 8, 'vocabulary'\]",
        ),
        (lambda: text(chain(0), 4, 0), lambda: nn.GRU(1, 1), ConfigError, "do not fit the data"),
    ],
)
def test_what_cannot_be_predicted_gets_one_clear_line(tokens, model, error, words):
    clients = [cobo.Client("bad", train=tokens()), cobo.Client("too", train=tokens())]
    with pytest.raises(error, match=words) as caught:
        cobo.fit(clients, model=model, loss="next_token", batch_size=4)
    assert "\n" not in str(caught.value)


def test_a_token_that_the_model_does_not_know_is_named_before_anything_runs():
    good, late = text(chain(0), 4, 0), text(chain(0), 4, 0)
    late[3, 5] = 77
    clients = [cobo.Client("good", train=good), cobo.Client("late", train=good, test=late)]
    words = r"client 'late' has tokens from 0 to 77, but the model knows 0 to 5 \(and -100 is padding\)"
    with pytest.raises(DataError, match=words):
        cobo.fit(clients, model=bigram, loss="next_token", rounds=1)


# In a run


def test_perplexity_is_in_metrics_and_history_beside_the_loss(tmp_path):
    result = small(out=tmp_path)
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[-1])
    assert set(line["clients"]) == {"ca", "es", "de"}
    for measured in line["clients"].values():
        assert list(measured) == ["loss", "perplexity"]
        assert measured["perplexity"] == pytest.approx(math.exp(measured["loss"]))
    each = [measured["perplexity"] for measured in line["clients"].values()]
    assert line["perplexity"] == pytest.approx(np.mean(each))
    assert "accuracy" not in line
    last = result.history[-1]
    assert (last["perplexity"], last["client_perplexity"]) == (line["perplexity"], each)
    assert last["perplexity"] < result.history[0]["perplexity"]
    assert cobo.load(tmp_path).history == result.history


def test_the_tests_of_one_client_are_enough_and_of_none_give_nothing():
    clients = [people()[0], *(cobo.Client(c.name, train=c.train) for c in people()[1:])]
    last = cobo.fit(clients, model=bigram, loss="next_token", rounds=2).history[-1]
    assert last["client_perplexity"] == [last["perplexity"], None, None]
    clients = [cobo.Client(c.name, train=c.train) for c in people()]
    assert "perplexity" not in cobo.fit(clients, model=bigram, loss="next_token", rounds=2).history[-1]


def test_other_runs_have_no_perplexity(tmp_path):
    x = torch.zeros(4, 2)
    clients = [cobo.Client(name, train=(x, x), test=(x, x)) for name in "ab"]
    last = cobo.fit(clients, model=nn.Linear(2, 2), loss="mse", rounds=1, out=tmp_path).history[-1]
    assert not [key for key in last if "perplexity" in key]
    assert "perplexity" not in (tmp_path / "metrics.jsonl").read_text()


def certain() -> nn.Sequential:
    """Very sure that the next token is 0."""
    model = bigram()
    with torch.no_grad():
        model[1].weight.zero_()
        model[1].bias.copy_(torch.tensor([2000.0, 0, 0, 0, 0, 0]))
    return model


def test_a_perplexity_beyond_all_numbers_is_none_and_harms_nobody(tmp_path):
    result = small(model=certain, rounds=2, lr=1e-6, listeners=[TensorBoard(tmp_path)])
    last = result.history[-1]
    assert last["loss"] > 700
    assert last["perplexity"] is None
    assert last["client_perplexity"] == [None] * 3
    assert f"loss {last['loss']:.4g}" in repr(result)


# What people see


def test_progress_and_result_say_perplexity(capsys):
    result = small(progress=True)
    said = capsys.readouterr().err.splitlines()
    value = f"{result.history[-1]['perplexity']:.4g}"
    assert said[-1].startswith("cobo: round 20/20")
    assert f"perplexity {value}, 1 group" in said[-1]
    assert f"round 20, perplexity {value}, groups" in repr(result)
    console = Console(width=80, file=io.StringIO(), force_terminal=True)
    small(listeners=[live := LiveProgress("cobo", console)])
    with live:
        pass
    assert f"ppl {value}, 1 group" in console.file.getvalue()


def test_tensorboard_gets_perplexity(tmp_path):
    small(listeners=[TensorBoard(tmp_path)])
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    board = EventAccumulator(str(tmp_path))
    board.Reload()
    assert {"perplexity", "loss", "perplexity/ca"} <= set(board.Tags()["scalars"])


METHODS = {
    "local": cobo.Local(),
    "ditto": cobo.Ditto(lam=0.1),
    "cobo": cobo.CoBo(domain="simplex", self_weight=True, gamma=0.2),
}


@pytest.fixture(scope="module")
def compared(tmp_path_factory) -> Path:
    """Three methods, two seeds, nobody in a known group."""
    folder = tmp_path_factory.mktemp("compared")
    for name, method in METHODS.items():
        for seed in (0, 1):
            small(method=method, seed=seed, out=folder / name / f"seed-{seed}")
    return folder


def last(folder: Path, method: str, seed: int) -> dict:
    return json.loads((folder / method / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()[-1])


def results_of(folder: Path, target: float | None = None) -> dict:
    return summary.summarise(folder, "chains", None, target)


def test_results_have_perplexity_and_who_is_improved_by_it(compared):
    results = results_of(compared)
    assert "target_perplexity" not in results
    for method, m in results["methods"].items():
        scores = [last(compared, method, seed)["perplexity"] for seed in (0, 1)]
        assert m["perplexity"] == {"mean": pytest.approx(fmean(scores)), "std": pytest.approx(stdev(scores))}
        assert m["accuracy"] is None
        assert m["recovery"] is None
    for method in ("ditto", "cobo"):
        shares = []
        for seed in (0, 1):
            alone, mine = (last(compared, m, seed)["clients"] for m in ("local", method))
            shares.append(100 * fmean(mine[name]["perplexity"] < alone[name]["perplexity"] for name in mine))
        assert results["methods"][method]["improved"]["mean"] == pytest.approx(fmean(shares))


def recorded(folder: Path, method: str, seed: int, perplexities: dict[int, float | None]) -> None:
    """A finished run with these perplexities by round, 10 gradients a round."""
    where = folder / method / f"seed-{seed}"
    where.mkdir(parents=True)
    counts = {"seconds": 1.0, "comparisons": 0, "bytes": 0, "loss": 0.5, "client_accuracy": [], "client_loss": []}
    lines = [{"round": r, "gradients": 10 * r, "perplexity": p, **counts} for r, p in perplexities.items()]
    facts = {"training": {"rounds": 9}, "method": {"name": method}, "weights": None, "true_groups": [], "names": []}
    (where / "result.json").write_text(json.dumps({**facts, "history": lines}))


def test_lower_is_better_on_the_way_to_the_target_and_to_ditto(tmp_path):
    for seed, good in enumerate((4, 6)):
        recorded(tmp_path, "ditto", seed, {0: 90.0, 5: 40.0, 9: 40.0 - seed})
        recorded(tmp_path, "cobo", seed, {0: None, good: 38.0, 9: 50.0})
        recorded(tmp_path, "local", seed, {0: 90.0, 9: 39.5})  # as good as Ditto with the first seed only
    results = results_of(tmp_path, 45.0)
    methods = results["methods"]
    measured = ("rounds_to_target", "gradients_to_target", "rounds_to_ditto", "gradients_to_ditto")
    assert [methods["cobo"][key] for key in measured] == [5, 50, 5, 50]
    assert [methods["ditto"][key] for key in measured] == [5, 50, 7, 70]
    assert [methods["local"][key] for key in measured] == [9, 90, None, None]
    assert (results["target_perplexity"], results["target_accuracy"]) == (45.0, None)
    assert methods["cobo"]["perplexity"] == {"mean": 50, "std": 0}
    recorded(tmp_path, "fedavg", 0, {0: 90.0, 9: None})
    assert results_of(tmp_path)["methods"]["fedavg"]["perplexity"] is None


@pytest.mark.parametrize(("value", "words"), [("0.5", "greater than or equal to 1"), ("low", "valid number")])
def test_a_target_that_no_model_can_have_is_refused(value, words):
    with pytest.raises(ConfigError, match=f"target_perplexity = .* is not allowed; it should be .*{words}"):
        load_experiment("digits", EXPERIMENTS, [f"target_perplexity={value}"])
    assert load_experiment("digits", EXPERIMENTS, ["target_perplexity=30"]).plain()["target_perplexity"] == 30
    assert "target_perplexity" not in load_experiment("digits", EXPERIMENTS).plain()


def test_tables_have_perplexity_in_the_place_of_accuracy_and_no_empty_columns_of_groups(compared, tmp_path):
    results = results_of(compared)
    table.write(tmp_path, results)
    lines = (tmp_path / "table.md").read_text().splitlines()
    heads = [head.strip() for head in lines[2].split("|")[1:-1]]
    kept = ["gradients", "comparisons", "MB sent", "to target", "s"]
    assert heads == ["method", "perplexity", "loss", "improved %", *kept]
    cobo_row = next(line for line in lines if line.startswith("| cobo "))
    found = results["methods"]["cobo"]["perplexity"]
    assert f"| cobo | {found['mean']:.2f} ± {found['std']:.2f} |" in cobo_row
    rows = list(csv.DictReader(io.StringIO((tmp_path / "table.csv").read_text())))
    assert list(rows[0])[-3:] == ["seeds", "perplexity_mean", "perplexity_std"]
    assert [float(row["perplexity_mean"]) for row in rows] == [
        results["methods"][row["method"]]["perplexity"]["mean"] for row in rows
    ]
    assert {row["accuracy_mean"] for row in rows} == {""}
    assert json.loads((tmp_path / "results.json").read_text()) == results


def test_the_lowest_perplexity_is_bold(tmp_path):
    for method, value in (("local", 41.26), ("ditto", 40.05), ("fedavg", 64.84)):
        recorded(tmp_path, method, 0, {9: value})
    tex = table.latex(results_of(tmp_path))
    assert tex.count(r"\textbf") == 1
    assert r"ditto & \textbf{40.05} & 0.500 &" in tex


def test_tables_fit_80_columns_also_with_groups_and_with_what_has_run_away(compared):
    results = results_of(compared)
    for m in results["methods"].values():  # as large as they get
        m["gradients"], m["bytes"], m["seconds"], m["rounds_to_target"] = 40_000 * 64, 9_999e6, 9_999.0, 40_000
        m["weights_error"], m["groups_score"], m["perplexity"] = 0.123, 1.0, {"mean": 12345.67, "std": 1234.56}
    results["methods"]["cobo"]["perplexity"] = {"mean": 3e43, "std": 2e40}
    console = Console(width=80, file=io.StringIO())
    console.print(table.terminal(results))
    text = console.file.getvalue()
    assert "…" not in text
    assert all(word in text for word in ("perplexity", "ARI", "12345.67 ± 1234.56", "3.0e+43 ± 2.0e+40"))
    assert "accuracy" not in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80


def test_true_groups_bring_their_columns_back(tmp_path):
    clients = [
        cobo.Client(c.name, train=c.train, test=c.test, group=group) for c, group in zip(people(), "aab", strict=True)
    ]
    method = cobo.CoBo(domain="simplex")
    out = tmp_path / "cobo" / "seed-0"
    cobo.fit(clients, model=bigram, loss="next_token", method=method, rounds=4, out=out)
    heads = table.markdown(results_of(tmp_path)).splitlines()[2]
    assert "| W error | groups |" in heads
    assert "recovery" not in heads


# Figures


@pytest.mark.slow
def test_figures_of_language_runs_are_written_and_the_same_each_time(compared):
    contents = []
    for _ in range(2):
        comparison.draw(compared, results_of(compared))
        contents.append({path.name: path.read_bytes() for path in (compared / "figures").iterdir()})
    names = ("perplexity", "gradients", "weights", "domain-weights", "weights-final")
    assert set(contents[0]) == {f"{name}.{kind}" for name in names for kind in ("png", "svg")}
    assert contents[0] == contents[1]
    assert contents[0]["domain-weights.png"].startswith(b"\x89PNG")


def test_curves_are_of_perplexity_with_its_target(compared, monkeypatch):
    drawn = {}
    monkeypatch.setattr(figures, "save", lambda figure, folder, name: drawn.update({name: figure}))
    comparison.draw(compared, results_of(compared, 3.0))
    assert list(drawn) == ["perplexity", "gradients", "weights", "domain-weights", "weights-final"]
    ax = drawn["perplexity"].axes[0]
    assert ax.get_ylabel() == "perplexity"
    lines = {line.get_label().split()[0]: line for line in ax.lines}
    assert list(lines) == ["local", "ditto", "cobo", "target"]
    assert lines["target"].get_ydata() == [3, 3]
    means = [fmean(last(compared, method, seed)["perplexity"] for seed in (0, 1)) for method in METHODS]
    assert [lines[method].get_ydata()[-1] for method in METHODS] == pytest.approx(means)
    assert [lines[method].get_label() for method in METHODS] == [
        f"{method} {mean:.4g}" for method, mean in zip(METHODS, means, strict=True)
    ]


def made_up(ends: dict[str, float], start: float) -> dict[str, comparison.Curve]:
    return {
        m: comparison.Curve([0, 5, 9], [0.0, 5.0, 9.0], np.array([start, 1.1 * end, end]), None)
        for m, end in ends.items()
    }


def test_the_panel_beside_shows_where_the_better_methods_end():
    ends = {"local": 41.26, "fedavg": 64.84, "cobo": 39.28}
    whole, near = comparison.curves(made_up(ends, 5000.0), "perplexity", "rounds", None).axes
    assert (whole.get_yscale(), near.get_yscale()) == ("log", "linear")
    low, high = near.get_ylim()
    assert low < 39.28
    assert 41.26 < high < 64.84
    (only,) = comparison.curves(made_up({"cobo": 39.0, "local": 41.0}, 43.0), "perplexity", "rounds", None).axes
    assert only.get_yscale() == "linear"


def test_a_panel_per_client_has_the_smoothed_weights_of_its_row(compared):
    runs = list(summary.read_runs(compared)["cobo"].values())
    found = domain_weights.read(runs)
    assert found.weights.shape == (2, len(found.rounds), 3, 3)
    np.testing.assert_allclose(found.weights.sum(-1), 1, atol=1e-6)  # own weights and all
    figure = domain_weights.over_rounds(found)
    assert [ax.get_title() for ax in figure.axes] == ["ca", "es", "de"]
    assert "half-life 1 round)" in figure.get_supylabel()
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["ca", "es", "de", "its own"]
    # By hand: of the weight with which "ca" learns from "es", each round half is kept of what was.
    averages = []
    for run in runs:
        snapshots = [W[0, 1] for _, W in summary.read_snapshots(run)]
        average = [snapshots[0]]
        for value in snapshots[1:]:
            average.append((average[-1] + value) / 2)
        averages.append(average)
    colour = figures.CLIENT_COLOURS[1]
    lines = [line for line in figure.axes[0].lines if line.get_color() == colour]
    for line, average in zip(lines, [*averages, np.mean(averages, axis=0)], strict=True):
        np.testing.assert_allclose(line.get_ydata(), average, rtol=1e-5)
    own = {line.get_linestyle() for line in figure.axes[0].lines if line.get_color() == figures.CLIENT_COLOURS[0]}
    assert own == {"--"}


def test_the_last_w_has_its_numbers_and_names(compared):
    figure = domain_weights.in_the_end(domain_weights.read(list(summary.read_runs(compared)["cobo"].values())))
    ax = figure.axes[0]
    W = np.mean([summary.read_runs(compared)["cobo"][seed]["weights"] for seed in (0, 1)], axis=0)
    assert [text.get_text() for text in ax.texts] == [f"{value:.2f}" for value in W.flatten()]
    assert [label.get_text() for label in ax.get_yticklabels()] == ["ca", "es", "de"]
    assert [label.get_text() for label in ax.get_xticklabels()] == ["ca", "es", "de"]
    assert figure.axes[1].get_ylabel() == "$w_{ij}$, mean over 2 seeds"


def test_without_an_own_weight_there_is_no_line_and_no_number_for_it(tmp_path):
    roster = cobo.Roster(changes=[{"round": 10, "join": "de"}])
    small(method=cobo.CoBo(domain="simplex"), out=tmp_path / "cobo" / "seed-0", roster=roster)
    found = domain_weights.read(list(summary.read_runs(tmp_path)["cobo"].values()))
    assert len(domain_weights.in_the_end(found).axes[0].texts) == 6
    figure = domain_weights.over_rounds(found)
    assert "its own" not in [text.get_text() for text in figure.legends[0].get_texts()]
    (late,) = [line for line in figure.axes[0].lines if line.get_color() == figures.CLIENT_COLOURS[2]]
    known = ~np.isnan(late.get_ydata())
    assert np.array(found.rounds)[known].tolist() == list(range(11, 21))


def test_names_that_look_like_formulas_are_names(tmp_path):
    names = ["$^$", "a$b", "$x$"]
    found = domain_weights.Rows(names, [0, 10], np.full((1, 2, 3, 3), 1 / 3))
    last = domain_weights.in_the_end(found)
    figures.save(last, tmp_path, "last")
    figures.save(domain_weights.over_rounds(found), tmp_path, "rounds")
    for figure in ("last", "rounds"):
        assert all(f"<!-- {name} -->" in (tmp_path / f"{figure}.svg").read_text() for name in names)


def test_other_graphs_and_very_many_clients_have_no_such_figures(tmp_path):
    assert domain_weights.draw([{"method": {"domain": "box"}, "names": ["a", "b"]}]) == {}
    assert domain_weights.draw([{"method": {}, "names": ["a", "b"]}]) == {}
    assert domain_weights.draw([{"method": {"domain": "simplex"}, "names": [str(k) for k in range(13)]}]) == {}


# On the command line


class Chains(Experiment):
    """The three clients as an experiment."""

    what: ClassVar[str] = "chains of tokens"

    size: int = 8

    def build(self, seed: int, *, validation: float = 0.0) -> Parts:
        clients = [client.hold_out(validation, seed) if validation else client for client in people()]
        return Parts(clients, lambda: nn.Sequential(nn.Embedding(6, self.size), nn.Linear(self.size, 6)), "next_token")


@pytest.fixture
def chains(tmp_path, monkeypatch, capsys):
    """`cobo` with this experiment: its exit code, and what it says."""
    monkeypatch.setitem(EXPERIMENTS, "chains", Chains)
    path = tmp_path / "chains.toml"
    path.write_text("""experiment = "chains"
rounds = 12
lr = 0.5
batch_size = 4
evaluate_every = 4
target_perplexity = 4.0
methods.cobo = {domain = "simplex", gamma = 0.2}
""")

    def call(command: str, *arguments: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["cobo", command, str(path), *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        out, err = capsys.readouterr()
        return end.value.code or 0, out, err

    return call


@pytest.mark.slow
def test_compare_and_run_say_perplexity(chains, tmp_path):
    folder = tmp_path / "out"
    code, out, err = chains("compare", "--methods", "local,ditto,cobo", "--seeds", "2", "--out", str(folder))
    assert code == 0, err
    assert all(" seed 1: perplexity " in line for line in err.splitlines()[-3:])
    assert "accuracy" not in out
    assert max(len(line) for line in out.splitlines() if "written to" not in line) <= 80
    results = json.loads((folder / "results.json").read_text())
    assert results["target_perplexity"] == 4
    reached = []
    for seed in (0, 1):
        lines = (folder / "ditto" / f"seed-{seed}" / "metrics.jsonl").read_text().splitlines()
        reached.append(next(x["round"] for x in map(json.loads, lines) if x["perplexity"] <= 4))
    assert results["methods"]["ditto"]["rounds_to_target"] == fmean(reached) > 0
    assert (folder / "figures" / "domain-weights.svg").exists()
    code, out, err = chains("run", "--method", "local", "--out", str(tmp_path / "one"))
    assert code == 0, err
    assert "local seed 0: round 12/12" in err.splitlines()[-1]
    assert "perplexity" in err.splitlines()[-1]
    assert "perplexity" in out


def test_a_variation_is_in_perplexity(chains, tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(figures, "save", lambda figure, folder, name: drawn.append(figure.axes[0].get_ylabel()))
    folder = tmp_path / "out"
    code, out, err = chains("vary", "cobo.gamma=0.1,0.3", "--methods", "local,cobo", "--out", str(folder))
    assert code == 0, err
    assert "perplexity" in out
    assert max(len(line) for line in out.splitlines() if "written to" not in line) <= 80
    heads = (folder / "table.md").read_text().splitlines()[2]
    assert heads == "| cobo.gamma | method | perplexity | loss | improved % | gradients | s |"
    values = json.loads((folder / "results.json").read_text())["values"]
    rows = list(csv.DictReader(io.StringIO((folder / "table.csv").read_text())))
    found = [float(row["perplexity_mean"]) for row in rows if row["method"] == "cobo"]
    assert found == [at["methods"]["cobo"]["perplexity"]["mean"] for at in values]
    assert drawn == ["perplexity"]
    other = tmp_path / "targets"
    code, _, err = chains("vary", "target_perplexity=2,4", "--methods", "local", "--out", str(other))
    assert code == 2
    assert "target_perplexity is no setting of local" in err


def test_a_search_is_judged_by_the_loss(chains, tmp_path):
    code, out, err = chains("tune", "--methods", "local", "--trials", "2", "--seeds", "1", "--out", str(tmp_path / "t"))
    assert code == 0, err
    lines = (tmp_path / "t" / "local" / "trials.jsonl").read_text().splitlines()
    best = max(json.loads(line)["score"] for line in lines)
    assert -math.log(VOCABULARY) < best < 0
    assert f"{best:.4g}" in next(line for line in out.splitlines() if line.startswith("local"))
    assert "perplexity" in err
