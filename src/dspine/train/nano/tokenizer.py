"""nano's tokenizer: byte-level BPE trained on nano's own text, with a ChatML template.

One rule: any text comes back unchanged (every byte has an id), and the mask id is in no template and in no text:
`<|mask|>` exists for drafters only. Digits are single tokens, so that a small model can learn to calculate.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

IM_START: Final = "<|im_start|>"
IM_END: Final = "<|im_end|>"
END_OF_TEXT: Final = "<|endoftext|>"
MASK: Final = "<|mask|>"
SPECIALS: Final = (END_OF_TEXT, IM_START, IM_END, MASK)  # ids 0..3

# The generation marks let `apply_chat_template(..., return_assistant_tokens_mask=True)` find what the assistant wrote.
CHAT_TEMPLATE: Final = (
    "{%- for message in messages %}"
    "{%- if message['role'] == 'assistant' %}"
    "{{- '<|im_start|>assistant\n' }}{% generation %}{{- message['content'] + '<|im_end|>' }}{% endgeneration %}"
    "{{- '\n' }}"
    "{%- else %}"
    "{{- '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{%- endif %}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)


def train_tokenizer(texts: Iterable[str], vocabulary: int, *, max_length: int) -> Any:
    """Train the tokenizer.

    Args:
        texts: contents of messages.
        vocabulary: ids in total: 4 specials, 256 bytes, the rest merges.
        max_length: positions of the model that it is for.

    Returns:
        A transformers fast tokenizer with the template set.

    Raises:
        ValueError: if the texts are too uniform to fill the vocabulary.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(r"[0-9]"), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=list(SPECIALS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    found = tokenizer.get_vocab_size()
    if found != vocabulary:
        raise ValueError(f"the texts give {found} ids, not {vocabulary}: give more texts or ask for fewer ids")
    return PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=tokenizer,
        bos_token=END_OF_TEXT,
        eos_token=IM_END,
        pad_token=END_OF_TEXT,
        mask_token=MASK,
        additional_special_tokens=[IM_START],
        chat_template=CHAT_TEMPLATE,
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
