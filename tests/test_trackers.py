"""TensorBoard and Weights & Biases: the same metrics under the same names, W as an image, nothing needed otherwise."""

import importlib.util
import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from conftest import blobs
from PIL import Image

import cobo
from cobo.cli import runs
from cobo.errors import ConfigError
from cobo.training.trackers import SMALLEST, TensorBoard, WandB, picture


def fitted(**options) -> cobo.Result:
    clients = [blobs(name, seed=k, flip=k % 2 == 1) for k, name in enumerate("abcd")]
    return cobo.fit(clients, model=lambda: torch.nn.Linear(2, 2), rounds=4, evaluate_every=2, lr=0.1, **options)


def accumulated(folder: Path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"images": 0})
    found.Reload()
    return found


def test_w_is_an_image_in_which_a_square_is_a_weight():
    W = np.array([[0.0, 0.5], [1.0, 0.25]], dtype=np.float32)
    pixels, side = picture(W, simplex=False), SMALLEST // 2
    assert pixels.shape == (SMALLEST, SMALLEST, 3)
    assert len(np.unique(pixels[:side, side:].reshape(-1, 3), axis=0)) == 1
    brightness = pixels[::side, ::side].astype(float).sum(-1)
    assert np.argsort(-brightness.ravel()).tolist() == [0, 3, 1, 2]  # the larger, the darker
    np.testing.assert_array_equal(picture(W / 4, simplex=True), picture(W, simplex=False))


def test_tensorboard_has_w_as_an_image_at_every_evaluation(tmp_path):
    result = fitted(listeners=[TensorBoard(tmp_path)])
    images = accumulated(tmp_path).Images("W")
    assert [image.step for image in images] == [0, 2, 4]
    shown = np.array(Image.open(io.BytesIO(images[-1].encoded_image_string)))
    np.testing.assert_array_equal(shown, picture(result.weights, simplex=False))


def test_a_run_that_is_resumed_goes_on_in_its_curve_and_one_made_again_has_its_place(tmp_path):
    def killed(event):
        if event["event"] == "evaluated" and event["round"] == 4:
            raise KeyboardInterrupt

    def steps():
        return [scalar.step for scalar in accumulated(tmp_path / "board").Scalars("loss")]

    with pytest.raises(KeyboardInterrupt), TensorBoard(tmp_path / "board") as board:
        fitted(out=tmp_path / "run", listeners=[board, killed])  # after it was written and before it was saved
    assert steps() == [0, 2, 4]  # nothing is lost, whatever ended the run
    fitted(out=tmp_path / "run", resume=True, listeners=[TensorBoard(tmp_path / "board")])
    assert steps() == [0, 2, 4]
    fitted(listeners=[TensorBoard(tmp_path / "board")])
    assert steps() == [0, 2, 4]


def test_from_the_command_line_each_run_has_a_board_of_its_own_which_is_closed(tmp_path, monkeypatch):
    made = []

    class Board(TensorBoard):
        def __init__(self, folder):
            made.append((folder, self))

        def end(self, how):
            made.append(how)

    def fail(*_, listeners, **__):
        assert listeners == [made[0][1]]
        raise ZeroDivisionError

    monkeypatch.setattr(runs, "TensorBoard", Board)
    monkeypatch.setattr(runs, "run_one", fail)
    with pytest.raises(ZeroDivisionError):
        runs.run("digits", method="ditto", seed=3, out=tmp_path, tensorboard=tmp_path / "boards")
    assert (made[0][0], made[1]) == (tmp_path / "boards" / "ditto" / "seed-3", "failed")


def test_w_is_not_in_the_log_of_events(tmp_path):
    fitted(out=tmp_path)
    kinds = {json.loads(line)["event"] for line in (tmp_path / "events.jsonl").read_text().splitlines()}
    assert "evaluated" in kinds
    assert "weights" not in kinds


def test_a_tracker_that_is_not_installed_is_one_line(monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(
        ConfigError, match=r"Weights & Biases needs the extra; in cobo's clone: pip install '\.\[wandb\]'"
    ):
        WandB("project")
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(
        ConfigError, match=r"TensorBoard needs the extra; in cobo's clone: pip install '\.\[tensorboard\]'"
    ):
        TensorBoard("folder")


OFFLINE = """
import json, sys
sys.path.insert(0, {tests!r})
from test_trackers import fitted
from cobo.training.trackers import TensorBoard, WandB

class Told(WandB):
    def end(self, how):
        print(json.dumps({{key: value for key, value in dict(self._run.summary).items() if key != "W"}}))
        print(json.dumps({{key: dict(self._run.config)[key] for key in ("method", "clients")}}))
        super().end(how)

fitted(listeners=[Told("project", dir={folder!r}, mode="offline"), TensorBoard({folder!r})])
"""


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("wandb") is None, reason="wandb is not installed (pip install -e '.[dev]')"
)
def test_weights_and_biases_offline_has_the_names_and_values_of_tensorboard_and_w(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_ERROR_REPORTING", "false")
    monkeypatch.setenv("WANDB_SILENT", "true")
    script = OFFLINE.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    told = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True, timeout=300)
    summary, config = (json.loads(line) for line in told.stdout.splitlines()[-2:])
    board = accumulated(tmp_path)
    measured = {name: value for name, value in summary.items() if not name.startswith("_")}
    assert measured.pop("round") == 4
    assert set(measured) == set(board.Tags()["scalars"])
    assert {"accuracy", "loss", "settled", "groups", "gradients", "seconds", "accuracy/a", "loss/d"} <= set(measured)
    for name, value in measured.items():
        assert board.Scalars(name)[-1].value == pytest.approx(value)
    assert (config["method"]["name"], config["clients"]) == ("cobo", list("abcd"))
    images = tmp_path.glob("wandb/offline-run-*/files/media/images/W_*.png")
    drawn = [
        np.array(Image.open(path).convert("RGB"))
        for path in sorted(images, key=lambda path: int(path.name.split("_")[1]))
    ]
    kept = [np.array(Image.open(io.BytesIO(image.encoded_image_string))) for image in board.Images("W")]
    np.testing.assert_array_equal(drawn, kept)
