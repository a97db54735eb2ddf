"""report.html: one page that shows all of a folder of runs, and asks nothing of any network."""

from cobo.report.page.build import write

__all__ = ["write"]
