"""One GPU's part of a language model under tensor parallelism: what a rank computes between two all-reduces.

    split by rows      q, k, v (whole heads), gate, up, the logits' matrix
    split by columns   attention output, down
    copied             norms, token embeddings, encoder; KV heads where there are fewer than GPUs

So the sum of all ranks' outputs of attention and of an MLP is that of the whole model, and one rank alone takes as long as any:
its time plus that of the all-reduces is a worker's. What a rank alone answers means nothing.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from has.errors import InputError
from has.models.families import Family


def cut(family: Family, gpus: int, rank: int = 0) -> None:
    """Leave of the family's language model what `rank` of `gpus` holds. Raises InputError where it cannot be split so."""
    if gpus == 1:
        return
    text = family.text_config
    heads, kv_heads = text.num_attention_heads, text.num_key_value_heads
    _check(family, heads, kv_heads, gpus)
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // heads
    copies = max(1, gpus // kv_heads)  # ranks that hold the same KV head
    with torch.no_grad():
        for module in family.language_model.modules():
            if hasattr(module, "q_proj"):
                _rows(module.q_proj, gpus, rank)
                for name in ("k_proj", "v_proj"):
                    _rows(getattr(module, name), gpus // copies, rank // copies)
                _columns(module.o_proj, gpus, rank)
                module.num_key_value_groups = (heads // gpus) // max(1, kv_heads // gpus)
            if hasattr(module, "down_proj"):
                _rows(module.gate_proj, gpus, rank)
                _rows(module.up_proj, gpus, rank)
                _columns(module.down_proj, gpus, rank)
        _rows(family.head, gpus, rank)
    text.head_dim = head_dim
    text.num_attention_heads = heads // gpus
    text.num_key_value_heads = max(1, kv_heads // gpus)


def _check(family: Family, heads: int, kv_heads: int, gpus: int) -> None:
    if getattr(family.text_config, "num_experts", 0):
        raise InputError(
            "experts are not split over GPUs", where="argument", field="tensor_parallel", value=gpus
        )
    if heads % gpus or (kv_heads % gpus and gpus % kv_heads):
        raise InputError(
            f"{heads} heads over {kv_heads} of keys and values cannot be shared by {gpus} GPUs",
            where="argument",
            field="tensor_parallel",
            value=gpus,
            allowed="a divisor of the number of heads",
        )


def _rows(linear: nn.Linear, parts: int, part: int) -> None:
    """Its outputs `part` of `parts` (the last part is the shorter where they do not divide)."""
    size = -(-linear.out_features // parts)
    kept = slice(part * size, min((part + 1) * size, linear.out_features))
    linear.weight = _frozen(linear.weight[kept])
    if linear.bias is not None:
        linear.bias = _frozen(linear.bias[kept])
    linear.out_features = len(linear.weight)


def _columns(linear: nn.Linear, parts: int, part: int) -> None:
    """Its inputs `part` of `parts`; the bias is added once, by the first."""
    size = linear.in_features // parts
    linear.weight = _frozen(linear.weight[:, part * size : (part + 1) * size])
    if linear.bias is not None and part:
        linear.bias = _frozen(torch.zeros_like(linear.bias))
    linear.in_features = size


def _frozen(weight: Any) -> nn.Parameter:
    return nn.Parameter(weight.contiguous().clone(), requires_grad=False)
