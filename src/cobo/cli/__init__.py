"""The `cobo` command: reads arguments, calls the library, turns errors into one line and an exit code."""

import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout

import click

from cobo.cli import flower, runs, views
from cobo.cli.terminal import Stopped, app
from cobo.compute.allocator import keep_freed_memory
from cobo.engines import join
from cobo.errors import CheckpointError, CoboError, ConfigError, DataError, RunWarning

__all__ = ["flower", "main", "runs", "views"]

SHARED = ("run", "compare", "demo")  # commands whose runs torchrun's processes share


def main() -> None:
    """Run the command line: 0 success, 1 a run failed, 2 bad usage or configuration, 130 stopped by the user."""
    keep_freed_memory()
    warnings.simplefilter("ignore", RunWarning)  # its own lines say them
    try:
        with _only_the_first_speaks():
            code = app(prog_name="cobo", standalone_mode=False)
        _end(code)
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        _fail(_usage(error), 2)
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


@contextmanager
def _only_the_first_speaks() -> Iterator[None]:
    """Of the processes that torchrun started, until something goes wrong."""
    if join().size > 1:
        command = next((word for word in sys.argv[1:] if not word.startswith("-")), "run")
        if command not in SHARED:
            raise ConfigError(
                f"{command} cannot be run by several processes, only {', '.join(SHARED)}; leave torchrun out"
            )
    if join().leads:
        yield
        return
    with open(os.devnull, "w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def _usage(error: click.ClickException) -> str:
    """What is wrong with the command, and where its usage is said."""
    suggested = "Did you mean" in error.message  # by typer, to which click would add the same again
    context = getattr(error, "ctx", None)
    command = "cobo" if context is None else context.command_path
    return f"{error.message if suggested else error.format_message()} (see `{command} --help`)"


def _fail(message: str, code: int) -> None:
    if join().speaks():
        sys.stderr.write(f"cobo: {message}\n")
    _end(code)


def _end(code: int | None) -> None:
    if join().size == 1:
        sys.exit(code)
    join().leave()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code or 0)  # threads of torch's that are still there when Python ends can bring the process down
