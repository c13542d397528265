"""Whether grammars can be followed, found out before an answer begins, in a process of its own."""

import contextlib
import multiprocessing
import resource
import signal
import threading
from collections import OrderedDict
from collections.abc import Sequence
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess

from decoding.grammar import GrammarError, Grammars

SECONDS = 3.0  # to compile a grammar, which as a rule takes milliseconds
_START_SECONDS = 60.0
_REMEMBERED = 256  # grammars
_STACK_BYTES = 2**21  # less than the worker has, where the same will be compiled
_MEMORY_BYTES = 2**32


class GrammarChecker:
    """Compiles grammars as the worker will. A schema can be written that takes all time or memory there is, or that
    overflows a stack: it ends this process, and another one is started for the next grammar.
    """

    def __init__(self, tokenizer: str, vocab_size: int, end_ids: Sequence[int], seconds: float = SECONDS) -> None:
        """As `Grammars`; seconds: most for a grammar. The process starts with the first one."""
        self._arguments = tokenizer, vocab_size, list(end_ids)
        self._seconds = seconds
        self._lock = threading.Lock()
        self._process: BaseProcess | None = None
        self._known: OrderedDict[str, str | None] = OrderedDict()

    def check(self, grammar: str) -> None:
        """Raises GrammarError where it cannot be followed. It takes its time: not for the event loop."""
        with self._lock:
            if grammar in self._known:
                self._known.move_to_end(grammar)
                reason = self._known[grammar]
            else:
                reason = self._known[grammar] = self._ask(grammar)
                if len(self._known) > _REMEMBERED:
                    self._known.popitem(last=False)
        if reason is not None:
            raise GrammarError(reason)

    def close(self) -> None:
        """Ends the process, whatever it does."""
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._process = None

    def _ask(self, grammar: str) -> str | None:
        """Why it cannot be followed; None: it can."""
        if self._process is None or not self._process.is_alive():
            self._start()
        try:
            self._pipe.send(grammar)
            if self._pipe.poll(self._seconds):
                reason: str | None = self._pipe.recv()
                return reason
            reason = f"it is not compiled within {self._seconds:g} s"
        except (EOFError, OSError):
            reason = "it takes more memory to compile than there is for it"
        self.close()
        return reason

    def _start(self) -> None:
        spawning = multiprocessing.get_context("spawn")
        self._pipe, other = spawning.Pipe()
        self._process = spawning.Process(target=_serve, args=(other, *self._arguments), name="grammars", daemon=True)
        self._process.start()
        other.close()
        if not self._pipe.poll(_START_SECONDS):
            self.close()
            raise RuntimeError("the process that checks grammars does not start")
        with contextlib.suppress(EOFError):  # its death shows with the next message
            self._pipe.recv()


def _serve(pipe: Connection, tokenizer: str, vocab_size: int, end_ids: list[int]) -> None:
    """The process: one answer to each grammar, until the other side is gone."""
    for number in (signal.SIGINT, signal.SIGTERM):  # a terminal sends them to all: the parent decides
        signal.signal(number, signal.SIG_IGN)
    threading.stack_size(_STACK_BYTES)  # of the thread that compiles
    with contextlib.suppress(ValueError, OSError):  # where there is a tighter limit already
        resource.setrlimit(resource.RLIMIT_AS, (_MEMORY_BYTES, _MEMORY_BYTES))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    grammars: Grammars | str
    try:
        grammars = Grammars(tokenizer, vocab_size, end_ids)
    except GrammarError as error:
        grammars = str(error)
    with contextlib.suppress(EOFError, OSError):
        pipe.send(None)
        while True:
            grammar = pipe.recv()
            fault = grammars if isinstance(grammars, str) else grammars.matcher(grammar).exception()
            pipe.send(None if fault is None else str(fault))
