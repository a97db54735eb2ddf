"""The paper's language experiment (section 4.3): every client fine-tunes adapters on text in its own language."""

import os
from collections.abc import Mapping
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from pydantic import AfterValidator, Field

from cobo.compute.blueprint import resolved
from cobo.data import libreoffice_help, wikipedia
from cobo.errors import ConfigError
from cobo.experiments.experiment import Experiment, Parts
from cobo.language import LanguageModel
from cobo.methods import Method

LANGUAGES = {"catalan": "ca", "spanish": "es", "german": "de", "dutch": "nl"}
CORPORA = {"wikipedia": wikipedia, "libreoffice-help": libreoffice_help}


def _in_full(source: str) -> str:
    """A path, if something is there: settings that are kept with a run may be used in another folder."""
    path = os.path.expanduser(source)
    return os.path.abspath(path) if source.strip() and os.path.exists(path) else source


Place = Annotated[str, AfterValidator(_in_full)]


class Language(Experiment):
    """A text for each client, and a pretrained language model that all of them adapt.

    Four languages of a `corpus`; or other `texts`, files or data sets by client. `tokens` is how many each trains on.
    The last `test_share` of a text is for tests alone. A search judges by the `validation_share` before it (as large a
    share, if not given): reading is what costs here, so its own 20 % would be too much. Of either, the first
    `judge_tokens` are read, if given.
    """

    what: ClassVar[str] = "paper, section 4.3: 4 clients with 4 languages, adapters on GPT-2 (needs the extra llm)"

    model: Place = "gpt2"
    corpus: Literal["wikipedia", "libreoffice-help"] = "wikipedia"
    texts: dict[str, Place] = Field(default_factory=dict)
    tokens: int | None = Field(default=800_000, ge=1)
    context: int = Field(default=512, ge=1)
    test_share: float = Field(default=0.1, gt=0, lt=1)
    validation_share: float | None = Field(default=None, gt=0, lt=1)
    judge_tokens: int | None = Field(default=None, ge=1)
    rank: int = Field(default=4, ge=1)
    alpha: int | None = Field(default=None, ge=1)
    dropout: float = Field(default=0.1, ge=0, lt=1)
    targets: str | tuple[str, ...] = "all-linear"
    checkpointing: bool = False

    def method(self, name: str) -> Method:
        if name in ("ifca", "fc", "oracle"):
            raise ConfigError(
                f"{name} gives every client the model of one group, and languages are in no groups: each is close to "
                "some others, more or less; use local, fedavg, finetune, ditto or cobo"
            )
        return super().method(name)

    def let_go(self) -> None:
        pretrained.cache_clear()

    def judged_by(self, share: float) -> float:
        return self.validation_share or min(share, self.test_share)

    def build(self, seed: int, *, validation: float = 0.0) -> Parts:
        base = pretrained(self.model, resolved(self.precision, self.device))
        sources: Mapping[str, str | list[str]] = self.texts or {
            name: CORPORA[self.corpus](code) for name, code in LANGUAGES.items()
        }
        sizes: dict[str, Any] = {
            "context": self.context,
            "test": self.test_share,
            "validation": self.judged_by(validation) if validation else 0.0,
            "limit": self.tokens,
            "judge_limit": self.judge_tokens,
        }
        clients = [base.client(name, text, **sizes) for name, text in sources.items()]
        adapters = base.adapters(
            rank=self.rank,
            alpha=self.alpha,
            dropout=self.dropout,
            targets=self.targets,
            checkpointing=self.checkpointing,
        )
        return Parts(clients, adapters, "next_token")


class LanguageSmall(Language):
    """The same for two CPU cores."""

    what: ClassVar[str] = "the same with a smaller model and less text, for two CPU cores"


@lru_cache(maxsize=1)
def pretrained(model: str, precision: Literal["float32", "bfloat16"]) -> LanguageModel:
    """The base, which exists once in a process, whatever is run on it."""
    return LanguageModel(model, dtype=precision)
