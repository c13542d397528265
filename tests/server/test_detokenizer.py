"""Characters that are split over tokens, broken ones, and decoders of both kinds."""

import random

import pytest
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE

from server.detokenizer import Detokenizer
from tests.tiny import build_tokenizer

SPLIT = ["\U0001fae0", "\U0001f979", "\u9f9c", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f1e9\U0001f1ea"]


@pytest.fixture(scope="module")
def byte_level() -> Tokenizer:
    return build_tokenizer().backend_tokenizer


@pytest.fixture(scope="module")
def byte_fallback() -> Tokenizer:
    """As of SentencePiece models: words, and a token for each byte."""
    words = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), "\u2581", "a", "\u2581a", "\u2581b", "\ufffd"]
    bpe = BPE({word: index for index, word in enumerate(words)}, [], byte_fallback=True, unk_token="<unk>")
    tokenizer = Tokenizer(bpe)
    tokenizer.decoder = decoders.Sequence(
        [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    return tokenizer


def pieces_of(tokenizer: Tokenizer, tokens: list[int]) -> list[str]:
    detokenizer = Detokenizer(tokenizer)
    return [*(detokenizer.push(token) for token in tokens), detokenizer.flush()]


@pytest.mark.parametrize("text", SPLIT)
def test_split_characters_come_whole(byte_level: Tokenizer, text: str) -> None:
    pieces = pieces_of(byte_level, byte_level.encode(f"x{text}y").ids)
    assert "".join(pieces) == f"x{text}y"
    assert not any("\ufffd" in piece for piece in pieces)


@pytest.mark.parametrize("text", ["\U0001fae0", "\u9f9c"])
def test_a_character_cut_off_at_the_end_is_one_replacement(
    byte_level: Tokenizer, byte_fallback: Tokenizer, text: str
) -> None:
    for missing in range(1, len(text.encode())):
        left = text.encode()[:-missing]
        assert "".join(pieces_of(byte_level, byte_level.encode(f"x{text}").ids[:-missing])) == "x\ufffd"
        assert "".join(pieces_of(byte_fallback, [258, *(1 + byte for byte in left)])) == "a\ufffd"


def test_random_bytes_decode_as_the_tokenizer_decodes_them_at_once(byte_level: Tokenizer) -> None:
    numbers = random.Random(0)
    for _ in range(300):
        tokens = [numbers.randrange(259) for _ in range(numbers.randrange(1, 40))]
        assert "".join(pieces_of(byte_level, tokens)) == byte_level.decode(tokens, skip_special_tokens=True)


def test_broken_bytes_of_a_fallback_decoder_break_no_stream(byte_fallback: Tokenizer) -> None:
    """The library raises "Invalid prefix" where a broken byte changes how its neighbours, already delivered, decode."""
    numbers = random.Random(0)
    for _ in range(300):
        tokens = [numbers.randrange(byte_fallback.get_vocab_size()) for _ in range(40)]
        text = "".join(pieces_of(byte_fallback, [*tokens, 260, 258]))
        assert text.endswith("ba")


def test_special_tokens_have_no_text(byte_level: Tokenizer) -> None:
    assert "".join(pieces_of(byte_level, byte_level.encode("a<|im_start|>b<|im_end|>").ids)) == "ab"


def test_special_tokens_that_are_shown_stand_between_texts(byte_level: Tokenizer) -> None:
    shown = byte_level.get_vocab()["<|im_start|>"]
    detokenizer = Detokenizer(byte_level, {shown})
    tokens = byte_level.encode("a<|im_start|>\U0001fae0<|im_end|>b").ids
    cut_off = byte_level.encode("\U0001fae0").ids[:2]
    pieces = [detokenizer.push(token) for token in [*tokens, *cut_off, shown, *tokens]]
    assert "".join(pieces) == "a<|im_start|>\U0001fae0b\ufffd<|im_start|>a<|im_start|>\U0001fae0b"
