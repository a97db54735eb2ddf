"""Attention in bfloat16 on a CPU, where torch's own kernel takes up to five times as long as plain products."""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NAME = "cobo"
LONGEST = 512  # tokens; beyond, the weights of every head, [tokens, tokens], take much memory for little time


def use_it(model: Any) -> None:
    """Have a model of transformers attend by `attend`, if it would by torch's kernel, and lets itself be told."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

    if not model._supports_attention_backend or model.config._attn_implementation != "sdpa":
        return
    AttentionInterface.register(NAME, attend)
    AttentionMaskInterface.register(NAME, sdpa_mask)  # none where every token looks at all those before it
    model.set_attn_implementation(NAME)


def attend(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **options: Any
) -> tuple[Tensor, None]:
    """As transformers asks for it: heads [batch, heads, tokens, width] to [batch, tokens, heads, width]."""
    causal = options.get("is_causal")
    causal = getattr(module, "is_causal", True) if causal is None else causal
    backward = attention_mask is None and causal and options.get("scaling") is not None
    halved = query.dtype == torch.bfloat16 or torch.is_autocast_enabled("cpu")
    if backward and halved and query.device.type == "cpu" and query.shape[2] == key.shape[2] <= LONGEST:
        return look_back(query, key, value, options["scaling"], options.get("dropout", 0.0)), None
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    return sdpa_attention_forward(module, query, key, value, attention_mask, **options)


def look_back(query: Tensor, key: Tensor, value: Tensor, scaling: float, dropout: float = 0.0) -> Tensor:
    """Every token looks at itself and those before; heads that share keys are one product. Softmax in float32."""
    batch, heads, tokens, width = query.shape
    shared = key.shape[1]
    scores = (query.reshape(batch, shared, -1, width) @ key.transpose(2, 3)).view(batch, heads, tokens, tokens)
    ahead = torch.full((tokens, tokens), -torch.inf).triu(1)
    weights = F.dropout(torch.add(ahead, scores, alpha=scaling).softmax(-1), dropout).to(value.dtype)
    looked = weights.view(batch, shared, -1, tokens) @ value
    return looked.view(batch, heads, tokens, -1).transpose(1, 2).contiguous()
