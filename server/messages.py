"""All messages between the API process and its worker, both directions. Each pipe keeps their order."""

import msgspec

from decoding.options import EngineFacts
from decoding.turn import Output, Turn


class Open(msgspec.Struct, frozen=True, tag=True):
    """Take a place for a session whose first `sinks` tokens stay for ever. Answered only where there is none."""

    session: str
    sinks: int


class Start(msgspec.Struct, frozen=True, tag=True):
    """Run a turn of an open session. Dropped where the session is not open: its end has been reported by then."""

    turn: Turn


class Finish(msgspec.Struct, frozen=True, tag=True):
    """End the session's turn and roll back to its first `keep` tokens. Answered by `Finished`."""

    session: str
    keep: int


class Close(msgspec.Struct, frozen=True, tag=True):
    """Give the session's place back."""

    session: str


class Stop(msgspec.Struct, frozen=True, tag=True):
    """End the process."""


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The model is loaded: the first message of a worker, unless it is `Refused`."""

    facts: EngineFacts


class Refused(msgspec.Struct, frozen=True, tag=True):
    """The model cannot be served, for a reason that people can read. The process ends."""

    reason: str


class NoPlace(msgspec.Struct, frozen=True, tag=True):
    """The session could not be opened."""

    session: str


class Finished(msgspec.Struct, frozen=True, tag=True):
    """The session's turn has ended, as asked for, and `length` of its tokens are left. No output of it follows."""

    session: str
    length: int


class Failed(msgspec.Struct, frozen=True, tag=True):
    """These sessions are closed because of a fault in the worker, which goes on."""

    sessions: list[str]
    reason: str


class Step(msgspec.Struct, frozen=True, tag=True):
    """What one step generated, for all sessions at once. Empty where it only read prompts."""

    outputs: list[Output]
    seconds: float


ToWorker = Open | Start | Finish | Close | Stop
FromWorker = Ready | Refused | NoPlace | Finished | Failed | Step

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
