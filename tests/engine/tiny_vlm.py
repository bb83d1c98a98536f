"""A Qwen2.5-VL of a million random weights in a folder, with tokenizer and template: nothing is downloaded.

Weights are drawn wide enough that the image changes the answer. Head sizes are among those vLLM's CPU
attention knows.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")  # fmt: skip
TEXT = ("what is in this image? describe it in detail, please", "the user and the assistant", "ba ce di fo gu la me ni po ru sa te vi wo zu") * 4  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n"
    "{% if m['content'] is string %}{{ m['content'] }}{% else %}{% for c in m['content'] %}"
    "{% if c['type'] in ('image', 'image_url') %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% elif 'text' in c %}{{ c['text'] }}{% endif %}{% endfor %}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
WIDTH, HEADS, LAYERS = 128, 2, 2
HEAD = WIDTH // HEADS


def make(folder: Path, *, printable: bool = False, tower: tuple[int, int] = (LAYERS, WIDTH)) -> Path:
    """Write the model to `folder`, which is its own name too. `printable`: every token it says is text that shows at once.
    `tower`: layers and width of the vision tower, a multiple of 64; a larger one makes encoding the dearest stage.
    """
    import torch
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast, Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

    folder.mkdir(parents=True)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)  # type: ignore[assignment]  # its setter takes it
    tokenizer.decoder = decoders.ByteLevel()  # type: ignore[assignment]  # likewise
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=384, special_tokens=list(SPECIAL), initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(TEXT, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=SPECIAL[2],
        pad_token=SPECIAL[0],
        additional_special_tokens=list(SPECIAL[1:]),
    )
    fast.chat_template = TEMPLATE
    fast.save_pretrained(folder)
    ids = {name: tokenizer.token_to_id(name) for name in SPECIAL}
    text: dict[str, Any] = {
        "hidden_size": WIDTH,
        "intermediate_size": 2 * WIDTH,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": 1,
        "vocab_size": (tokenizer.get_vocab_size() + 63) // 64 * 64,
        "max_position_embeddings": 8192,
        "rope_theta": 1e6,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [8, 12, 12]},
        "tie_word_embeddings": False,
        "bos_token_id": ids["<|endoftext|>"],
        "eos_token_id": ids["<|im_end|>"],
        "pad_token_id": ids["<|endoftext|>"],
    }
    depth, width = tower
    vision = {
        "depth": depth,
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_heads": width // HEAD,
        "out_hidden_size": WIDTH,
        "patch_size": 14,
        "spatial_merge_size": 2,
        "temporal_patch_size": 2,
        "window_size": 112,
        "in_channels": 3,
        "in_chans": 3,
        "fullatt_block_indexes": [depth - 1],
        "tokens_per_second": 2,
    }
    config = Qwen2_5_VLConfig(
        text_config=text,
        vision_config=vision,
        image_token_id=ids["<|image_pad|>"],
        video_token_id=ids["<|video_pad|>"],
        vision_start_token_id=ids["<|vision_start|>"],
        vision_end_token_id=ids["<|vision_end|>"],
    )
    config.architectures = ["Qwen2_5_VLForConditionalGeneration"]
    torch.manual_seed(0)
    model = Qwen2_5_VLForConditionalGeneration(config).to(torch.float32)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2:
                parameter.normal_(0, 0.08)
        if printable:
            texts = [tokenizer.decode([token]) for token in range(tokenizer.get_vocab_size())]
            shows = [
                token for token, text in enumerate(texts) if text.isascii() and text.isprintable() and text
            ]
            mute = torch.ones(len(model.lm_head.weight), dtype=torch.bool)
            mute[shows] = False
            model.lm_head.weight[mute] = 0.0  # drawn wide as they are, some of the others are always above
    model.save_pretrained(folder)
    config.save_pretrained(folder)
    processor = {
        "image_processor_type": "Qwen2VLImageProcessor",
        "processor_class": "Qwen2_5_VLProcessor",
        "do_convert_rgb": True,
        "do_normalize": True,
        "do_rescale": True,
        "do_resize": True,
        "image_mean": [0.48145466, 0.4578275, 0.40821073],
        "image_std": [0.26862954, 0.26130258, 0.27577711],
        "merge_size": 2,
        "patch_size": 14,
        "temporal_patch_size": 2,
        "resample": 3,
        "rescale_factor": 1 / 255,
        "min_pixels": 56 * 56,
        "max_pixels": 448 * 448,
    }
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))
    video = {k: v for k, v in processor.items() if k != "image_processor_type"}
    (folder / "video_preprocessor_config.json").write_text(
        json.dumps(video | {"video_processor_type": "Qwen2VLVideoProcessor"})
    )
    (folder / "generation_config.json").write_text(
        json.dumps(
            {"max_new_tokens": 64, "eos_token_id": ids["<|im_end|>"], "pad_token_id": ids["<|endoftext|>"]}
        )
    )
    return folder
