"""LibreOffice's help in several languages, from Debian's packages: one source, so that only the language differs."""

from functools import lru_cache
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path

from cobo.data.source import Source
from cobo.errors import DataError

NAME = "libreoffice-help"
FOLDER = Path("/usr/share/libreoffice/help")
LANGUAGES = ("ca", "es", "de", "nl")
SHORTEST = 40  # characters of a paragraph that is kept


def libreoffice_help(language: str, folder: Path = FOLDER) -> list[str]:
    """A document for each page: its paragraphs, each once in all pages, but for those that are not translated.

    What reads the same in two languages is not. Pages come in an order that looks random and is the same in every
    language, so the last ones are of all books, and about the same pages whatever the language.
    """
    if not (folder / language / "text").is_dir():
        raise DataError(f"{NAME}: {folder / language} is not there; install Debian's package {NAME}-{language}")
    others = [code for code in LANGUAGES if code != language and (folder / code / "text").is_dir()]
    seen = {paragraph for code in others for page in _pages(folder / code) for paragraph in page}
    found = []
    for page in _pages(folder / language):
        fresh = [paragraph for paragraph in page if paragraph not in seen]
        seen.update(fresh)
        if fresh:
            found.append("\n".join(dict.fromkeys(fresh)))
    return found


def locate(folder: Path = FOLDER) -> Path | None:
    """The folder of the packages, if all four languages are there."""
    return folder if all((folder / code / "text").is_dir() for code in LANGUAGES) else None


@lru_cache(maxsize=len(LANGUAGES))
def _pages(folder: Path) -> list[list[str]]:
    pages, texts = [], folder / "text"
    for path in sorted(texts.rglob("*.html"), key=lambda path: _place(path.relative_to(texts))):
        page = _Paragraphs()
        page.feed(path.read_text(encoding="utf-8", errors="replace"))
        pages.append([text for text in page.found if len(text) >= SHORTEST])
    return pages


def _place(path: Path) -> str:
    return sha256(path.as_posix().encode()).hexdigest()


class _Paragraphs(HTMLParser):
    """The text of the paragraphs of a page; a hidden part, for another system, is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._text: list[str] | None = None
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "p" and given.get("class") == "paragraph":
            self._text = []
        elif tag == "span" and (self._hidden or "hidden" in given):
            self._hidden += 1

    def handle_endtag(self, tag: str) -> None:
        if tag == "span" and self._hidden:
            self._hidden -= 1
        elif tag == "p" and self._text is not None:
            self.found.append(" ".join("".join(self._text).split()))
            self._text = None

    def handle_data(self, data: str) -> None:
        if self._text is not None and not self._hidden:
            self._text.append(data)


HINT = f"install Debian's packages {', '.join(f'{NAME}-{code}' for code in LANGUAGES)}"
SOURCE = Source(NAME, "help pages in Catalan, Spanish, German and Dutch", locate=locate, hint=HINT)
