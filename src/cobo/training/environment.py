"""What a run was made with: versions, the machine, and the commit where cobo runs from its own repository."""

import os
import platform
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import torch

import cobo


def environment() -> dict[str, Any]:
    """Of this process, as it is now."""
    return {
        "cobo": cobo.__version__,
        "commit": _commit(),
        "torch": torch.__version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
    }


@cache
def _commit() -> str | None:
    root = Path(__file__).parents[3]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude=*"]
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return None
