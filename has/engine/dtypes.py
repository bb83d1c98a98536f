"""What engines call the number format of a deployment's weights."""

from __future__ import annotations

from collections.abc import Mapping

from has.errors import InputError

FLAGS: Mapping[str, tuple[str, str]] = {
    **{name: ("--dtype", name) for name in ("auto", "half", "float16", "bfloat16", "float", "float32")},
    "bf16": ("--dtype", "bfloat16"),
    "fp16": ("--dtype", "float16"),
    "fp32": ("--dtype", "float32"),
    "fp8": ("--quantization", "fp8"),
}
"""vLLM and SGLang alike: activations have a `--dtype`; weights of fewer bits are a quantization."""


def dtype_flags(dtype: str | None, *, language: bool) -> list[str]:
    """The arguments that make an engine compute in `dtype`; none where it is left to the model.

    `language` says whether an instance holds the language model: of weights of fewer bits an encoder has none, as
    estimates count them. InputError for unknown formats.
    """
    if dtype is None:
        return []
    if dtype not in FLAGS:
        raise InputError(
            "no engine has this number format",
            where="deployment",
            field="dtype",
            value=dtype,
            allowed=", ".join(FLAGS),
        )
    flag, value = FLAGS[dtype]
    return [flag, value] if language or flag == "--dtype" else []
