"""Ids of responses: they tell where the conversation is, so that no table of them is kept."""

import re
import secrets
from typing import NamedTuple, Self
from uuid import uuid4

KEY = "response"  # of a stored reply: its mark
_ID = re.compile(r"([a-z]+)_([0-9a-f]{32})([0-9a-f]{16})[0-9a-f]*")


class ResponseId(NamedTuple):
    """A session, and the mark of a reply in it. Nobody can guess either."""

    session: str
    mark: str

    @classmethod
    def make(cls, session: str | None, *, instructed: bool) -> Self:
        """session: None where nobody is to find it. instructed: the conversation begins with instructions."""
        return cls(session or uuid4().hex, f"{instructed:d}{secrets.token_hex(8)[1:]}")

    @classmethod
    def parse(cls, text: str, *kinds: str) -> Self | None:
        """Of a response (kind resp) or of an item in it; None: it is none of ours."""
        found = _ID.fullmatch(text)
        return cls(found[2], found[3]) if found and found[1] in kinds else None

    @property
    def instructed(self) -> bool:
        """Whether the conversation's first message is its instructions, which hold for one response only."""
        return self.mark[0] == "1"

    def of(self, kind: str, number: int = 0) -> str:
        """Of the response, or of an item in it: the one with this number of its kind."""
        return f"{kind}_{self.session}{self.mark}" + (f"{number:02x}" if number else "")
