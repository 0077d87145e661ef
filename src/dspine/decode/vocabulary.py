"""Single tokens as text and as bytes, for logprobs.

One rule: a token that is only part of a character is not called by the replacement character, which many of them share,
but by its bytes (`bytes:\\xe2\\x80`, as OpenAI's completions do).
"""

from __future__ import annotations

from functools import lru_cache

from transformers import PreTrainedTokenizerBase
from transformers.convert_slow_tokenizer import bytes_to_unicode

from dspine.decode.text import REPLACEMENT


class Vocabulary:
    """Names of a target's tokens.

    Args:
        tokenizer: the target's own.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self._tokenizer = tokenizer
        self._byte_of = {letter: byte for byte, letter in bytes_to_unicode().items()}  # type: ignore[no-untyped-call]
        self._special = frozenset(tokenizer.all_special_ids)
        self._read = lru_cache(maxsize=1 << 16)(self._look_up)

    def name(self, token: int) -> str:
        """The token's text, or its bytes where it is not text by itself."""
        return self._read(token)[0]

    def bytes_of(self, token: int) -> list[int] | None:
        """The token's bytes; None where they cannot be told."""
        raw = self._read(token)[1]
        return None if raw is None else list(raw)

    def special(self, token: int) -> bool:
        """Whether answers show nothing for it."""
        return token in self._special

    def _look_up(self, token: int) -> tuple[str, bytes | None]:
        text = str(self._tokenizer.decode([token], skip_special_tokens=False))
        if REPLACEMENT not in text:
            return text, text.encode("utf-8", "surrogatepass")
        raw = self._raw(str(self._tokenizer.convert_ids_to_tokens(token)))
        if raw is None:
            return text, None
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw), raw

    def _raw(self, piece: str) -> bytes | None:
        """Bytes behind a vocabulary entry: a byte fallback of SentencePiece, or letters of the byte-level alphabet."""
        if len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            return bytes.fromhex(piece[3:5])
        if all(letter in self._byte_of for letter in piece):
            return bytes(self._byte_of[letter] for letter in piece)
        return None
