"""`python -m cobo` is the `cobo` command."""

from cobo.cli import main

main()
