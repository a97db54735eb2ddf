"""Where a figure comes from: the command, the commit, the machine."""

import os
import platform
import subprocess
import sys
from pathlib import Path

import torch


def origin() -> dict[str, str | int | None]:
    """What to write beside every measured number."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, cwd=Path(__file__).parent, check=False
    )
    return {
        "command": " ".join(["python", *sys.argv]),
        "commit": commit.stdout.strip() or None,
        "torch": torch.__version__,
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} cores",
    }
