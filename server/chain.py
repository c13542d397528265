"""Messages as they are compared: their canonical form, its digest, and a hash chain over a conversation's digests.

Two messages are the same if they differ in nothing that a client may change on its way back: how text is cut into
parts, white space around an assistant's text, how a tool call's arguments are spelled, null for absent or empty, and
developer for system. Only what is named in `canonical` counts; what a message holds beside it (an assistant's
reasoning, which half of all clients send back) does not.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Self

DIGEST_BYTES = 16

Message = Mapping[str, Any]  # as in a request's JSON: role, content, name, tool_calls, tool_call_id

_PLAIN = {role: json.dumps({"role": role}) for role in ("system", "user", "assistant")}  # nearly all messages


_HEADS = {
    role: json.dumps({"role": role}).encode() + b"\n" for role in ("system", "developer", "user", "assistant", "tool")
}


def canonical(message: Message) -> bytes:
    """The form whose bytes are equal for messages that are the same, and differ for all others.

    One line of JSON with all but the text, then the text as it is: a conversation of megabytes is hashed at each turn.
    """
    role = "system" if message["role"] == "developer" else message["role"]
    if len(message) == 2 and isinstance(text := message.get("content"), str):  # as nearly all are
        return _HEADS[role] + (text.strip() if role == "assistant" else text).encode(errors="surrogatepass")
    text = message.get("content") or ""
    if not isinstance(text, str):
        text = "".join(part["text"] for part in text)
    if role == "assistant":
        text = text.strip()
    head = {"role": role, **{key: message[key] for key in ("name", "tool_call_id") if message.get(key)}}
    if calls := message.get("tool_calls"):
        head["tool_calls"] = [_call(call) for call in calls]
    line = _PLAIN.get(role) if len(head) == 1 else None
    return f"{line or json.dumps(head, sort_keys=True)}\n{text}".encode(errors="surrogatepass")


def digest(message: Message) -> bytes:
    """16 bytes that stand for the message's canonical form."""
    return blake2b(canonical(message), digest_size=DIGEST_BYTES).digest()


def is_history(roles: Iterable[str]) -> bool:
    """Whether messages with these roles show what was said before, so that a session can be rebuilt from them."""
    return "assistant" in roles


@dataclass(eq=False)
class Chain:
    """Digests of a conversation's messages, one by one and as a chain; `links[n]` stands for the first n messages.

    `links[0]` is the root: whose conversation it is (`namespace`), and the tools. Chains are compared by their links
    where all must be equal, tools too, and by `digests` where parts are.
    """

    namespace: bytes
    tools: bytes = b""  # a digest of the tools, or their JSON itself; empty without tools
    roles: list[str] = field(default_factory=list)  # developer is system here
    digests: list[bytes] = field(default_factory=list)
    links: list[bytes] = field(default_factory=list)

    def __post_init__(self) -> None:
        digests, self.digests = self.digests, []
        size = len(self.namespace).to_bytes(4)  # so that the border between the two is no matter of taste
        self.links = [blake2b(size + self.namespace + self.tools, digest_size=DIGEST_BYTES).digest()]
        self._link(digests)

    @classmethod
    def of(cls, namespace: bytes, messages: Iterable[Message], tools: bytes = b"") -> Self:
        """4 MB in 4,000 messages take about 15 ms: more than an event loop should stand still for."""
        chain = cls(namespace, tools)
        for message in messages:
            chain.add(message)
        return chain

    def __len__(self) -> int:
        return len(self.digests)

    @property
    def num_system(self) -> int:
        """System messages before all others: with the tools they are the pinned block."""
        return next((i for i, role in enumerate(self.roles) if role != "system"), len(self))

    def add(self, message: Message) -> None:
        self.extend(["system" if message["role"] == "developer" else message["role"]], [digest(message)])

    def extend(self, roles: Sequence[str], digests: Sequence[bytes]) -> None:
        assert len(roles) == len(digests)
        self.roles += roles
        self._link(digests)

    def truncate(self, num_messages: int) -> None:
        del self.roles[num_messages:], self.digests[num_messages:], self.links[num_messages + 1 :]

    def copy(self, num_messages: int) -> Self:
        return type(self)(self.namespace, self.tools, self.roles[:num_messages], self.digests[:num_messages])

    def _link(self, digests: Sequence[bytes]) -> None:
        link = self.links[-1]
        for one in digests:
            link = blake2b(link + one, digest_size=DIGEST_BYTES).digest()
            self.links.append(link)
        self.digests += digests


def _call(call: Message) -> dict[str, str]:
    function = call.get("function") or {}
    head = {"id": call.get("id") or "", "name": function.get("name") or ""}
    text = function.get("arguments") or "{}"
    try:
        return {**head, "arguments": json.dumps(json.loads(text), sort_keys=True)}
    except (ValueError, RecursionError):  # no JSON, or numbers too long or lists too deep for Python
        return {**head, "text": text}
