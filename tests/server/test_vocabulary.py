"""Bytes of tokens: of all common kinds of tokenizers, what they spell together is the text."""

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers

from server.vocabulary import Vocabulary
from tests.tiny import build_tokenizer

TEXTS = ["Hello, world", "na\u00efve \U0001fae0 \u9f9c\n\ttabs  and spaces", "\U0001f1e9\U0001f1ea"]


def byte_level() -> Tokenizer:
    return build_tokenizer().backend_tokenizer


def metaspace() -> Tokenizer:
    """As Llama 2's and Mistral's: characters, spaces as blocks, bytes for what it has no character for."""
    pieces = [f"<0x{octet:02X}>" for octet in range(256)] + ["\u2581", *map(chr, range(33, 127))]
    vocab = {piece: index for index, piece in enumerate(["<unk>", "<s>", "</s>", *pieces])}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[], unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Replace(" ", "\u2581")
    tokenizer.decoder = decoders.Sequence([decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse()])
    tokenizer.add_special_tokens(["<unk>", "<s>", "</s>"])
    return tokenizer


@pytest.mark.parametrize("tokenizer", [byte_level(), metaspace()], ids=["byte level", "byte fallback"])
@pytest.mark.parametrize("text", TEXTS)
def test_what_tokens_spell_is_the_text(tokenizer: Tokenizer, text: str) -> None:
    vocabulary = Vocabulary(tokenizer)
    assert b"".join(map(vocabulary.octets, tokenizer.encode(text, add_special_tokens=False).ids)) == text.encode()


def test_tokens_that_are_no_text_are_named_by_their_bytes() -> None:
    tokenizer = byte_level()
    vocabulary = Vocabulary(tokenizer)
    first, *_ = tokenizer.encode("\u00e9").ids
    assert vocabulary.name(first) == "bytes:\\xc3"
    assert vocabulary.name(tokenizer.encode("a").ids[0]) == "a"
    assert vocabulary.name(2) == "<|im_end|>"
    assert not vocabulary.has_text(2)
    assert vocabulary.has_text(first)
    assert vocabulary.octets(100_000) == b""


def test_a_tokenizer_that_only_replaces_words() -> None:
    tokenizer = Tokenizer(models.WordLevel({"<unk>": 0, "one": 1, "two": 2}, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    assert Vocabulary(tokenizer).octets(2) == b"two"
