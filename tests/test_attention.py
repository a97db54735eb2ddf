"""Attention by plain products, beside torch's own kernel."""

import pytest
import torch
import torch.nn.functional as F

from cobo import attention


@pytest.mark.parametrize(("shared", "wide"), [(6, 8), (2, 8), (1, 8), (2, 5)])
def test_looking_back_is_causal_attention_with_shared_heads_and_values_of_any_width(shared, wide):
    generator = torch.Generator().manual_seed(0)
    shapes = (6, 8), (shared, 8), (shared, wide)  # heads and width of queries, keys, values
    heads = [torch.randn(2, h, 10, w, generator=generator).requires_grad_() for h, w in shapes]
    found = attention.look_back(*heads, 0.3)
    kernel = F.scaled_dot_product_attention(*heads, is_causal=True, scale=0.3, enable_gqa=True)
    torch.testing.assert_close(found, kernel.transpose(1, 2))
    up = torch.randn(found.shape, generator=generator)
    gradients = [torch.autograd.grad(out, heads, up) for out in (found, kernel.transpose(1, 2))]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("options", [{"dropout": 0.0}, {"dropout": 0.5}])
def test_in_bfloat16_on_a_cpu_there_is_no_kernel_and_elsewhere_there_is(options, monkeypatch):
    pytest.importorskip("transformers")
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    asked = []
    kernel = F.scaled_dot_product_attention
    monkeypatch.setattr(F, "scaled_dot_product_attention", lambda *a, **o: (asked.append(1), kernel(*a, **o))[1])

    module = torch.nn.Module()

    def attend(*heads, mask=None, **changes):
        asked.clear()
        found, _ = attention.attend(module, *heads, mask, scaling=0.5, **{**options, **changes})
        assert found.shape == (1, 5, 2, 4)
        return bool(asked)

    half = [x.bfloat16() for x in (q, k, v)]
    assert not attend(*half)
    with torch.autocast("cpu", torch.bfloat16):
        assert not attend(q, k, v)
    assert attend(q, k, v)
    assert attend(*half, mask=torch.ones(1, 1, 5, 5, dtype=torch.bool))
    assert attend(*half, is_causal=False)
    module.is_causal = False  # what is asked for goes before what the module says of itself
    assert attend(*half)
    assert not attend(*half, is_causal=True)


def test_dropped_weights_follow_the_generator():
    q, k, v = (torch.randn(1, 2, 5, 4) for _ in range(3))
    found = []
    for _ in range(2):
        torch.manual_seed(0)
        found.append(attention.look_back(q, k, v, 0.5, 0.5))
    assert torch.equal(*found)
    assert not torch.equal(found[0], attention.look_back(q, k, v, 0.5, 0.0))
