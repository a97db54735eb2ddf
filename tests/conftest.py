"""Shared by all tests: one torch thread per test process, small federations that a person can check by hand, a
user with nothing on the computer but a server, a real browser, and the real CIFAR-100 where it is."""

import os
import shutil
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

import cobo
from cobo.compute.task import Task
from cobo.federation import Federation
from cobo.methods import State

sys.path.insert(0, str(Path(__file__).parent))
os.environ["HF_HUB_OFFLINE"] = "1"  # before anything of Hugging Face is imported


@pytest.fixture(autouse=True, scope="session")
def _one_thread():
    torch.set_num_threads(1)


class Point(nn.Module):
    """A model that is a point x; with `quadratic`, a client's loss is a/2 |x - mu|^2."""

    def __init__(self, start: list[float], dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.x = nn.Parameter(torch.tensor(start, dtype=dtype))


def quadratic(module: nn.Module, batch: dict[str, Tensor]) -> Tensor:
    return (0.5 * batch["a"] * (module.x - batch["mu"]).square().sum(-1)).mean()


def point_client(name: str, mu: list[float], a: float = 1.0, group=None, samples: int = 2) -> cobo.Client:
    """All samples are alike, so that stochastic gradients are exact."""
    data = {"mu": torch.tensor([mu] * samples).double(), "a": torch.tensor([a] * samples).double()}
    return cobo.Client(name, train=data, test=data, group=group)


def blobs(name: str, *, seed: int, flip: bool = False, samples: int = 40, group=None) -> cobo.Client:
    """Two classes of points in the plane; `flip` swaps the labels."""
    generator = torch.Generator().manual_seed(seed)
    y = torch.randint(0, 2, (samples,), generator=generator)
    x = torch.randn(samples, 2, generator=generator) + 3 * (y[:, None] - 0.5)
    return cobo.Client(name, train=(x, 1 - y if flip else y), test=(x, 1 - y if flip else y), group=group)


def started(clients, model, method, *, lr=0.1, momentum=0.0, rounds=1000, objective=None, **options):
    """A federation and a method's state before its first round."""
    federation = Federation(clients, model, task=Task(objective=objective), **options)
    X = nn.Parameter(method.rows(federation))
    state = State(X, torch.optim.SGD([X], lr=lr, momentum=momentum), rounds, tensors=method.start(federation))
    return federation, state


def play(method, federation, state, rounds):
    for _ in range(rounds):
        method.round(state, federation)
        state.round += 1


def labels_apart(ax) -> list[str]:
    """What stands below the axis of a figure, after it was seen that nothing is over anything else."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    FigureCanvasAgg(ax.figure).draw()
    shown = [label for label in ax.get_xticklabels(which="both") if label.get_visible() and label.get_text()]
    left, right = sorted(ax.get_xlim())
    shown = [label for label in shown if left <= label.get_position()[0] <= right]
    boxes = [label.get_window_extent() for label in shown]
    over = [(shown[k].get_text(), shown[j].get_text()) for k in range(len(boxes)) for j in range(k)
            if boxes[k].overlaps(boxes[j])]  # fmt: skip
    assert over == []
    return [label.get_text() for label in shown]


@pytest.fixture
def home(tmp_path, monkeypatch):
    """A user with an empty cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("COBO_DATA", raising=False)
    return tmp_path


@pytest.fixture
def server():
    """A real server on this computer; `bodies` is what it sends, `asked` what it was asked for."""
    bodies: dict[str, bytes] = {}
    asked: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            asked.append(self.path)
            body = bodies.get(self.path)
            self.send_response(404 if body is None else 200)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, *args):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as running:
        thread = threading.Thread(target=running.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        running.address = f"http://127.0.0.1:{running.server_port}"
        running.bodies, running.asked = bodies, asked
        yield running
        running.shutdown()
        thread.join()


def _without_browser(why: str) -> None:
    (pytest.fail if os.environ.get("COBO_NEEDS_BROWSER") else pytest.skip)(why)


@pytest.fixture(scope="module")
def browser():
    """Chromium, or the tests that need one are skipped; with COBO_NEEDS_BROWSER they fail."""
    path = shutil.which("chromium") or shutil.which("chromium-browser")
    try:
        import playwright.sync_api as playwright
    except ModuleNotFoundError:
        _without_browser("playwright is not installed (pip install -e '.[dev]')")
    if path is None:
        _without_browser("there is no chromium (Debian: apt-get install chromium)")
    with playwright.sync_playwright() as running:
        launched = running.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--headless", "--disable-background-networking"]
        )
        yield launched
        launched.close()


UNPACK = Path(__file__).parent.parent.parent / "shared" / "data" / "unpack_cifar100.py"


@pytest.fixture(scope="session")
def real(tmp_path_factory):
    """A folder with the real CIFAR-100 in the binary version."""
    if not UNPACK.exists():
        pytest.skip("CIFAR-100 is not beside this repository (shared/data/unpack_cifar100.py)")
    folder = tmp_path_factory.mktemp("cifar100")
    subprocess.run([sys.executable, str(UNPACK), str(folder)], check=True, capture_output=True)
    yield folder
    shutil.rmtree(folder)
