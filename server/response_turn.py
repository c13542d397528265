"""Responses on their way into the worker: chats that may go on from what an earlier response left."""

from decoding.turn import Turn
from server.chain import Chain
from server.chat_turn import ChatTurn
from server.errors import context_length_exceeded
from server.request import Request
from server.response_input import Conversation
from server.response_schemas import ResponseRequest
from server.service import Loaded, Service
from server.session import Entry


class ResponseTurn(ChatTurn):
    def __init__(
        self,
        service: Service,
        loaded: Loaded,
        request: Request,
        asked: ResponseRequest,
        conversation: Conversation,
        deadline: float,
    ) -> None:
        super().__init__(service, loaded, request, asked.chat(conversation.messages), deadline)
        self._source = conversation.source
        self._must_be_whole = asked.truncation == "disabled"

    async def _find(self, chain: Chain, name: str | None) -> Entry:
        if self._source is None:
            return await super()._find(chain, name)
        return await self._loaded.sessions.follow(self._source, chain, store=self.asked.store is not False)

    async def _turn(self) -> Turn:
        turn = await super()._turn()
        if self._must_be_whole and not self.lease.is_whole:
            raise context_length_exceeded("The model no longer sees the whole conversation, and 'truncation' is off.")
        return turn
