"""Language models of Hugging Face with adapters (LoRA) that are trained; the base exists once, whoever adapts it."""

import copy
import json
import re
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from importlib.util import find_spec
from numbers import Integral
from pathlib import Path
from typing import Any, Literal

import torch
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from cobo import attention
from cobo.data import text, tokens
from cobo.errors import ConfigError, DataError
from cobo.federation import Client
from cobo.federation.windows import Windows

TEST = 0.1
FEW = 500  # tokens to judge by, below which it is said
WORDS = ("a", "b", "1", "2", "water", "fire", "\N{CJK UNIFIED IDEOGRAPH-6C34}")  # any tokenizer knows one of them
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


class LanguageModel:
    """A pretrained causal language model, by its name on the hub, its folder, or a GGUF file; frozen.

    `package:NAME` is the model that an installed Python package carries; `package:cobo` is cobo's own small GPT.

    `adapters(...)` makes what `cobo.fit` takes as `model=`; `client(...)` reads a party's text with its tokenizer.
    """

    def __init__(self, source: str | Path, *, dtype: Literal["float32", "bfloat16"] = "float32") -> None:
        place, options, self.source = _place(str(source))
        if dtype not in DTYPES:
            raise ConfigError(f"dtype = {dtype!r} should be one of {', '.join(DTYPES)}")
        try:
            from transformers.utils import logging

            if "gguf_file" in options:
                import_module("gguf")
        except ImportError:
            raise ConfigError("language models need more packages; in cobo's clone: pip install '.[llm]'") from None
        logging.disable_progress_bar()  # type: ignore[no-untyped-call]
        self.tokenizer, base = _loaded(place, options, DTYPES[dtype], self.source)
        self._said: set[str] = set()
        self._mark = tokens.fingerprint(self.tokenizer)  # which takes a third of a second for 50,000 words
        self.reads = f"tokens of tokenizer {self._mark}"
        self.base: nn.Module = base.requires_grad_(False)
        attention.use_it(base)
        base.config.use_cache = False  # keys and values of earlier tokens are of use only where text is made
        try:
            looks_ahead = _looks_ahead(base)
        except Exception as error:  # whatever a model of some kind may raise
            raise ConfigError(f"{self.source!r} cannot be trained as a language model: {_reason(error)}") from None
        if looks_ahead:
            raise ConfigError(f"{self.source!r} is no causal language model: it looks at later tokens; choose another")

    def client(
        self,
        name: str,
        source: str | Path | Sequence[str],
        *,
        context: int,
        test: str | Path | Sequence[str] | float = TEST,
        validation: float = 0.0,
        limit: int | None = None,
        judge_limit: int | None = None,
    ) -> Client:
        """A party with its text: a file, a data set (see `cobo.data.text.documents`), or a list of documents.

        The last documents, a share `test` of all characters, judge it; or the test part of a data set that has one; or
        a text of its own, given as `test` (of a data set its test part, if it has one). With `validation`, the last
        documents of what is left judge it instead, and those to test by are not looked at. It trains on the first
        `limit` tokens of the rest, and is judged by the first `judge_limit`, if there are more.
        """
        for setting, most in {"context": context, "limit": limit, "judge_limit": judge_limit}.items():
            if most is not None and not (isinstance(most, Integral) and most >= 1):
                raise ConfigError(f"{setting} = {most!r} should be 1 or more whole tokens")
        longest = getattr(self.base.config, "max_position_embeddings", None)
        if longest is not None and context > longest:
            raise ConfigError(f"context = {context} is more than the {longest} tokens that {self.source!r} can look at")
        for setting, value in {"test": test, "validation": validation}.items():
            if isinstance(value, (int, float)) and not (0 < value < 1 or (value == 0 and setting == "validation")):
                raise ConfigError(f"{setting} = {value} should be a share of the text between 0 and 1")
        try:
            rest, judged = _parts(source, test)
            if validation:
                rest, judged = text.divided(rest, validation)
            train = tokens.tokenised(rest, self.tokenizer, name, limit, mark=self._mark)
            known = tokens.tokenised(judged, self.tokenizer, name, judge_limit, mark=self._mark)
            client = Client(
                name,
                Windows(train, context, reads=self.reads),
                Windows.side_by_side(known, context, reads=self.reads),
            )
        except DataError as error:
            raise DataError(f"client {name!r}: {error}") from None
        if limit is not None and len(train) < limit:
            self._say(f"client {name!r} has {len(train):,} tokens to train on, not {limit:,}")
        if len(known) < FEW:
            self._say(f"client {name!r} is judged by {len(known) - 1} tokens only, which says little; test more text")
        return client

    def _say(self, line: str) -> None:
        """On stderr, once: a run makes its clients twice, for the outlook and for itself."""
        if line not in self._said:
            self._said.add(line)
            Console(stderr=True).print(line, markup=False, highlight=False, soft_wrap=True)

    def adapters(
        self,
        *,
        rank: int = 4,
        alpha: int | None = None,
        dropout: float = 0.0,
        targets: str | Sequence[str] = "all-linear",
        checkpointing: bool = False,
    ) -> Callable[[], nn.Module]:
        """A function that makes the model with fresh adapters on the layers whose names end with one of `targets`.

        By default on all linear layers but the output: attention and MLP. Their effect is scaled by alpha / rank
        (`alpha` is twice the rank, if not given). With `checkpointing`, activations are computed again on the way back
        instead of kept.
        """
        try:
            from peft import LoraConfig, get_peft_model
            from peft.tuners.lora import LoraLayer
            from transformers.pytorch_utils import Conv1D
        except ImportError:
            raise ConfigError("adapters need more packages; in cobo's clone: pip install '.[llm]'") from None

        if rank < 1 or (alpha is not None and alpha < 1) or not 0 <= dropout < 1:
            raise ConfigError(
                f"rank = {rank}, alpha = {alpha} and dropout = {dropout} should be at least 1, at least 1 and in [0, 1)"
            )

        if not targets:
            raise ConfigError("targets names no layer; it should be 'all-linear' or names of linear layers")
        if isinstance(targets, str) and targets != "all-linear":
            targets = (targets,)

        def make() -> nn.Module:
            constants = [*self.base.parameters(), *self.base.buffers()]
            module = copy.deepcopy(self.base, {id(tensor): tensor for tensor in constants})  # no number is copied
            if checkpointing:
                module.gradient_checkpointing_enable({"use_reentrant": False})  # type: ignore[operator]
            linear = [n for n, part in module.named_modules() if isinstance(part, (nn.Linear, Conv1D))]
            _check_targets(module, linear, targets)
            config = LoraConfig(
                r=rank,
                lora_alpha=2 * rank if alpha is None else alpha,
                lora_dropout=dropout,
                target_modules=targets if isinstance(targets, str) else list(targets),
                fan_in_fan_out=any(isinstance(part, Conv1D) for part in module.modules()),
                task_type="CAUSAL_LM",
            )
            adapted: nn.Module = get_peft_model(module, config)
            adapted.peft_config["default"].base_model_name_or_path = self.source  # type: ignore[index,union-attr]
            adapted.reads = self.reads  # type: ignore[assignment]
            for part in adapted.modules():
                if isinstance(part, LoraLayer):
                    part.register_forward_pre_hook(_cast_once)
            return adapted

        return make


def _loaded(place: str, options: Mapping[str, Any], dtype: torch.dtype, source: str) -> tuple[Any, Any]:
    """The tokenizer and the model, both whole; whatever is wrong with files of others is told in one line."""
    from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

    alone = not Path(place).is_dir() and not text.hub_answers(place, "model")
    options = {**options, "trust_remote_code": False, "local_files_only": alone}
    part = "config"
    try:
        config = AutoConfig.from_pretrained(place, **options)
        config._attn_implementation = None  # a name in the file may be that of code on the hub, which would be run
        config._experts_implementation = None
        part = "tokenizer"
        tokenizer: Any = AutoTokenizer.from_pretrained(place, **options)
        part = "config or weights"
        read: Any = AutoModelForCausalLM.from_pretrained(
            place, config=config, dtype=dtype, use_safetensors="gguf_file" not in options or None,
            output_loading_info=True, **options, **_unpacked(options),
        )  # fmt: skip
    except Exception as error:
        nowhere = alone and isinstance(error, OSError)
        reason = "there is no such folder here, and the hub cannot be reached" if nowhere else _reason(error)
        where = "" if nowhere else f"its {part}: "
        raise ConfigError(f"language model {source!r} cannot be loaded: {where}{reason}") from None
    base, found = read
    if lacking := sorted(map(str, [*found["missing_keys"], *found["mismatched_keys"]])):
        raise ConfigError(f"language model {source!r} cannot be loaded: {lacking[0]} is not in its files")
    if not getattr(tokenizer, "is_fast", False):
        raise ConfigError(f"language model {source!r} has no fast tokenizer (tokenizer.json), which is needed")
    if _tells_nothing_apart(tokenizer):
        raise ConfigError(
            f"language model {source!r} cannot be loaded: its tokenizer gives all words the same tokens; put its own "
            "tokenizer.json beside the model"
        )
    return tokenizer, base


def _tells_nothing_apart(tokenizer: Any) -> bool:
    """As of one that is made up where files of a tokenizer are missing: it knows no word at all."""
    encode = tokenizer.backend_tokenizer.encode
    try:
        return len({tuple(encode(word, add_special_tokens=False).ids) for word in WORDS}) == 1
    except Exception:  # what tokenizers raises where a word is unknown and there is no token for that
        return False


@torch.enable_grad()
def _looks_ahead(model: Any) -> bool:
    """Whether logits depend on later tokens: only then is there a gradient, however small, to the last of them."""
    seen: list[torch.Tensor] = []

    def leaf(layer: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
        seen.append(output.detach().requires_grad_())
        return seen[0].clone()  # some models change it in place

    hook = model.get_input_embeddings().register_forward_hook(leaf)
    try:
        earlier = model(torch.arange(4)[None]).logits[:, :-1]
    finally:
        hook.remove()
    if not earlier.isfinite().all():
        raise ValueError("its logits are not finite")
    (gradient,) = torch.autograd.grad(earlier.square().sum(), seen)
    return bool(gradient[:, -1].any())


def _cast_once(layer: Any, inputs: Any) -> None:
    """Adapters of float32 cast what they read to float32, which autocast, where it is on, would only undo."""
    layer.cast_input_dtype_enabled = not torch.is_autocast_enabled(inputs[0].device.type)


def _check_targets(module: Any, linear: Sequence[str], targets: Sequence[str] | str) -> None:
    """Each of the targets is a linear layer, and none is the output where that is the embedding as well."""
    if isinstance(targets, str):
        return
    output = module.get_output_embeddings()
    tied = output is not None and output.weight is module.get_input_embeddings().weight
    for target in targets:
        named = [name for name in linear if name == target or name.endswith(f".{target}")]
        if not named:
            known = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in linear))
            raise ConfigError(f"targets: the model has no linear layer {target!r}; it has {known}")
        if tied and any(module.get_submodule(name) is output for name in named):
            raise ConfigError(
                f"targets: {target!r} shares its weights with the embedding, so it cannot be adapted alone"
            )


def merge(adapter: str | Path, out: str | Path) -> None:
    """An adapter put into the model it adapts, written as a folder of a model by itself, with its tokenizer."""
    adapter, out = Path(adapter), Path(out)
    try:
        config = json.loads((adapter / "adapter_config.json").read_text(encoding="utf-8"))
        source = config["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        source = None
    if source is None or not (adapter / "adapter_model.safetensors").is_file():
        raise ConfigError(f"{adapter} holds no adapter; give a folder such as RUN/METHOD/seed-0/adapters/NAME")
    if out.exists():
        raise ConfigError(f"{out} is already there; choose another folder to write to")
    base = LanguageModel(source)
    try:
        from peft import PeftModel, get_peft_model_state_dict
    except ImportError:
        raise ConfigError("adapters need more packages; in cobo's clone: pip install '.[llm]'") from None
    try:
        adapted: Any = PeftModel.from_pretrained(base.base, adapter)
        given = load_file(adapter / "adapter_model.safetensors").keys()
    except (OSError, ValueError, KeyError, TypeError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"{adapter} does not fit {source!r}: {_reason(error)}") from None
    if odd := sorted(given ^ get_peft_model_state_dict(adapted, save_embedding_layers=False).keys()):
        raise ConfigError(f"{adapter} does not fit {source!r}: only one of them has {odd[0]}")
    merged = adapted.merge_and_unload()
    merged.config.use_cache = True
    merged.hf_quantizer = None  # a GGUF file was unpacked when it was read; what is written is plain
    if hasattr(merged.config, "quantization_config"):
        del merged.config.quantization_config
    aside = out.with_name(f".writing-{out.name}")
    shutil.rmtree(aside, ignore_errors=True)
    merged.save_pretrained(aside)
    base.tokenizer.save_pretrained(aside)
    aside.rename(out)


def _parts(source: Any, test: Any) -> text.Divided:
    """Documents to train on, and to judge by: what the data set or the user has set apart, or the last ones."""
    train, apart = _documents(source)
    if apart and not train:
        raise DataError(f"{source} has text called test, but none called train; call what is to train on train")
    if not isinstance(test, float):
        others, judged = _documents(test)
        judged = judged or others
        if judged == train:
            raise DataError("it would be tested by the text that it trains on; give another test=, or leave it out")
        return text.Divided(train, judged)
    return text.Divided(train, apart) if apart else text.divided(train, test)


def _documents(source: Any) -> text.Divided:
    if isinstance(source, (str, Path)):
        return text.documents(source)
    found = list(source) if isinstance(source, Iterable) else [source]
    if not all(isinstance(document, str) for document in found):
        raise DataError("its text should be a file, a data set, or a list of strings")
    return text.Divided(found, [])


def _place(source: str) -> tuple[str, dict[str, Any], str]:
    """Where transformers looks, and how (a GGUF file is named by its folder and itself); and a name for good."""
    if not source.strip():  # which as a path is the folder that one is in
        raise ConfigError("language model '' has no name; it should be a name on the hub, a folder, or a GGUF file")
    path = _packaged(source[8:]) if source.startswith("package:") else Path(source).expanduser()
    name = source if source.startswith("package:") else str(path.resolve())
    if path.suffix == ".gguf":
        if not path.is_file():
            raise ConfigError(f"language model {source!r} is no file that is there")
        return str(path.parent), {"gguf_file": path.name}, name
    if path.is_dir():
        if not (path / "config.json").is_file():
            raise ConfigError(f"language model {source!r} is a folder without a model (config.json); give another")
        return str(path), {}, name
    if not re.fullmatch(r"[\w-][\w.-]*(/[\w-][\w.-]*)?", source):
        raise ConfigError(f"language model {source!r} is no folder that is there, nor NAME or OWNER/NAME on the hub")
    return source, {}, source


def _unpacked(options: Mapping[str, Any]) -> dict[str, Any]:
    """GGUF weights as plain numbers: left packed, newer versions of transformers would fetch kernels from the hub."""
    import transformers

    if "gguf_file" not in options or not hasattr(transformers, "GgufConfig"):
        return {}
    return {"quantization_config": transformers.GgufConfig(dequantize=True)}


def _packaged(name: str) -> Path:
    """The model, a GGUF file or a folder, that an installed Python package carries; nothing of the package is run."""
    found = find_spec(name) if name.isidentifier() and name != "__main__" else None  # looking for a.b would run a
    places = [Path(place) for place in (found.submodule_search_locations if found is not None else None) or ()]
    models = [file for place in places for file in place.glob("*.gguf")]
    models += [file.parent for place in places for file in place.glob("**/model.safetensors")]
    if not places:
        raise ConfigError(
            f"language model 'package:{name}': no package of that name is installed; package:cobo is the small "
            "model that cobo brings"
        )
    if len(models) != 1:
        raise ConfigError(
            f"language model 'package:{name}': that package has {len(models)} models (a GGUF file, or a folder with "
            "model.safetensors), not one; give the path of a file or folder"
        )
    return models[0]


def _reason(error: Exception) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
