"""What a model family must answer so that one `StageModel` can serve them all."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from has.models.media import Grid, MediaInput


class Family(ABC):
    """Adapter over one transformers class (`model`, in eval mode).

    `language_model` maps `inputs_embeds` [n, T, width] to hidden states, `head` those to logits,
    `embed` ids to embeddings. `placeholders` are the ids that media embeddings replace.
    `mrope` says that positions have three axes (time, height, width).
    """

    architecture: ClassVar[str]
    """Name of the transformers class."""
    mrope: ClassVar[bool] = False

    def __init__(self, model: Any) -> None:
        self.model = model
        self.language_model: Any = model.model.language_model
        self.head: Any = model.lm_head
        self.embed: Any = model.get_input_embeddings()
        self.text_config: Any = model.config.get_text_config()

    @property
    def eos(self) -> int | None:
        """The id that ends an answer (the first, where there are several), None where none does."""
        eos: int | list[int] | None = self.model.generation_config.eos_token_id
        return eos[0] if isinstance(eos, list) else eos

    @property
    @abstractmethod
    def placeholders(self) -> frozenset[int]: ...

    @abstractmethod
    def encoder_modules(self) -> list[torch.nn.Module]:
        """Tower and connector: what an encode worker must hold."""

    @abstractmethod
    def encode(self, kind: str, media: Sequence[MediaInput]) -> list[Tensor]:
        """Embeddings [tokens, width] of items of one modality, in one forward pass."""

    @property
    def embedding_width(self) -> int:
        """Width of an embedding as it travels from encode to prefill."""
        return int(self.text_config.hidden_size)

    def inputs(self, embedded: Tensor) -> dict[str, Any]:
        """What the language model is given for prompts [n, T, embedding_width]."""
        return {"inputs_embeds": embedded}

    def positions(self, ids: Sequence[int], grids: Sequence[Grid]) -> tuple[Tensor, int]:
        """Rotary positions [3, T] of a prompt on the model's device, and that of the token after it."""
        return torch.arange(len(ids)).expand(3, -1), len(ids)

    def tensor(self, arrays: Sequence[Any]) -> Tensor:
        """Arrays of one shape but the first axis, joined along it on the model's device."""
        weight = self.embed.weight
        joined = torch.cat([torch.from_numpy(array) for array in arrays])
        return joined.to(weight.device, weight.dtype)
