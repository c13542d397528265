"""Token ids to text, as they come."""

from collections.abc import Container

from tokenizers import Tokenizer
from tokenizers.decoders import DecodeStream

REPLACEMENT = "\ufffd"


class Detokenizer:
    """The text of one turn. Bytes of a character that is not complete are held; special tokens have no text.

    shown: ids of those that have one after all.
    """

    def __init__(self, tokenizer: Tokenizer, shown: Container[int] = ()) -> None:
        self._tokenizer, self._shown = tokenizer, shown
        self._stream = DecodeStream(skip_special_tokens=True)
        self._held: list[int] = []  # tokens since the last text

    def push(self, token: int) -> str:
        if token in self._shown:  # what is held became no character, and what follows begins anew
            held = self.flush()
            self._stream = DecodeStream(skip_special_tokens=True)
            return held + (self._tokenizer.id_to_token(token) or "")
        self._held.append(token)
        try:
            text = self._stream.step(self._tokenizer, token)
        except Exception as error:  # the library has no type of its own for this
            if "Invalid prefix" not in str(error):
                raise
            return self._restart(token)
        if text:
            self._held.clear()
        return text or ""

    def flush(self) -> str:
        """At the end of the turn: what was held, an incomplete character as one U+FFFD."""
        if not self._held:
            return ""
        text = self._tokenizer.decode(self._held, skip_special_tokens=True)
        self._held.clear()
        if text.endswith(REPLACEMENT) and self._tokenizer.token_to_id("<0x00>") is not None:
            return text.rstrip(REPLACEMENT) + REPLACEMENT  # byte-fallback decoders make one of each byte
        return text

    def _restart(self, token: int) -> str:
        """With byte fallback, an invalid byte makes its valid neighbours invalid, too, also those already delivered.

        The stream cannot go on behind such text: what it held was no character, and the token at hand starts anew.
        """
        self._held.pop()
        lost = self.flush()
        self._stream = DecodeStream(skip_special_tokens=True)
        return lost + self.push(token)
