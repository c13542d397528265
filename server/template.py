"""Messages to token ids, by the model's own chat template and tokenizer."""

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from hashlib import blake2b
from itertools import takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from jinja2 import Environment, TemplateError, meta
from tokenizers import AddedToken, Tokenizer

from server.chain import Message
from server.reasoning import KNOWN_TAGS
from server.tools.definitions import Tools
from server.tools.detection import CALL_ID, CALLED, PROBE, RESULT, detect
from server.tools.dialect import has_calls

if TYPE_CHECKING:  # takes seconds, in which the server should answer already that it is loading
    from transformers import PreTrainedTokenizerFast

MIN_PINNED = 4
MAX_VIEWS = 64  # sets of options that are remembered
# Variables of templates that are no requests' business.
GIVEN = frozenset({"messages", "tools", "documents", "add_generation_prompt", "raise_exception", "strftime_now"})
# Stand for the control token number N of a message, as OPEN N CLOSE: private characters, which templates leave alone.
OPEN, CLOSE = "\U000f0000", "\U000f0001"
REPLY = "\U000f0002"  # stands for what the assistant said, where only what follows it is wanted
SENTINEL = re.compile(f"{OPEN}([0-9]+){CLOSE}")
NO_TOOLS = Tools()


class TokenizerError(ValueError):
    """The model's folder holds no tokenizer and chat template that can be served; the message says why."""


class MessagesError(ValueError):
    """The template does not take these messages; the message says why."""


class ChatTemplate:
    """Encodes conversations. Has no state that changes: any thread may call it, and it is best kept off event loops.

    Text is tokenized as transformers' `apply_chat_template` does it, with one exception: a control token that is
    written in a message stays text. Only the template makes control tokens.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerFast", *, keep_thinking: bool = False) -> None:
        """keep_thinking: what was thought before a reply stays in the conversation, whatever the template says."""
        self._template = tokenizer
        self._options: Mapping[str, Any] = {}
        self._continues = False
        self._views: dict[bytes, Self] = {}
        self.variables = _variables(str(tokenizer.chat_template))  # that requests may set
        self.tokenizer = _copy(tokenizer.backend_tokenizer)
        self._literal = _copy(tokenizer.backend_tokenizer)  # reads control tokens as text
        self._literal.encode_special_tokens = True
        control = {index: token for index, token in self.tokenizer.get_added_tokens_decoder().items() if token.special}
        self._control_ids = frozenset(control)
        patterns = sorted(map(_pattern, control.values()), key=len, reverse=True)
        self._control_in_text = re.compile("|".join(patterns) or "(?!)")
        self._protected = sorted(
            [OPEN, CLOSE, REPLY, *(token.content for token in control.values())], key=len, reverse=True
        )
        self._protected_in_messages = re.compile("|".join(map(re.escape, self._protected)))
        probe = [{"role": "user", "content": "-", "name": "sinkahead-probe"}]
        self.shows_names = "sinkahead-probe" in self._render(probe)
        self.tags = next((tags for tags in KNOWN_TAGS if tags.close in str(tokenizer.chat_template)), None)
        self._keeps_thinking = keep_thinking
        self._probe()
        self.dialect = detect(self._render)
        # Special tokens that readers of answers must see.
        self.special_marks = self._special(self.dialect.format.marks)
        self.special_tags = self._special((self.tags.open, self.tags.close) if self.tags else ())
        self.grows_with_tools = self._grows_with_tools()
        parts = self.tokenizer.to_str(), str(tokenizer.chat_template)
        self.identity = blake2b("\0".join(parts).encode(), digest_size=16).hexdigest()  # of what makes ids of text

    def having(self, options: Mapping[str, Any], *, continues: bool = False) -> Self:
        """The same template with values for its variables. continues: what it says next has begun, so that it does not
        think before. Raises `MessagesError`.
        """
        if not options and not continues:
            return self
        key = json.dumps([options, continues], sort_keys=True).encode()
        view = self._views.get(key)
        if view is None:
            view = copy(self)
            view._options, view._continues = options, continues
            view._probe()
            if len(self._views) >= MAX_VIEWS:
                self._views.clear()
            self._views[key] = view
        return view

    def _probe(self) -> None:
        probe = [{"role": "user", "content": "-"}]
        self.opens = self.tags is not None and self._render(probe).rstrip().endswith(self.tags.open)
        self.grows = self._grows_behind("said {}") and (self._keeps_thinking or self._grows_thinking())

    @classmethod
    def load(cls, folder: Path, *, keep_thinking: bool = False) -> Self:
        """Raises `TokenizerError`."""
        from transformers import AutoTokenizer, PreTrainedTokenizerFast

        try:
            tokenizer = AutoTokenizer.from_pretrained(folder)
        except Exception as error:
            raise TokenizerError(f"the tokenizer cannot be loaded: {' '.join(str(error).split())}") from error
        if not isinstance(tokenizer, PreTrainedTokenizerFast):
            raise TokenizerError("the tokenizer is not of the fast kind (tokenizer.json)")
        if not tokenizer.chat_template:
            raise TokenizerError("the model has no chat template")
        try:
            return cls(tokenizer, keep_thinking=keep_thinking)
        except MessagesError as error:
            raise TokenizerError(f"the chat template cannot be used: {error}") from error

    def encode(self, messages: Sequence[Message], tools: Tools = NO_TOOLS, *, opens_reply: bool = True) -> list[int]:
        """The conversation up to where the assistant speaks next, or only up to its end. Raises `MessagesError`."""
        prepared, shown = self._prepare(messages, tools)
        guarded = self._guarded(prepared)
        text = self._render(guarded, self._guarded(shown), opens_reply=opens_reply)
        return self._tokenize(text, plain=guarded == list(prepared))

    def encode_behind(
        self,
        system: Sequence[Message],
        messages: Sequence[Message],
        tools: Tools = NO_TOOLS,
        names: Mapping[str, str] | None = None,
    ) -> list[int]:
        """What follows a reply of the assistant's: its closing, then `messages`, up to where it speaks next.

        Nothing that came before the reply is rendered but the system messages. names: of the calls that were made
        before, by their ids. Raises `MessagesError`.
        """
        guarded = self._guarded(self._prepare(messages, NO_TOOLS, names)[0])
        text = self._render_behind(self._guarded(system), guarded, tools)
        plain = guarded == list(messages)
        if self._control_ids and not self._control_in_text.match(text):
            # Tokenizers may write the beginning of a text in another way than its middle, which this is.
            control = min(self._control_ids)
            begin = self.tokenizer.id_to_token(control)
            ids = self._tokenize(f"{begin}{text}", plain=plain)
            return ids[ids.index(control) + 1 :]
        return self._tokenize(text, plain=plain)

    def _render_behind(self, system: Sequence[Message], messages: Sequence[Message], tools: Tools) -> str:
        before = [*system, {"role": "user", "content": "-"}, {"role": "assistant", "content": REPLY}]
        prepared, shown = self._prepare(before, tools)
        return self._render([*prepared, *messages], self._guarded(shown)).partition(REPLY)[2]

    def _prepare(
        self, messages: Sequence[Message], tools: Tools, names: Mapping[str, str] | None = None
    ) -> tuple[Sequence[Message], list[dict[str, Any]] | None]:
        if not tools and not any(map(has_calls, messages)):
            return messages, None
        return self.dialect.prepare(messages, tools, names or {})

    def _special(self, texts: Iterable[str]) -> dict[str, int]:
        tokens = {text: self.tokenizer.token_to_id(text) for text in texts}
        return {text: token for text, token in tokens.items() if token in self._control_ids}

    def _grows_thinking(self) -> bool:
        """The same where the model thinks: its template, or we, drop what was thought."""
        return self.tags is None and self._grows_behind("<think>thought {}</think>said {}")

    def _grows_behind(self, reply: str) -> bool:
        """Whether a conversation that goes on is rendered as before, with more behind it, whatever came before.

        Some templates change what they said: they mark the last message, or drop what was thought. With those the
        whole conversation is rendered at each turn.
        """
        chat = []
        for number in range(3):
            chat += [{"role": "user", "content": f"user {number}"}]
            chat += [{"role": "assistant", "content": reply.replace("{}", str(number))}]
        more = [{"role": "user", "content": "new"}]
        for system in ([], [{"role": "system", "content": "s"}]):
            for new in (more, [*chat[:2], *more]):
                try:
                    before = self._unopened(self._render([*system, *chat[:-1]]))
                    longer = self._render([*system, *chat, *new])
                    whole = self._render([*system, *chat[:-1], {"role": "assistant", "content": REPLY}, *new])
                    alone = self._render([*system, chat[0], {"role": "assistant", "content": REPLY}, *new])
                except MessagesError:
                    if system:  # a template without such messages
                        continue
                    return False
                behind = alone.partition(REPLY)[2]
                for text, said in ((whole, REPLY), (longer, chat[-1]["content"])):
                    # White space in between is what the model says itself, in templates that write it.
                    if not text.startswith(before) or not text[len(before) :].lstrip().startswith(said):
                        return False
                if whole.partition(REPLY)[2] != behind or not longer.endswith(behind):
                    return False
        return True

    def _unopened(self, text: str) -> str:
        """Without the tag before what the assistant thinks next: no reply is rendered with it."""
        return self._without_tag(text) if self.opens else text

    def _without_tag(self, text: str) -> str:
        opened = text.rstrip()
        return opened.removesuffix(self.tags.open) if self.tags and opened.endswith(self.tags.open) else text

    def _grows_with_tools(self) -> bool:
        """The same for conversations with calls: whether what is new can be rendered alone, behind any reply."""
        results: list[Message] = [CALLED, RESULT]
        said = {"role": "assistant", "content": "said"}
        users = [{"role": "user", "content": f"user {number}"} for number in range(4)]
        chat = [users[0], *results, *results, said, users[1], said, users[2], *results, said, users[3]]
        starts = [index for index, message in enumerate(chat) if message["role"] == "assistant"]
        try:
            for start, end in zip(starts, [*starts[1:], len(chat)], strict=True):
                before, whole = (self._render(*self._prepare(chat[:stop], PROBE)) for stop in (start, end))
                before = self._unopened(before)
                new = self._prepare(chat[start + 1 : end], NO_TOOLS, {CALL_ID: PROBE.functions[0].name})[0]
                behind = self._render_behind([], new, PROBE)
                if not (whole.startswith(before) and whole[len(before) :].endswith(behind)):
                    return False
        except MessagesError:
            return False
        return True

    def _tokenize(self, text: str, *, plain: bool) -> list[int]:
        """plain: the messages in it had nothing that looks like a control token."""
        if plain:
            ids = _encode(self.tokenizer, text)
            # More control tokens than the text shows: the tokenizer's normalizer made some, of look-alike characters.
            if sum(map(self._control_ids.__contains__, ids)) == len(self._control_in_text.findall(text)):
                return ids
        return self._encode_parts(text)

    def encode_text(self, text: str) -> list[int]:
        """Text of its own, without control tokens: one that is written in it stays text."""
        return _encode(self._literal, text)

    def pinned(self, messages: Sequence[Message], tokens: Sequence[int], tools: Tools = NO_TOOLS) -> int:
        """How many of `tokens`, which `encode` made of `messages`, depend on nothing behind the system messages.

        The text of the first user message may melt into the token before it, so it is tried with two texts that
        begin differently: what they and `tokens` have in common is the pinned block. At least 4.
        """
        num_system = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
        variants = [
            self.encode([*messages[:num_system], {"role": "user", "content": text}], tools) for text in ("a", "Z")
        ]
        common = takewhile(lambda ids: len(set(ids)) == 1, zip(tokens, *variants, strict=False))
        return max(MIN_PINNED, sum(1 for _ in common))

    def _guarded(self, value: Any) -> Any:
        """A copy of messages or tools in which nothing looks like a control token."""
        if isinstance(value, str):
            return self._guard(value)
        if isinstance(value, Mapping):
            return {self._guard(key): self._guarded(inner) for key, inner in value.items()}
        return [self._guarded(inner) for inner in value] if isinstance(value, list | tuple) else value

    def _guard(self, text: str) -> str:
        return self._protected_in_messages.sub(lambda found: f"{OPEN}{self._protected.index(found[0])}{CLOSE}", text)

    def _render(
        self, messages: Sequence[Message], tools: list[dict[str, Any]] | None = None, *, opens_reply: bool = True
    ) -> str:
        given: tuple[Any, Any] = list(messages), tools
        try:
            text = self._template.apply_chat_template(
                given[0], tools=given[1], tokenize=False, add_generation_prompt=opens_reply, **self._options
            )
        except (TemplateError, TypeError, ValueError, ArithmeticError) as error:
            raise MessagesError(str(error)) from error
        assert isinstance(text, str)
        return self._without_tag(text) if self._continues else text

    def _encode_parts(self, text: str) -> list[int]:
        """Cut at the template's own control tokens; all that is between them is text."""
        ids: list[int] = []
        end = 0
        for found in self._control_in_text.finditer(text):
            ids += self._encode_literally(text[end : found.start()])
            ids += _encode(self.tokenizer, found[0])
            end = found.end()
        return ids + self._encode_literally(text[end:])

    def _encode_literally(self, text: str) -> list[int]:
        restored = SENTINEL.sub(lambda found: self._protected[int(found[1])], text)
        return _encode(self._literal, restored)


def _variables(template: str) -> frozenset[str]:
    """Names that a template takes from whoever renders it, but for those that everybody gives."""
    known = re.sub(r"{%-?\s*(end)?generation\s*-?%}", "", template)  # transformers' own statement
    environment = Environment(autoescape=True, extensions=["jinja2.ext.loopcontrols"])
    try:
        free = meta.find_undeclared_variables(environment.parse(known))
    except TemplateError:  # which rendering will tell of
        return frozenset()
    return frozenset(name for name in free - GIVEN if not name.endswith("_token"))


def _encode(tokenizer: Tokenizer, text: str) -> list[int]:
    """As a batch of one: `encode` holds the interpreter's lock all the while, and the event loop would stand still."""
    return tokenizer.encode_batch_fast([text], add_special_tokens=False)[0].ids


def _copy(tokenizer: Tokenizer) -> Tokenizer:
    copy = Tokenizer.from_str(tokenizer.to_str())
    copy.no_truncation()
    copy.no_padding()
    return copy


def _pattern(token: AddedToken) -> str:
    """What the tokenizer takes for this token, with the white space around it that it swallows."""
    return (r"\s*" if token.lstrip else "") + re.escape(token.content) + (r"\s*" if token.rstrip else "")
