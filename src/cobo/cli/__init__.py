"""The `cobo` command: reads arguments, calls the library, turns errors into one line and an exit code."""

import sys

import click

from cobo.cli import flower, runs, views
from cobo.cli.terminal import Stopped, app
from cobo.compute.allocator import keep_freed_memory
from cobo.errors import CheckpointError, CoboError, ConfigError, DataError

__all__ = ["flower", "main", "runs", "views"]


def main() -> None:
    """Run the command line: 0 success, 1 a run failed, 2 bad usage or configuration, 130 stopped by the user."""
    keep_freed_memory()
    try:
        sys.exit(app(standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _fail(f"{error.format_message()} (see `cobo --help`)", 2)
    except Stopped as stop:
        _fail(str(stop), 130)
    except (ConfigError, DataError, CheckpointError) as error:
        _fail(str(error), 2)
    except CoboError as error:
        _fail(str(error), 1)
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror}; nothing that was written before is lost", 1)
    except (KeyboardInterrupt, click.Abort):
        _fail("stopped by the user", 130)


def _fail(message: str, code: int) -> None:
    sys.stderr.write(f"cobo: {message}\n")
    sys.exit(code)
