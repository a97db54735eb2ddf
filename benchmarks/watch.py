"""What being watched costs a run: the same run with and without `cobo watch` and an open page, in turn.

    python benchmarks/watch.py [--repeat 5] [--rounds 1000] [--experiment digits]

The page is open in a real browser (chromium), which asks once a second and draws what is new. Seconds are those of
the run itself, as it records them, without the start of Python. The ratio is the median over pairs of neighbours, the
order turned round from pair to pair, so that a noisy machine does little harm.
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
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from playwright.sync_api import Browser, sync_playwright


def trained(experiment: str, rounds: int, out: Path) -> float:
    """The seconds that a run takes."""
    command = [sys.executable, "-m", "cobo", "run", experiment, "--rounds", str(rounds), "--out", str(out)]
    subprocess.run(command, check=True, capture_output=True)
    lines = (out / "cobo" / "seed-0" / "metrics.jsonl").read_text().splitlines()
    return float(json.loads(lines[-1])["seconds"])


@contextmanager
def watched(browser: Browser, folder: Path) -> Iterator[list[str]]:
    """Inside, a page shows the folder; the list is of the answers with something new that it got."""
    command = [sys.executable, "-m", "cobo", "watch", str(folder), "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found is not None
        page, news = browser.new_page(), []
        page.on("response", lambda answer: news.append(answer.url) if answer.status == 200 else None)
        page.goto(found[0])
        try:
            yield news
            page.wait_for_timeout(100)  # the library hears of answers only when it is called
        finally:
            page.close()
            server.terminate()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--experiment", default="digits")
    options = parser.parse_args()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True).stdout.strip()
    print(
        f"{options.experiment}, {options.rounds} rounds; commit {commit}, {platform.machine()}, {os.cpu_count()} cores"
    )
    ratios = []
    with sync_playwright() as running, tempfile.TemporaryDirectory() as place:
        browser = running.chromium.launch(
            executable_path=shutil.which("chromium"),
            args=["--no-sandbox", "--headless", "--disable-background-networking"],
        )
        for k in range(options.repeat):
            seconds = {}
            for watching in (k % 2 == 0, k % 2 == 1):
                folder = Path(place) / f"{k}-{watching}"
                if not watching:
                    seconds["alone"] = trained(options.experiment, options.rounds, folder)
                    continue
                with watched(browser, folder) as news:
                    seconds["watched"] = trained(options.experiment, options.rounds, folder)
            ratios.append(seconds["watched"] / seconds["alone"])
            said = ", ".join(f"{how} {took:.2f} s" for how, took in seconds.items())
            print(f"{said}: {ratios[-1]:.3f} ({len(news)} updates)", flush=True)
        browser.close()
    print(
        f"watched / alone, median of {len(ratios)}: {median(ratios):.3f} (from {min(ratios):.3f} to {max(ratios):.3f})"
    )


if __name__ == "__main__":
    main()
