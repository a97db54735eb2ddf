"""What being watched costs a run: the server's share of a core, and the same run with and without being watched.

    python benchmarks/watch.py [--repeat 5] [--rounds 1000]

Digits, with 8 and with 80 clients. The page is open in a real browser (chromium), which asks once a second and draws
what is new. The share is the seconds of CPU that `cobo watch` takes while the run's process goes on, by the seconds
that this takes: steady, as it counts nothing else. The ratio is of the seconds of the run itself, as it records them,
without the start of Python; it has the browser in it, too, and the noise of the machine, for which it is the median
over pairs of neighbours, the order turned round from pair to pair. Linux only.
"""

import argparse
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, sync_playwright

CLIENTS = {8: (), 80: ("--set", "clients_per_group=20", "--set", "samples=15")}


class Server:
    """A `cobo watch` that runs; `news` are the answers with something new that the page got."""

    def __init__(self, pid: int) -> None:
        self.news: list[str] = []
        self._pid = pid
        self._begun, self._cpu = time.monotonic(), self._cpu_seconds()

    @property
    def share(self) -> float:
        """Of one core, since the page was opened."""
        return (self._cpu_seconds() - self._cpu) / (time.monotonic() - self._begun)

    def _cpu_seconds(self) -> float:
        """Of user and system, fields 14 and 15 of what the kernel says."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def trained(clients: int, rounds: int, out: Path) -> float:
    """The seconds that a run takes."""
    command = [sys.executable, "-m", "cobo", "run", "digits", "--rounds", str(rounds), "--out", str(out)]
    subprocess.run([*command, *CLIENTS[clients]], check=True, capture_output=True)
    lines = (out / "cobo" / "seed-0" / "metrics.jsonl").read_text().splitlines()
    return float(json.loads(lines[-1])["seconds"])


@contextmanager
def watched(browser: Browser, folder: Path) -> Iterator[Server]:
    """Inside, a page shows the folder."""
    command = [sys.executable, "-m", "cobo", "watch", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        found = re.search(r"http://\S+", process.stdout.readline())
        assert found is not None
        page = browser.new_page()
        page.goto(found[0])
        server = Server(process.pid)
        page.on("response", lambda answer: server.news.append(answer.url) if answer.status == 200 else None)
        try:
            yield server
            page.wait_for_timeout(100)  # the library hears of answers only when it is called
        finally:
            page.close()
            process.terminate()


def measure(browser: Browser, clients: int, rounds: int, repeat: int, place: Path) -> None:
    ratios, shares = [], []
    for k in range(repeat):
        seconds = {}
        for watching in (k % 2 == 0, k % 2 == 1):
            folder = place / f"{clients}-{k}-{watching}"
            if not watching:
                seconds["alone"] = trained(clients, rounds, folder)
                continue
            with watched(browser, folder) as server:
                seconds["watched"] = trained(clients, rounds, folder)
                shares.append(server.share)
        ratios.append(seconds["watched"] / seconds["alone"])
        said = ", ".join(f"{how} {took:.2f} s" for how, took in seconds.items())
        print(
            f"{said}: {ratios[-1]:.3f}; server {100 * shares[-1]:.1f} % of a core, {len(server.news)} updates",
            flush=True,
        )
    for what, found in (("server's share of a core", shares), ("watched / alone", ratios)):
        print(
            f"{clients} clients: {what}, median of {repeat}: {median(found):.3f} ({min(found):.3f} to {max(found):.3f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1000)
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(f"digits, {options.rounds} rounds; commit {commit}, {platform.machine()}, {os.cpu_count()} cores")
    with sync_playwright() as running, tempfile.TemporaryDirectory() as place:
        browser = running.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--headless", "--disable-background-networking"],
        )
        for clients in CLIENTS:
            measure(browser, clients, options.rounds, options.repeat, Path(place))
        browser.close()


if __name__ == "__main__":
    main()
