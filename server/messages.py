"""All messages between the API process and its worker, both directions. Each pipe keeps their order."""

import msgspec

from decoding.options import EngineFacts
from decoding.turn import Output, Turn

MAX_SAVING = 8  # sessions that are being saved at once; the worker refuses more: each has a copy in memory


class Open(msgspec.Struct, frozen=True, tag=True):
    """Take a place for a session whose first `sinks` tokens stay for ever. Answered only where there is none."""

    session: str
    sinks: int
    namespace: str = ""  # whose pinned blocks it may share
    ids: bytes = b""  # all that it holds so far, as int32, little end first
    snapshot: str | None = None  # a file that may hold its cache, of all these ids or the first of them


class Fork(msgspec.Struct, frozen=True, tag=True):
    """Take a place for a copy of another session's first `keep` tokens. Answered only where there is none."""

    session: str
    source: str
    keep: int


class Park(msgspec.Struct, frozen=True, tag=True):
    """Move a session to host memory, and give its place back. Answered by `Parked`."""

    session: str


class Resume(msgspec.Struct, frozen=True, tag=True):
    """Take a place for a parked session. Answered only where there is none."""

    session: str


class Save(msgspec.Struct, frozen=True, tag=True):
    """Write the session's cache to a file. Answered by `Saved`, when it is on the disk."""

    session: str
    path: str


class Start(msgspec.Struct, frozen=True, tag=True):
    """Run a turn of a session that has a place, behind its first `keep` tokens (None: all). Answered by `Started`.

    Dropped where the session is not open: its end has been reported by then.
    """

    turn: Turn
    keep: int | None = None
    snapshot: str | None = None  # as of `Open`, where `keep` is further back than the cache can be rolled back


class Finish(msgspec.Struct, frozen=True, tag=True):
    """End the session's turn and roll back to its first `keep` tokens. Answered by `Finished`."""

    session: str
    keep: int


class Close(msgspec.Struct, frozen=True, tag=True):
    """Forget the session, and give its place back."""

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
    """The session could not be opened, copied or resumed."""

    session: str


class Parked(msgspec.Struct, frozen=True, tag=True):
    """The session has given its place back, and takes so much host memory."""

    session: str
    num_bytes: int


class Saved(msgspec.Struct, frozen=True, tag=True):
    """A snapshot of the session's first `length` tokens is on the disk; None: it could not be written."""

    session: str
    length: int | None


class Started(msgspec.Struct, frozen=True, tag=True):
    """The turn runs: `cached` keys of the session will be used again, and `forwarded` tokens are to be read."""

    session: str
    cached: int
    forwarded: int


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
    idle_seconds: float = 0.0  # since the step before, where there was work all the while


Change = Open | Fork | Park | Resume | Save | Start | Finish | Close
ToWorker = Change | Stop
Report = NoPlace | Parked | Saved | Started | Finished | Failed | Step
FromWorker = Ready | Refused | Report

encode = msgspec.msgpack.Encoder().encode
decode_to_worker = msgspec.msgpack.Decoder(ToWorker).decode
decode_from_worker = msgspec.msgpack.Decoder(FromWorker).decode
