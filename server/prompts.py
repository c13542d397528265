"""Prompts of /v1/completions, which are texts or token ids as they are."""

from dataclasses import dataclass

from tokenizers import Tokenizer

from server.completion_reply import Echo
from server.detokenizer import Detokenizer
from server.errors import context_length_exceeded, invalid
from server.request import Request
from server.schemas import CompletionRequest
from server.service import Loaded


@dataclass(frozen=True)
class Prompt:
    """A prompt as the model reads it; and its text, where that is to be told."""

    tokens: list[int]
    text: str
    offsets: list[int]  # characters of the text before each token

    def echo(self, request: Request) -> Echo:
        """request: that reads it."""
        return Echo(self.text, self.tokens, self.offsets, lambda: request.prompt_scores)


def encode(asked: CompletionRequest, loaded: Loaded, most: int) -> list[Prompt]:
    """Control tokens in a text are control tokens here: who completes texts writes templates of their own.

    most: tokens of a prompt. Raises `ApiError`.
    """
    tokenizer, facts = loaded.template.tokenizer, loaded.facts
    texts = [prompt for prompt in asked.prompt if isinstance(prompt, str)]
    encoded = iter(tokenizer.encode_batch_fast(texts, add_special_tokens=True) if texts else [])
    prompts = []
    for index, prompt in enumerate(asked.prompt):
        tokens = next(encoded).ids if isinstance(prompt, str) else prompt
        where = f"prompt[{index}]" if len(asked.prompt) > 1 else "prompt"
        if not tokens:
            raise invalid(f"'{where}' has no tokens: there is nothing to go on from.", where)
        if max(tokens) >= facts.vocab_size:
            raise invalid(f"'{where}' takes the model's token ids, which are 0 to {facts.vocab_size - 1}.", where)
        if len(tokens) > most:
            raise context_length_exceeded(f"'{where}' has {len(tokens)} tokens; at most {most} are taken.", where)
        if facts.max_length is not None and len(tokens) > facts.max_length:
            raise context_length_exceeded(
                f"'{where}' has {len(tokens)} tokens; at most {facts.max_length} fit here.", where
            )
        prompts.append(_told(tokens, prompt, tokenizer) if asked.echo else Prompt(tokens, "", []))
    return prompts


def _told(tokens: list[int], prompt: str | list[int], tokenizer: Tokenizer) -> Prompt:
    detokenizer = Detokenizer(tokenizer)
    text, offsets = "", []
    for token in tokens:
        offsets.append(len(text))
        text += detokenizer.push(token)
    return Prompt(tokens, prompt if isinstance(prompt, str) else text + detokenizer.flush(), offsets)
