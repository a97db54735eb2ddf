"""Wikipedia in several languages, a text file each: found on this computer."""

from pathlib import Path

from cobo.data import store
from cobo.data.source import Source
from cobo.data.text import documents
from cobo.errors import DataError

NAME = "wikipedia"
LANGUAGES = ("ca", "es", "de", "nl")


def wikipedia(language: str) -> list[str]:
    """The documents of a language ("ca"), from $COBO_DATA/wikipedia/ca.txt or the user's cache."""
    folder = locate()
    if folder is None:
        raise DataError(f"{NAME}: there is no {language}.txt, looked for in {_looked()}; {HINT}")
    return documents(folder / f"{language}.txt").train


def locate() -> Path | None:
    """The first folder that has all four languages, if there is one."""
    return next((f for f in store.folders(NAME) if all((f / f"{code}.txt").is_file() for code in LANGUAGES)), None)


def _looked() -> str:
    return ", ".join(str(folder) for folder in store.folders(NAME))


HINT = (
    f"put {', '.join(f'{code}.txt' for code in LANGUAGES)} into {NAME} in a folder that COBO_DATA names, or set texts"
)
SOURCE = Source(NAME, "articles in Catalan, Spanish, German and Dutch, a text file each", locate=locate, hint=HINT)
