"""`cobo show` and `cobo figure`: a folder of runs in the terminal, and one figure by its name."""

import io
import shutil

import numpy as np
import pytest
from conftest import blobs
from rich.console import Console
from test_compare import Silent, tiny
from test_perplexity import small
from test_report_page import fitted, spoil
from test_vary import variation

import cobo
from cobo.cli import main
from cobo.experiments.runner import compare
from cobo.report import comparison, glance, summary
from cobo.report import vary as ablation


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    folder = tmp_path_factory.mktemp("digits")
    compare(tiny(), ["local", "cobo", "oracle"], [0], folder, resume=False, watch=Silent())
    return folder


def call(monkeypatch, capsys, *arguments: object) -> tuple[int, str, str]:
    monkeypatch.setattr("sys.argv", ["cobo", *(str(a) for a in arguments)])
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as ended:
        main()
    out, err = capsys.readouterr()
    return ended.value.code or 0, out, err


def shown(folder, colours: str | None = None, width: int = 80) -> str:
    out = io.StringIO()
    console = Console(width=width, file=out, color_system=colours, force_terminal=colours is not None)
    glance.show(console, folder, summary.summarise(folder, "x", None))
    return out.getvalue()


def test_show_has_the_table_w_the_groups_and_a_line_per_method(compared, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, "show", compared)
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert max(len(line) for line in lines) <= 80
    result = cobo.load(compared / "cobo" / "seed-0")
    places = [k for k, line in enumerate(lines) if line.startswith("group0-client0 ")]
    W = [line.split(" ", 1)[1] for line in lines[places[0] : places[0] + 8]]
    order = [line.split(" ")[0] for line in lines[places[0] : places[0] + 8]]
    for i, row in enumerate(W):
        for j in range(8):
            weight = result.weights[result.names.index(order[i]), result.names.index(order[j])]
            assert row[2 * j] == ("·" if i == j else glance.SHADES[round(4 * float(weight))])
    for group in result.groups():
        assert f"({len(group)}): {', '.join(group)}" in " ".join(out.split())
    for method in ("local", "cobo", "oracle"):
        end = summary.read_runs(compared)[method][0]["history"][-1]["accuracy"]
        (line,) = [x for x in lines if x.strip().startswith(method) and any(h in x for h in glance.HEIGHTS)]
        assert line.endswith(f" {end:.4g}")
        assert len(line.split()[1]) == 4  # evaluations


def test_a_score_that_is_no_number_is_a_dot_and_no_end(compared, tmp_path):
    folder = shutil.copytree(compared, tmp_path / "runs")
    for k in (1, 3):
        spoil(folder, "cobo/seed-0", lambda facts, k=k: facts["history"][k].update(accuracy=None))
    (line,) = [x.split() for x in shown(folder).splitlines() if x.strip().startswith("cobo ") and "·" in x]
    assert [line[1][1], line[1][3], line[2]] == ["·", "·", "-"]


def test_colours_are_used_where_there_are_some(compared):
    assert "\x1b[" not in shown(compared)
    coloured = shown(compared, "truecolor")
    assert "\x1b[48;2;247;251;255m" in coloured or "\x1b[48;2;198;219;239m" in coloured  # close to 1
    assert "░" not in coloured


def test_eighty_clients_fit_an_80_column_terminal_and_more_are_groups(tmp_path):
    clients = [blobs(f"c{k}", seed=k, samples=2, group=k % 2) for k in range(81)]
    fitted(tmp_path / "a", clients[:80], method=cobo.Oracle(), rounds=1)
    fitted(tmp_path / "b", clients, method=cobo.Oracle(), rounds=1)
    for colours, block in ((None, "█"), ("truecolor", "▀")):
        lines = [line for line in shown(tmp_path / "a", colours).splitlines() if line.count(block) >= 38]
        assert len(lines) == 40
    lines = shown(tmp_path / "a").splitlines()
    assert max(len(line) for line in lines if "group" not in line) <= 80
    assert "group 1 ██  " in shown(tmp_path / "b").splitlines()
    assert "group 2   ██" in shown(tmp_path / "b").splitlines()
    assert "and 29 more" in shown(tmp_path / "b")


def test_names_move_no_cursor_and_are_no_markup(tmp_path):
    fitted(tmp_path, [blobs(name, seed=k) for k, name in enumerate(["[red]north", "südosten 🦊"])])
    spoil(tmp_path, ".", lambda facts: facts["names"].__setitem__(1, "\x1b[2Jgone"))
    spoil(tmp_path, ".", lambda facts: facts["present"].__setitem__(1, "\x1b[2Jgone"))
    text = shown(tmp_path)
    assert "\x1b" not in text
    assert "[red]north, ?[2Jgone" in text


def test_long_names_that_differ_at_their_end_can_be_told_apart(tmp_path):
    fitted(tmp_path, [blobs(f"hospital-north-{k:02}", seed=k) for k in range(2)])
    text = shown(tmp_path)
    assert "hospital…orth-00 " in text
    assert "hospital…orth-01 " in text


def test_local_only_says_that_there_is_no_w(compared, tmp_path):
    folder = shutil.copytree(compared / "local", tmp_path / "local")
    text = shown(folder.parent)
    assert "No W: no method here learns weights between clients." in text
    assert "Local learns no weights between clients." in text


@pytest.mark.parametrize("command", ["show", "report"])
def test_a_folder_without_runs_is_one_line_and_exit_2(command, tmp_path, monkeypatch, capsys):
    code, out, err = call(monkeypatch, capsys, command, tmp_path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert f"{tmp_path} holds no run" in err
    assert list(tmp_path.iterdir()) == []


# Figures


def test_one_figure_is_written_as_png_and_svg(compared, monkeypatch, capsys):
    shutil.rmtree(compared / "figures", ignore_errors=True)
    code, out, err = call(monkeypatch, capsys, "figure", "weights", compared, "--rounds", "0,7,12")
    assert (code, err) == (0, "")
    assert "weights.png and .svg" in out.replace("\n", "")
    assert sorted(path.name for path in (compared / "figures").iterdir()) == ["weights.png", "weights.svg"]
    assert (compared / "figures" / "weights.png").read_bytes().startswith(b"\x89PNG")


def test_w_is_shown_at_the_rounds_asked_for(compared):
    results = summary.summarise(compared, "x", None)
    figure = comparison.drawn(compared, results, [0, 7, 1000])["weights"]
    cells = [ax for ax in figure.axes if ax.images]
    assert [cell.get_title() for cell in cells] == ["round 0", "round 7", "round 12", "oracle"]
    W = dict(summary.read_snapshots(summary.read_runs(compared)["cobo"][0]))[7]
    drawn = np.asarray(cells[1].images[0].get_array().filled(np.nan))
    np.testing.assert_array_equal(drawn[~np.eye(8, dtype=bool)], W[~np.eye(8, dtype=bool)])


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pie"], "figure 'pie' is not known; it should be one of accuracy, perplexity, gradients, weights,"),
        (["vary"], "has nothing for the figure vary; it has accuracy, gradients, weights"),
        (["accuracy", "--rounds", "3"], "--rounds is for the figure weights, not for accuracy"),
        (["weights", "--rounds", "3,x"], "--rounds '3,x' is not allowed"),
    ],
)
def test_what_is_no_figure_is_one_line_and_exit_2(compared, monkeypatch, capsys, arguments, said):
    code, _, err = call(monkeypatch, capsys, "figure", arguments[0], compared, *arguments[1:])
    assert code == 2
    assert err.count("\n") == 1
    assert said in err


def test_a_variation_is_shown_as_its_table(tmp_path, monkeypatch, capsys):
    made = variation(tmp_path, "cobo.sampling=constant,every", ["cobo"])
    made.run([0], resume=False, watch=Silent())
    ablation.write(tmp_path, ablation.summarise(made))
    code, out, err = call(monkeypatch, capsys, "show", tmp_path)
    assert (code, err) == (0, "")
    assert out.startswith("digits: cobo.sampling, 12 rounds, 1 seed")
    assert "constant cobo" in " ".join(out.split())
    assert out.splitlines()[-1] == f"for more of one value: cobo show {made.values[0].folder}"


def test_variations_and_language_runs_have_theirs(tmp_path, monkeypatch, capsys):
    made = variation(tmp_path / "varied", "cobo.sampling=constant,every", ["cobo"])
    made.run([0], resume=False, watch=Silent())
    ablation.write(tmp_path / "varied", ablation.summarise(made))
    small(method=cobo.CoBo(domain="simplex"), out=tmp_path / "language" / "cobo" / "seed-0")
    for folder, name in (("varied", "vary"), ("language", "domain-weights"), ("language", "perplexity")):
        code, _, err = call(monkeypatch, capsys, "figure", name, tmp_path / folder)
        assert (code, err) == (0, "")
        assert (tmp_path / folder / "figures" / f"{name}.svg").read_text().startswith("<?xml")


def test_on_a_simplex_it_says_who_learns_most_from_whom_instead_of_groups(tmp_path, monkeypatch, capsys):
    result = small(method=cobo.CoBo(domain="simplex", gamma=1.0), out=tmp_path / "cobo" / "seed-0")
    code, out, err = call(monkeypatch, capsys, "show", tmp_path)
    assert (code, err) == (0, "")
    said = " ".join(out.split())
    for name, row in zip(result.names, result.weights, strict=True):
        peer = result.names[int(row.argmax())]
        assert f"from {peer}" in said
        assert name in said.split(f" most from {peer}")[0].rpartition(",")[2]
    assert "found" not in said
