"""What single tokens stand for."""

import json
import re
from collections.abc import Iterator
from typing import Any

from tokenizers import Tokenizer
from tokenizers.pre_tokenizers import ByteLevel

_OCTET = re.compile("<0x([0-9A-F]{2})>")


class Vocabulary:
    """Bytes of tokens, also of those that are a part of a character."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._added = tokenizer.get_added_tokens_decoder()
        decoders = list(_flat(json.loads(tokenizer.to_str())["decoder"]))
        kinds = {decoder["type"] for decoder in decoders}
        self._byte_level, self._byte_fallback = "ByteLevel" in kinds, "ByteFallback" in kinds
        self._replaced = [
            (decoder["pattern"].get("String"), decoder["content"])
            for decoder in decoders
            if decoder["type"] == "Replace"
        ]
        self._replaced += [(decoder["replacement"], " ") for decoder in decoders if decoder["type"] == "Metaspace"]

    def has_text(self, token: int) -> bool:
        """Whether it is part of what a client reads: special tokens are not."""
        added = self._added.get(token)
        return added is None or not added.special

    def octets(self, token: int) -> bytes:
        """UTF-8, or a part of it. A special token's is its name; that of an id without any token is empty."""
        piece = self._tokenizer.id_to_token(token)
        if piece is None:
            return b""
        if token in self._added:
            return piece.encode()
        if self._byte_level:
            return b"".join(_OCTETS.get(character) or character.encode() for character in piece)
        if self._byte_fallback and (found := _OCTET.fullmatch(piece)):
            return bytes.fromhex(found[1])
        if not self._replaced:
            return str(self._tokenizer.decode([token])).encode()
        for pattern, content in self._replaced:
            piece = piece.replace(pattern, content) if pattern else piece
        return piece.encode()

    def name(self, token: int) -> str:
        """Its text; where that is no text, its bytes in the way of /v1/completions, which tells tokens apart by it."""
        octets = self.octets(token)
        try:
            return octets.decode()
        except UnicodeDecodeError:
            return "bytes:" + "".join(f"\\x{octet:02x}" for octet in octets)


def _flat(decoder: Any) -> Iterator[dict[str, Any]]:
    if decoder is None:
        return
    if decoder["type"] == "Sequence":
        for part in decoder["decoders"]:
            yield from _flat(part)
    else:
        yield decoder


def _octets() -> dict[str, bytes]:
    """GPT-2's printable characters for bytes."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [octet for octet in range(256) if octet not in printable]
    characters = {chr(octet): bytes([octet]) for octet in printable}
    characters |= {chr(256 + index): bytes([octet]) for index, octet in enumerate(others)}
    assert set(characters) == set(ByteLevel.alphabet())
    return characters


_OCTETS = _octets()
