"""report.html in a real browser: it asks for nothing, shows what the runs say, and can be used by anyone."""

import copy
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import blobs
from safetensors.numpy import load_file
from test_compare import Silent, tiny
from test_perplexity import small

import cobo
from cobo.experiments.runner import compare
from cobo.report import page, summary, table
from cobo.report.page import build, graphs, words

pytestmark = pytest.mark.slow

METHODS = ["local", "ditto", "cobo", "oracle"]
HOSTILE = ["<img src=x onerror=alert(1)>", "\"quoted\" & 'single'", "🦊 fox", "<!--<script>alert(2)", "{{data}} $& end"]


@pytest.fixture
def show(browser):
    """Opens a page; at the end it must have asked for nothing, and complained of nothing."""
    contexts, asked, complaints = [], [], []

    def opened(path: Path, width: int = 1280, **options):
        context = browser.new_context(viewport={"width": width, "height": 900}, **options)
        contexts.append(context)
        found = context.new_page()
        found.set_default_timeout(60_000)
        address = path.as_uri()
        context.route(lambda url: url != address, lambda route: (asked.append(route.request.url), route.abort()))
        found.on("console", lambda message: complaints.append(message.text))
        found.on("pageerror", lambda error: complaints.append(str(error)))
        found.on("dialog", lambda dialog: (complaints.append(dialog.message), dialog.dismiss()))
        found.goto(address)
        return found

    yield opened
    for context in contexts:
        context.close()
    assert asked == []
    assert complaints == []


def built(folder: Path) -> Path:
    page.write(folder, summary.summarise(folder, folder.name, None))
    return folder / "report.html"


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """Four methods on digits, two seeds."""
    folder = tmp_path_factory.mktemp("digits")
    compare(tiny(), METHODS, [0, 1], folder, resume=False, watch=Silent())
    built(folder)
    return folder


@pytest.fixture
def copied(compared, tmp_path):
    """The same, to be spoilt."""
    return Path(shutil.copytree(compared, tmp_path / "runs"))


def spoil(folder: Path, run: str, change) -> None:
    path = folder / run / "result.json"
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))


def fitted(out: Path, clients, **options) -> cobo.Result:
    options = {"method": cobo.CoBo(), "rounds": 6, "lr": 0.1, "progress": False, "out": out, **options}
    return cobo.fit(clients, model=lambda: torch.nn.Linear(2, 2), **options)


def unfold(found, which: str = "details") -> None:
    """Open what is folded, and wait until it is filled: a browser tells the page a moment later."""
    for part in found.locator(which).all():
        if part.is_visible():
            part.locator("summary").click()
            found.wait_for_function("part => part.lastElementChild.textContent", arg=part.element_handle())


def rows(found, selector: str) -> list[list[str]]:
    return [row.locator("th, td").all_inner_texts() for row in found.locator(f"{selector} tbody tr").all()]


# What it shows


def test_the_first_screen_has_the_finding_the_table_and_w(compared, show):
    found = show(compared / "report.html")
    results = summary.summarise(compared, "x", None)
    assert found.locator("h1").inner_text().startswith("CoBo found ")
    heads = found.locator("#methods thead th").all_inner_texts()
    shown = rows(found, "#methods")
    assert [row[0].split()[0] for row in shown] == METHODS
    cells = table.cells(results, heads)
    assert [row[1:] for row in shown] == [row[1:] for row in cells]
    assert any(" ± " in row[1] for row in shown)
    best = found.locator("#methods tr.best th").inner_text().split()
    assert best == [table.best(results), "best"]
    assert "told the groups" in found.locator("#methods tr", has_text="oracle").inner_text()
    for picture in ("#weights", "#truth", "#net"):
        assert found.locator(picture).bounding_box()["height"] > 100


def test_w_under_the_pointer_is_what_was_recorded_and_the_slider_goes_through_the_rounds(compared, show):
    found = show(compared / "report.html")
    recorded = load_file(compared / "cobo" / "seed-0" / "weights.safetensors")
    labels = found.evaluate("state.run.graph.labels")
    names = json.loads((compared / "cobo" / "seed-0" / "result.json").read_text())["names"]
    box, n = found.locator("#weights").bounding_box(), len(names)
    edge, plot = (float(found.locator("#weights").get_attribute(f"data-{side}")) for side in ("edge", "plot"))
    for round in (12, 5, 0):
        found.locator("#slider").fill(str(recorded["rounds"].tolist().index(round)))
        assert found.locator("#at").inner_text() == str(round)
        for i, j in ((0, 1), (3, 6)):
            found.mouse.move(box["x"] + edge + (j + 0.5) * plot / n, box["y"] + (i + 0.5) * plot / n)
            said = found.locator("#pair").inner_text()
            assert said.startswith(f"{labels[i]} learns from {labels[j]}: ")
            W = recorded["weights"][recorded["rounds"].tolist().index(round)]
            assert float(said.rpartition(" ")[2]) == pytest.approx(
                W[names.index(labels[i]), names.index(labels[j])], abs=0.01
            )
    found.locator("#slider").press("End")  # what is said of the pair is of the round that is shown
    said, W = found.locator("#pair").inner_text(), recorded["weights"][-1]
    assert float(said.rpartition(" ")[2]) == pytest.approx(W[names.index(labels[3]), names.index(labels[6])], abs=0.01)
    found.locator("#seed").select_option("1")
    assert found.locator("#pair").inner_text() == "Point at a cell to read it."


def test_groups_are_those_of_the_result_and_side_by_side(compared, show):
    found = show(compared / "report.html")
    found.locator("#method").select_option("oracle")
    truth = cobo.load(compared / "oracle" / "seed-0").groups()
    assert [text.split(": ")[1] for text in found.locator("#groups li").all_inner_texts()] == [
        ", ".join(g) for g in truth
    ]
    assert found.evaluate("state.run.graph.labels") == [name for group in truth for name in group]


def test_clients_are_beside_themselves_alone_with_the_same_seed(compared, show):
    found = show(compared / "report.html")
    found.locator("#seed").select_option("1")
    mine, alone = (json.loads((compared / m / "seed-1" / "result.json").read_text()) for m in ("cobo", "local"))
    shown = rows(found, "#clients")
    for k, name in enumerate(mine["names"]):
        a, b = (run["history"][-1]["client_accuracy"][k] for run in (alone, mine))
        assert shown[k][0] == name
        assert shown[k][2] == str(mine["true_groups"][k])
        assert shown[k][3:5] == [f"{a:.1f}", f"{b:.1f}"]
        assert float(shown[k][5]) == pytest.approx(b - a, abs=0.06)
        peer, weight = shown[k][6].split(", ")[0].rsplit(" ", 1)
        row = np.array(mine["weights"][k]) * (np.arange(8) != k)
        assert row[mine["names"].index(peer)] == pytest.approx(row.max())
        assert float(weight) == pytest.approx(row.max(), abs=0.006)


def test_curves_have_their_numbers_and_can_be_drawn_against_gradients_and_seconds(compared, show):
    found = show(compared / "report.html")
    assert found.locator("#curves figcaption").all_inner_texts() == ["accuracy, %", "loss"]
    assert found.locator("#curves svg").first.locator("path[stroke]").count() == 4
    assert found.locator("#curves svg").first.locator("path[fill-opacity]").count() == 4  # bands over seeds
    unfold(found, "#curves-data")
    curve = build.gathered(compared, summary.summarise(compared, "x", None), summary.read_runs(compared))["curves"][
        "accuracy"
    ]["ditto"]
    for axis, head in (("gradients", "gradients computed"), ("seconds", "seconds"), ("round", "rounds")):
        found.locator("#axis").select_option(axis)
        assert head in found.locator("#curves svg").first.text_content()
        shown = [row for row in rows(found, "#curves-data") if row[:2] == ["ditto", "accuracy"]]
        assert [float(row[2].replace(",", "")) for row in shown] == pytest.approx(curve[axis], rel=1e-3)
        assert [float(row[3]) for row in shown] == pytest.approx(curve["mean"], rel=1e-3)
    found.get_by_label("ditto", exact=True).uncheck()
    assert found.locator("#curves svg").first.locator("path[stroke]").count() == 3


def test_bands_are_shown_whole(copied, show):
    for seed, accuracy in ((0, 0.0), (1, 100.0)):
        spoil(copied, f"cobo/seed-{seed}", lambda facts, a=accuracy: facts["history"][-1].update(accuracy=a))
    chart = show(built(copied)).locator("#curves svg").first
    left, top, width, height = (
        float(chart.locator("clipPath rect").get_attribute(side)) for side in ("x", "y", "width", "height")
    )
    for band in chart.locator("path[fill-opacity]").all():
        points = [point.split(",") for point in re.findall(r"[-\d.]+,[-\d.]+", band.get_attribute("d"))]
        assert all(left - 0.1 <= float(x) <= left + width + 0.1 for x, _ in points)
        assert all(top <= float(y) <= top + height for _, y in points)


def test_settings_environment_and_the_command_are_there(compared, show):
    found = show(compared / "report.html")
    assert found.locator("#command").inner_text() == (
        "cobo compare experiment.toml --methods local,ditto,cobo,oracle --seeds 2 --out again"
    )
    assert found.locator("#settings").text_content() == (compared / "experiment.toml").read_text()
    assert torch.__version__ in found.locator("#environment").text_content()


def test_language_runs_have_perplexity_and_the_weights_of_each_client(tmp_path, show):
    for method in (cobo.Local(), cobo.CoBo(domain="simplex", self_weight=True)):
        small(method=method, out=tmp_path / method.name / "seed-0")
    found = show(built(tmp_path))
    assert found.locator("#scores").inner_text().startswith("Perplexity in the end: CoBo")
    assert found.locator("#curves figcaption").all_inner_texts() == ["perplexity", "loss"]
    assert found.locator("#domains figcaption").all_inner_texts() == ["ca", "es", "de"]
    assert found.locator("#domains svg").first.locator("path[stroke]").count() == 3
    unfold(found, "#domains-data")
    W = np.array(json.loads((tmp_path / "cobo" / "seed-0" / "result.json").read_text())["weights"])
    shown = np.array([[float(cell) for cell in row[1:]] for row in rows(found, "#domains-data")])
    np.testing.assert_allclose(shown.sum(1), 1, atol=0.01)
    assert shown.argmax(1).tolist() == W.argmax(1).tolist()


# Using it


def test_the_table_is_sorted_by_mouse_and_by_keyboard(compared, show):
    found = show(compared / "report.html")
    head = found.locator("#methods th", has_text="improved %")
    column = found.locator("#methods thead th").all_inner_texts().index("improved %")

    def values() -> list[str]:
        return [row[column].split(" ")[0] for row in rows(found, "#methods")]

    before = values()
    head.locator("button").click()
    assert head.get_attribute("aria-sort") == "descending"
    known = sorted((float(v) for v in before if v != "-"), reverse=True)
    assert [float(v) for v in values()[:-1]] == known
    assert values()[-1] == "-"  # Local has none, and is last either way
    head.locator("button").focus()
    found.keyboard.press("Enter")
    assert head.get_attribute("aria-sort") == "ascending"
    assert [float(v) for v in values()[:-1]] == known[::-1]
    assert values()[-1] == "-"
    found.locator("#methods th button").first.press("Space")
    assert [row[0].split()[0] for row in rows(found, "#methods")] == sorted(METHODS)


def test_clients_are_sorted_by_true_group_whether_it_is_a_word_or_a_number(tmp_path, show):
    for kind, groups in (("words", ["south", "north", "south", "east"]), ("numbers", [10, 9, 10, 1])):
        clients = [blobs(name, seed=k, group=group) for k, (name, group) in enumerate(zip("abcd", groups, strict=True))]
        fitted(tmp_path / kind, clients, rounds=1)
        found = show(built(tmp_path / kind))
        column = found.locator("#clients thead th").all_inner_texts().index("true group")
        found.locator("#clients th button", has_text="true group").click()
        assert [row[column] for row in rows(found, "#clients")] == [str(group) for group in sorted(groups)]


def picture(found, selector: str = "#weights") -> str:
    return found.locator(selector).evaluate("canvas => canvas.toDataURL()")


def test_slider_and_play_work_by_keyboard(compared, show):
    found = show(compared / "report.html")
    slider, play = found.locator("#slider"), found.locator("#play")
    end = picture(found)
    slider.press("Home")
    assert found.locator("#at").inner_text() == "0"
    assert picture(found) != end
    slider.press("ArrowRight")
    assert slider.get_attribute("aria-valuetext") == "round 1"
    found.evaluate("""() => {
        window.said = [];
        new MutationObserver(() => said.push(byId("play").textContent)).observe(byId("play"), { childList: true });
    }""")
    play.focus()
    found.keyboard.press("Space")
    found.wait_for_function("() => byId('at').textContent === '12' && byId('play').textContent === 'Play'")
    assert found.evaluate("window.said") == ["Pause", "Play"]
    assert picture(found) == end


def test_the_slider_is_drawn_along_by_mouse_and_w_in_numbers_is_made_when_it_rests(compared, show):
    found = show(compared / "report.html")
    unfold(found, "#weights-data")
    found.evaluate("""() => {
        window.made = 0;
        new MutationObserver(() => made++).observe(byId("weights-data").querySelector("div"), { childList: true });
    }""")
    found.locator("#slider").scroll_into_view_if_needed()
    box, last = found.locator("#slider").bounding_box(), found.evaluate("state.run.graph.rounds.length") - 1
    seen, pictures = [], set()
    found.mouse.move(box["x"] + box["width"] - 8, box["y"] + box["height"] / 2)
    found.mouse.down()
    for share in (0.9, 0.7, 0.5, 0.3, 0.1):
        found.mouse.move(box["x"] + share * box["width"], box["y"] + box["height"] / 2)
        seen.append(int(found.locator("#at").inner_text()))
        pictures.add(picture(found))
    assert seen == sorted(set(seen), reverse=True)
    assert 0 < seen[-1] < seen[0] < last
    assert len(pictures) == len(seen)
    assert found.evaluate("window.made") == 0
    found.mouse.up()
    assert found.evaluate("window.made") == 1
    assert found.locator("#weights-data caption").text_content() == f"W at round {seen[-1]}"


def test_play_by_mouse_starts_again_at_the_end_and_can_be_paused(compared, show):
    found = show(compared / "report.html")
    end = picture(found, "#net")
    found.evaluate("""() => { // pauses at the third round, however slow the computer is
        window.seen = [];
        const watch = new MutationObserver(() => {
            if (seen.push(byId("at").textContent) === 3) byId("play").click();
        });
        watch.observe(byId("at"), { childList: true });
    }""")
    found.locator("#play").click()
    found.wait_for_function("() => window.seen.length === 3")
    found.wait_for_timeout(300)
    assert found.evaluate("window.seen") == ["0", "1", "2"]
    assert found.locator("#at").inner_text() == "2"
    assert found.locator("#play").inner_text() == "Play"
    assert picture(found, "#net") != end


def test_every_control_has_a_name_every_picture_its_numbers_and_focus_is_seen(compared, show):
    found = show(compared / "report.html")
    assert "" not in [text.strip() for text in found.locator("button").all_text_contents()]
    labels = "controls => controls.map(control => [...control.labels].map(label => label.textContent.trim()).join())"
    named = found.locator("select, input").evaluate_all(labels)
    assert len(named) == 9
    assert "" not in named
    unfold(found)
    for section in found.locator("section:has(canvas), section:has(svg)").all():
        if section.is_visible():
            assert section.locator("details table tbody tr").count() > 1
    found.locator("#play").focus()
    found.keyboard.press("Tab")
    focused = "getComputedStyle(document.activeElement)"
    assert found.evaluate("document.activeElement.id") == "slider"
    assert found.evaluate(f"{focused}.outlineStyle") == "solid"
    assert found.evaluate(f"parseFloat({focused}.outlineWidth)") >= 2


CONTRAST = """() => {
  const parse = (text) => { const v = text.match(/[\\d.]+/g).map(Number); return v.length > 3 ? v : [...v, 1]; };
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, k) => sum + v * [0.2126, 0.7152, 0.0722][k], 0);
  const behind = (node) => { for (; node; node = node.parentElement) {
    const colour = parse(getComputedStyle(node).backgroundColor); if (colour[3] === 1) return colour; }
    return [255, 255, 255, 1]; };
  const found = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, style = getComputedStyle(node);
    if (!walker.currentNode.textContent.trim() || !node.checkVisibility()) continue;
    const front = light(parse(node instanceof SVGElement ? style.fill : style.color)), back = light(behind(node));
    found.push([(Math.max(front, back) + 0.05) / (Math.min(front, back) + 0.05), node.textContent.slice(0, 40)]);
  }
  return found;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_all_text_has_contrast_in_light_and_in_dark(compared, show, scheme):
    found = show(compared / "report.html", color_scheme=scheme)
    unfold(found)
    measured = found.evaluate(CONTRAST)
    assert len(measured) > 100
    assert [words for ratio, words in measured if ratio < 4.5] == []
    page_is_dark = found.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(16, 19, 23)"
    assert page_is_dark == (scheme == "dark")


def test_a_tap_reads_a_cell_and_the_curves(compared, show):
    found = show(compared / "report.html", 390, has_touch=True, is_mobile=True)
    before = {place: found.locator(place).inner_text() for place in ("#pair", "#curves .readout >> nth=0")}
    for picture, place in (("#weights", "#pair"), ("#curves svg >> nth=0", "#curves .readout >> nth=0")):
        found.locator(picture).scroll_into_view_if_needed()
        box = found.locator(picture).bounding_box()
        found.touchscreen.tap(box["x"] + 0.6 * box["width"], box["y"] + 0.3 * box["height"])
        assert found.locator(place).inner_text() != before[place]
    assert " learns from " in found.locator("#pair").inner_text()
    assert "cobo " in found.locator("#curves .readout").first.inner_text()


def test_dark_comes_and_goes_while_the_page_is_open(compared, show):
    found = show(compared / "report.html")
    light = picture(found)
    found.emulate_media(color_scheme="dark")
    found.wait_for_function("light => document.getElementById('weights').toDataURL() !== light", arg=light)


@pytest.mark.parametrize("width", [390, 768])
def test_a_phone_does_not_scroll_sideways(compared, show, width):
    found = show(compared / "report.html", width)
    unfold(found)
    assert found.evaluate("document.documentElement.scrollWidth") <= width
    for canvas in ("#weights", "#net", "#curves svg >> nth=0"):
        box = found.locator(canvas).bounding_box()
        assert box["x"] >= 0
        assert box["x"] + box["width"] <= width
    found.set_viewport_size({"width": 1000, "height": 800})  # turned: drawn again, wider
    found.wait_for_function("before => document.querySelector('#curves svg').clientWidth !== before", arg=box["width"])


# Whatever the runs are like


def test_hostile_names_are_text(tmp_path, show):
    clients = [blobs(name, seed=k, flip=k % 2 == 1, group="</script>") for k, name in enumerate(HOSTILE)]
    fitted(tmp_path, clients)
    end = "</script><script>alert(3)</script>\u2028"  # as a file from elsewhere may have it
    spoil(tmp_path, ".", lambda facts: facts["names"].__setitem__(0, end))
    spoil(tmp_path, ".", lambda facts: facts["present"].__setitem__(0, end))
    text = built(tmp_path).read_text()
    assert text.count("<script") == 2
    assert "\u2028" not in text
    for width in (1280, 390):
        found = show(tmp_path / "report.html", width)
        assert [row[0] for row in rows(found, "#clients")] == [end, *HOSTILE[1:]]
        assert found.locator("#groups").inner_text().count("alert(3)") == 1
        assert found.locator("img").count() == 0
        assert found.locator("script").count() == 2
        assert found.evaluate("document.documentElement.scrollWidth") <= width


def test_hostile_names_of_experiments_and_folders_are_text(tmp_path, show):
    method, experiment = "<img src=x onerror=alert(6)>", "</title><script>alert(4)</script>"
    fitted(tmp_path / method / "seed-0", [blobs(name, seed=k) for k, name in enumerate("ab")])
    page.write(tmp_path, summary.summarise(tmp_path, experiment, None))
    assert (tmp_path / "report.html").read_text().count("<script") == 2
    found = show(tmp_path / "report.html")
    assert found.title() == f"{experiment} · cobo"
    assert found.locator("#about").inner_text().startswith(f"{experiment}: 6 rounds")
    assert rows(found, "#methods")[0][0].startswith(method)
    assert found.locator("#method option").inner_text() == method
    assert found.locator("img").count() == 0


def test_only_the_pages_own_script_and_style_may_run(compared, show):
    found = show(compared / "report.html")
    policy = found.locator("meta[http-equiv]").get_attribute("content")
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe" not in policy
    assert "http" not in policy
    assert "eval(" not in (compared / "report.html").read_text()


def test_a_run_with_nan_says_so(tmp_path, show):
    clients = [blobs(name, seed=k) for k, name in enumerate("abc")]
    x = torch.full((4, 2), torch.nan)
    clients[1] = cobo.Client("b", train=clients[1].train, test=(x, torch.zeros(4, dtype=torch.long)))
    for method in (cobo.CoBo(), cobo.Local()):
        fitted(tmp_path / method.name / "seed-0", clients, method=method)
    found = show(built(tmp_path))
    for score in ("accuracy", "loss"):
        said = f"No {score} that is a number in the end: local seed 0, cobo seed 0."
        assert said in found.locator("#notes").inner_text()
    assert found.locator("#curves figcaption").count() == 0
    assert rows(found, "#clients")[1][-4:-1] == ["-", "-", "-"]  # b


def test_what_the_runs_warned_of_is_said_once(tmp_path, show):
    clients = [blobs(name, seed=k, flip=k % 2 == 1) for k, name in enumerate("abcd")]
    x, y = torch.full((4, 2), torch.nan), torch.zeros(4, dtype=torch.long)
    clients[1] = cobo.Client("b", train=(x, y), test=clients[1].test)
    for seed in (0, 1):
        fitted(tmp_path / "cobo" / f"seed-{seed}", clients, method=cobo.CoBo(gamma=0.05), seed=seed)
    log = tmp_path / "cobo" / "seed-0" / "events.jsonl"
    log.write_text(log.read_text() + '{"event": "warn\n' + log.read_text())  # killed, and made again
    notes = show(built(tmp_path)).locator("#notes li").all_inner_texts()
    both = "(cobo seed 0, cobo seed 1)."
    (sick,) = [note for note in notes if note.startswith("client 'b' has values ")]
    assert sick.endswith(both)
    assert notes.count(f"Gradient not finite, set aside: b in 6 rounds {both}") == 1
    assert any(note.startswith("W is undecided, ") for note in notes)


def test_many_warnings_are_counted(tmp_path):
    fitted(tmp_path, [blobs("a", seed=0), blobs("b", seed=1)])
    log = tmp_path / "events.jsonl"
    log.write_text("".join(json.dumps({"event": "warning", "message": f"number {k}"}) + "\n" for k in range(20)))
    said = words.notes(summary.summarise(tmp_path, "x", None), summary.read_runs(tmp_path))
    assert said[-2:] == ["number 11 (cobo seed 0).", "8 more warnings are in the runs' events.jsonl."]


def test_a_diverged_run_says_so(copied, show):
    def diverge(facts):
        facts["history"][-1] |= {
            "accuracy": None,
            "loss": None,
            "client_accuracy": [None] * 8,
            "client_loss": [None] * 8,
        }

    spoil(copied, "cobo/seed-1", diverge)
    found = show(built(copied))
    assert "No accuracy that is a number in the end: cobo seed 1." in found.locator("#notes").inner_text()
    assert found.locator("#methods tr", has_text="cobo").locator("td").first.inner_text() == "-"
    assert "at 1 of 4 evaluations of cobo seed 1. Curves have gaps there." in found.locator("#notes").inner_text()
    found.locator("#seed").select_option("1")
    assert "8 clients have no accuracy that is a number" in found.locator("#clients-words").inner_text()


def test_curves_and_their_bands_have_gaps_where_a_seed_has_no_number(copied, show):
    spoil(copied, "cobo/seed-1", lambda facts: facts["history"][2].update(accuracy=None))
    found = show(built(copied))
    unfold(found, "#curves-data")
    shown = [row for row in rows(found, "#curves-data") if row[:2] == ["cobo", "accuracy"]]
    assert [row[3:] == ["-", "-"] for row in shown] == [False, False, True, False]
    colour = found.evaluate("data.looks.cobo.colour")
    chart = found.locator("#curves svg").first
    line = chart.locator(f"path[stroke='{colour}']").get_attribute("d")
    assert (line.count("M"), line.count("L"), line.count("h0")) == (2, 1, 1)
    band = chart.locator(f"path[fill='{colour}']").get_attribute("d")
    assert (band.count("M"), band.count("L"), band.count("Z")) == (2, 4, 2)
    assert "NaN" not in line + band


def test_thinning_a_curve_leaves_its_gaps():
    points = [[{"round": k, "accuracy": None if k in (501, 502, 700) else 1.0}] for k in range(1000)]
    assert build._gaps(points, "accuracy") == [501, 700]
    history = [{"round": k, **line} for k, (line,) in enumerate(points)]
    curve = build._curves({"cobo": {0: {"history": history}}})["accuracy"]["cobo"]
    gaps = [k for k, mean in zip(curve["round"], curve["mean"], strict=True) if mean is None]
    assert set(gaps) - {502} == {501, 700}


def test_one_evaluation_is_a_point_and_said(copied, show):
    for run in copied.glob("*/seed-*"):
        spoil(copied, str(run.relative_to(copied)), lambda facts: facts.update(history=facts["history"][-1:]))
    found = show(built(copied))
    assert "Evaluated only once" in found.locator("#notes").inner_text()
    assert found.locator("#curves svg").first.locator("circle").count() == 4


def test_a_missing_seed_is_said_and_the_others_are_shown(copied, show):
    (copied / "cobo" / "seed-1" / "result.json").unlink()
    found = show(built(copied))
    said = found.locator("#notes").inner_text()
    assert "Begun but not finished, and not shown: cobo seed-1." in said
    assert "Not all methods have all seeds: cobo has 0." in said
    assert found.locator("#seed option").all_inner_texts() == ["0"]
    assert "cobo*" in found.locator("#methods").inner_text()
    assert "cobo run experiment.toml --method oracle --seed 1 --out again" in found.locator("#command").inner_text()


def test_local_only_has_no_w_and_says_so(copied, show):
    for method in METHODS[1:]:
        shutil.rmtree(copied / method)
    found = show(built(copied))
    assert found.locator("h1").inner_text() == "Local learns no weights between clients."
    assert (
        found.locator("#graph-words").inner_text()
        == "local learns no weights between clients, so there is no W to show."
    )
    assert not found.locator("#weights").is_visible()
    assert not found.locator("#play").is_visible()
    assert len(rows(found, "#clients")) == 8


def test_who_has_left_is_grey_and_in_no_group(tmp_path, show):
    clients = [blobs(name, seed=k) for k, name in enumerate("abcd")]
    fitted(tmp_path, clients, roster=cobo.Roster(changes=[{"round": 3, "leave": "b"}]))
    found = show(built(tmp_path))
    assert "1 client had left before the end (grey)." in found.locator("#graph-words").inner_text()
    assert found.evaluate("state.run.graph.labels").index("b") == 3
    assert "Local was not run here" in found.locator("#notes").inner_text()
    unfold(found, "#weights-data")
    assert rows(found, "#weights-data")[3][1:] == ["-"] * 4


def test_who_has_left_is_not_called_lost_where_there_is_no_w(tmp_path, show):
    roster = cobo.Roster(changes=[{"round": 3, "leave": "b"}])
    fitted(tmp_path, [blobs(name, seed=k) for k, name in enumerate("abcd")], method=cobo.Local(), roster=roster)
    found = show(built(tmp_path))
    assert rows(found, "#clients")[1] == ["b", "-"]
    assert "that is a number" not in found.locator("#clients-words").inner_text()


LOOKS = """() => { // of the marks that the graph draws, by group
  const seen = {}, draw = mark;
  mark = (pen, g, x, y, r) => {
    const own = document.createElement("canvas");
    draw(own.getContext("2d"), g, 20, 20, r);
    seen[g] = own.toDataURL();
    draw(pen, g, x, y, r);
  };
  drawGraph();
  mark = draw;
  return Object.values(seen);
}"""
WRITTEN = """() => { // what is written into a heat map
  const words = [], write = CanvasRenderingContext2D.prototype.fillText;
  CanvasRenderingContext2D.prototype.fillText = (text) => words.push(text);
  heatMap(byId("weights"), state.run.graph, cellsOf(state.run));
  CanvasRenderingContext2D.prototype.fillText = write;
  return words;
}"""


def test_ten_groups_of_eight_look_different_and_are_named(tmp_path, show):
    clients = [blobs(f"client {k}", seed=k, samples=2, group=k % 10) for k in range(80)]
    fitted(tmp_path, clients, method=cobo.Oracle(), rounds=1)
    found = show(built(tmp_path))
    assert found.evaluate("state.run.found.map(group => group.length)") == [8] * 10
    assert len(set(found.evaluate(LOOKS))) == 10
    listed = found.locator("#groups canvas").evaluate_all("marks => marks.map(mark => mark.toDataURL())")
    assert (len(listed), len(set(listed))) == (10, 10)
    assert found.evaluate(WRITTEN) == [f"group {g}" for g in range(1, 11) for _ in ("left", "below")]
    assert "The axes name groups" in found.locator("#graph-words").inner_text()
    marks = "[...Array(64).keys()].map((g) => dot(g).toDataURL())"
    assert len(set(found.evaluate(marks))) == 64


LABELS = """() => { // what is written into the pictures of W and of the graph: words, and the boxes of their letters
  const found = { weights: [], net: [] }, own = CanvasRenderingContext2D.prototype, write = own.fillText;
  own.fillText = function (text, x, y) {
    const m = this.measureText(text), t = this.getTransform(), ratio = window.devicePixelRatio;
    const across = [x - m.actualBoundingBoxLeft, x + m.actualBoundingBoxRight];
    const down = [y - m.actualBoundingBoxAscent, y + m.actualBoundingBoxDescent];
    const corners = across.flatMap((a) => down.map((b) => t.transformPoint(new DOMPoint(a, b))));
    const [xs, ys] = ["x", "y"].map((side) => corners.map((corner) => corner[side] / ratio));
    found[this.canvas.id]?.push([text, Math.min(...xs), Math.min(...ys), Math.max(...xs), Math.max(...ys)]);
    write.call(this, text, x, y);
  };
  drawGraph();
  own.fillText = write;
  return found;
}"""


@pytest.mark.parametrize(("clients", "groups"), [(24, 2), (40, 4), (1000, 20)])
def test_names_in_pictures_are_not_over_each_other_nor_cut(tmp_path, show, clients, groups):
    named = [blobs(f"hospital-north-{k:02}", seed=k, samples=2, group=k % groups) for k in range(clients)]
    fitted(tmp_path, named, method=cobo.Oracle(), rounds=1)
    built(tmp_path)
    for width in (1280, 390):
        found = show(tmp_path / "report.html", width)
        written = found.evaluate(LABELS)
        assert len(written["weights"]) > 2 * groups - 1
        assert bool(written["net"]) == (clients != 40)  # of so many the graph names nobody
        for picture, labels in written.items():
            box = found.locator(f"#{picture}").bounding_box()
            for text, left, top, right, bottom in labels:
                assert left >= -1, (text, width)
                assert top >= -1, (text, width)
                assert right <= box["width"] + 1, (text, width)
                assert bottom <= box["height"] + 1, (text, width)
            for k, (one, left, top, right, bottom) in enumerate(labels):
                for other, a, b, c, d in labels[:k]:
                    assert not (left < c and a < right and top < d and b < bottom), (picture, width, one, other)


def test_names_that_differ_at_their_end_can_be_told_apart(tmp_path, show):
    fitted(tmp_path, [blobs(f"hospital-north-{k:02}", seed=k) for k in range(4)])
    labels = show(built(tmp_path)).evaluate(LABELS)["weights"]
    assert {text for text, *_ in labels} == {f"hospita…orth-{k:02}" for k in range(4)}


# Size


@pytest.fixture(scope="module")
def eighty(tmp_path_factory):
    """Eighty clients, two hundred snapshots of W."""
    folder = tmp_path_factory.mktemp("eighty")
    clients = [blobs(f"client {k}", seed=k, flip=k % 2 == 1, samples=8, group=k % 2) for k in range(80)]
    fitted(folder / "cobo" / "seed-0", clients, rounds=200, evaluate_every=200)
    return folder


def test_eighty_clients_and_two_hundred_snapshots_are_a_small_page(eighty, show):
    path = built(eighty)
    assert path.stat().st_size < 3e6
    found = show(path)
    assert found.evaluate("state.run.graph.rounds.length") == 201
    assert "Thinned" not in found.locator("#graph-words").inner_text()
    assert len(rows(found, "#clients")) == 80
    start = picture(found)
    found.locator("#slider").press("Home")
    assert picture(found) != start


def test_the_page_stays_below_twelve_megabytes_with_many_runs_and_says_that_w_is_thinned(eighty, tmp_path, show):
    without = shutil.ignore_patterns("models")
    for seed in range(12):
        shutil.copytree(eighty / "cobo" / "seed-0", tmp_path / "cobo" / f"seed-{seed}", ignore=without)
    path = built(tmp_path)
    assert path.stat().st_size < 12e6
    found = show(path)
    kept = graphs.BYTES // 12 // 80**2
    assert f"Thinned: {kept} of 201 recorded rounds are shown, evenly." in found.locator("#graph-words").inner_text()
    assert found.evaluate("state.run.graph.rounds.at(0)") == 0
    assert found.evaluate("state.run.graph.rounds.at(-1)") == 200


def test_of_very_many_runs_the_first_seed_of_each_method_has_its_w(tmp_path, show, monkeypatch):
    clients = [blobs(name, seed=k, group=k % 2) for k, name in enumerate("abcd")]
    for seed in range(3):
        for method in (cobo.CoBo(), cobo.Oracle()):
            fitted(tmp_path / method.name / f"seed-{seed}", clients, method=method, seed=seed)
    runs = summary.read_runs(tmp_path)
    whole = build.gathered(tmp_path, summary.summarise(tmp_path, "x", None), runs)
    assert len(whole["truths"]) <= len({str(run["found"]) for run in whole["runs"]})
    assert not any(run["left_out"] for run in whole["runs"])
    monkeypatch.setattr(graphs, "BYTES", 6 * 2 * 4**2 - 1)  # less than two of each
    assert graphs.shares(runs) == dict.fromkeys([("cobo", 0), ("oracle", 0)], graphs.BYTES // 2 + 1)
    found = show(built(tmp_path))
    assert found.evaluate("data.runs.filter(run => run.graph).map(run => [run.method, run.seed])") == [
        ["cobo", 0], ["oracle", 0]
    ]  # fmt: skip
    found.locator("#seed").select_option("2")
    assert found.locator("#graph-words").inner_text().startswith("W of this run is left out")
    assert not found.locator("#weights").is_visible()
    assert "learns most from" in found.locator("#clients").inner_text()


def test_a_thousand_clients_are_shown_by_groups(tmp_path, show):
    clients = [blobs(f"client {k}", seed=k, samples=2, group=("a", "b", "c", "c")[k % 4]) for k in range(1000)]
    fitted(tmp_path, clients, method=cobo.Oracle(), rounds=1)
    path = built(tmp_path)
    assert path.stat().st_size < 1e6
    found = show(path)
    assert "1,000 clients are too many for a row each" in found.locator("#graph-words").inner_text()
    assert found.locator("#groups li").all_inner_texts() == [
        "group 1, 500 clients", "group 2, 250 clients", "group 3, 250 clients"
    ]  # fmt: skip
    unfold(found, "#weights-data")
    assert [row[1:] for row in rows(found, "#weights-data")] == [
        ["1.00", "0.00", "0.00"], ["0.00", "1.00", "0.00"], ["0.00", "0.00", "1.00"]
    ]  # fmt: skip
    assert found.locator("#clients tbody tr").count() == 1000


def once(read):
    known: list = []
    return lambda *given: copy.deepcopy((known or known.append(read(*given)) or known)[0])


def test_a_thousand_clients_in_eighty_runs_stay_below_twelve_megabytes(tmp_path, monkeypatch):
    names = [f"client number {k:04} of one thousand" for k in range(1000)]
    clients = [blobs(name, seed=k, samples=2, group=f"group {k % 60}") for k, name in enumerate(names)]
    fitted(tmp_path, clients, method=cobo.Oracle(), rounds=1)
    (run,) = summary.read_runs(tmp_path)["oracle"].values()
    runs = {f"method {k}": dict.fromkeys(range(10), run) for k in range(8)}
    results = summary.summarise(tmp_path, "x", None)
    results |= {"methods": dict.fromkeys(runs, results["methods"]["oracle"]), "seeds": list(range(10))}
    W = np.array(run["weights"], dtype=np.float32)
    monkeypatch.setattr(graphs, "read_snapshots", lambda run: [(k, W) for k in range(40)])
    for part in ("found", "peers", "shown"):  # all runs are the same one, which need not be read so often
        monkeypatch.setattr(graphs, part, once(getattr(graphs, part)))
    data = build.gathered(tmp_path, results, runs)
    assert 10e6 < len(build.page(data)) < 12e6
    assert all(len(run["graph"]["rounds"]) >= 2 for run in data["runs"])


def test_very_many_groups_are_parted_into_the_large_and_the_rest():
    names = [str(k) for k in range(300)]
    groups = [[3 * k, 3 * k + 1, 3 * k + 2] for k in range(70)] + [[k] for k in range(210, 299)]
    picture = graphs.rows(names, graphs.Found(groups, [299]))
    clients = picture.clients
    assert len(clients) == graphs.MOST_GROUPS + 1
    assert picture.labels[-3:] == ["group 59", "100 small groups", "have left"]
    assert picture.groups[-2:] == [59, -1]
    assert sorted(k for row in clients for k in row) == list(range(300))
    W = np.random.default_rng(0).random((300, 300))
    np.fill_diagonal(W, np.nan)
    blocks = graphs.blocks(picture, W)
    assert blocks[0, 1] == pytest.approx(W[np.ix_(clients[0], clients[1])].mean())
    assert blocks[0, 0] == pytest.approx(np.nanmean(W[np.ix_(clients[0], clients[0])]))
