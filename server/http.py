"""HTTP as uvicorn speaks it, with an end to connections that only take room."""

import asyncio

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

HEAD_SECONDS = 30.0  # for a request's head to come whole, from the first byte on, or from the connection's beginning


class HttpProtocol(H11Protocol):
    """uvicorn closes a connection that is silent behind an answer. This one closes also those that never ask, or never
    end their question's head: so many would come together that nobody else could connect.
    """

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._stop_waiting()
        elif self._waiting is None and self.timeout_keep_alive_task is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._stop_waiting()
        self._unset_keepalive_if_required()  # uvicorn leaves it running where the client has reset the connection

    def _await_head(self) -> None:
        self._waiting = asyncio.get_running_loop().call_later(HEAD_SECONDS, self.transport.close)

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
