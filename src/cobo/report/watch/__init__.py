"""`cobo watch`: the page of a folder of runs while they go on. It only reads: no run knows of it."""

from cobo.report.watch.now import Now
from cobo.report.watch.server import serve

__all__ = ["Now", "serve"]
