"""Chat requests on their way into the worker: find the session, wait for its turn there, then for a place."""

import asyncio
import secrets

import msgspec

from decoding.drafting import DraftingError, resolve
from decoding.suffix import LIMIT
from decoding.turn import Drafting, Sampling, Turn
from server.body import LARGE_BODY
from server.chain import Chain
from server.errors import invalid, timed_out
from server.lease import Lease
from server.request import DisplacedError, Request
from server.response_format import grammar_of
from server.schemas import ChatRequest
from server.service import Loaded, Service

MANY_MESSAGES = 200  # that take longer to hash than other requests should wait


class ChatTurn:
    """One choice of an answer."""

    def __init__(self, service: Service, loaded: Loaded, request: Request, asked: ChatRequest, deadline: float) -> None:
        """deadline: of the whole answer, in the event loop's time."""
        self._service, self._loaded = service, loaded
        self._deadline = deadline
        self.request, self.asked = request, asked
        self._lease: Lease | None = None

    @property
    def lease(self) -> Lease:
        """Of a turn that has begun."""
        assert self._lease is not None
        return self._lease

    async def begin(self, namespace: bytes, name: str | None) -> None:
        """Returns when the request runs. Raises `ApiError` where it cannot, or not in time."""
        seconds = self._service.settings.queue_timeout_seconds
        limit = min(self._deadline, asyncio.get_running_loop().time() + seconds)
        try:
            async with asyncio.timeout_at(limit):
                await self._enter(namespace, name)
                await self._run(await self._turn())
        except TimeoutError:
            raise timed_out(min(seconds, self._service.settings.request_timeout_seconds)) from None

    async def branch(self, request: Request, number: int) -> "ChatTurn":
        """Another choice, once the prompt of this one is read: of that it costs a copy. Raises `ApiError`."""
        branch = ChatTurn(self._service, self._loaded, request, self.asked, self._deadline)
        try:
            async with asyncio.timeout_at(self._deadline):
                await self.request.prompt_read()
                branch._lease = await self.lease.branch()
                assert self.request.turn is not None
                turn = self.request.turn
                seed = (turn.sampling.seed + number) % 2**64
                sampling = msgspec.structs.replace(turn.sampling, seed=seed)
                session = branch.lease.session.handle
                tokens = await branch.lease.tokens()
                await branch._run(msgspec.structs.replace(turn, session=session, tokens=tokens, sampling=sampling))
        except TimeoutError:
            branch.leave()
            raise timed_out(self._service.settings.request_timeout_seconds) from None
        except BaseException:
            branch.leave()
            raise
        return branch

    def leave(self) -> None:
        """The session is the next one's when the worker is done with this request, which must end now or soon."""
        if self._lease is not None:
            self._loaded.sessions.background(self._leave(self._lease))

    async def _leave(self, lease: Lease) -> None:
        ran = self.request.turn is not None
        if ran:
            await self.request.ended()
        await lease.leave(ran=ran)

    async def _enter(self, namespace: bytes, name: str | None) -> None:
        asked, loaded = self.asked, self._loaded
        for index, message in enumerate(asked.messages):
            if message.name is not None and not loaded.template.shows_names:
                raise invalid("This model's chat template shows no names.", f"messages[{index}].name")
        messages = [message.plain() for message in asked.messages]
        many = len(messages) > MANY_MESSAGES or sum(len(message["content"]) for message in messages) > LARGE_BODY
        chain = await asyncio.to_thread(Chain.of, namespace, messages) if many else Chain.of(namespace, messages)
        entry = await loaded.sessions.enter(chain, name, asked.session_mode, store=asked.store is not False)
        self._lease = Lease(loaded.sessions, entry, messages, loaded.template, loaded.facts, self._service.settings)

    async def _run(self, turn: Turn) -> None:
        scheduler, lease, request = self._service.scheduler, self.lease, self.request
        if lease.begins_anew:
            scheduler.drop(turn.session)
        held = lease.is_held(scheduler)
        while True:
            scheduler.submit(request, turn, await lease.placement(held=held), self.asked.priority)
            try:
                await request.admitted()
            except DisplacedError:
                held = False
            else:
                return

    async def _turn(self) -> Turn:
        """What the engine is asked. Raises `ApiError`."""
        asked, loaded, settings = self.asked, self._loaded, self._service.settings
        sampling, drafting = _sampling(asked, loaded.facts.vocab_size), _drafting(asked, loaded.facts.max_rows)
        grammar = await grammar_of(asked.response_format, loaded.grammars)
        tokens = await self.lease.tokens()
        prediction: list[int] = []
        if asked.prediction:
            prediction = await asyncio.to_thread(loaded.template.encode_text, asked.prediction.text)
        return Turn(
            session=self.lease.session.handle,
            tokens=tokens,
            sampling=sampling,
            max_tokens=asked.asked_tokens or settings.max_output_tokens,
            min_tokens=asked.min_tokens,
            end_ids=loaded.facts.end_ids,
            drafting=drafting,
            prediction=prediction[:LIMIT],  # as much of it as is kept to draft from
            grammar=grammar,
        )


def _sampling(asked: ChatRequest, vocab_size: int) -> Sampling:
    """Raises `ApiError`."""
    logit_bias = {int(token): bias for token, bias in asked.logit_bias.items()}
    if max(logit_bias, default=0) >= vocab_size:
        raise invalid(f"'logit_bias' takes the model's token ids, which are 0 to {vocab_size - 1}.", "logit_bias")
    return Sampling(
        # negative seeds are as good as others
        seed=secrets.randbits(64) if asked.seed is None else asked.seed % 2**64,
        temperature=asked.temperature,
        top_k=asked.top_k,
        top_p=asked.top_p,
        min_p=asked.min_p,
        presence_penalty=asked.presence_penalty,
        frequency_penalty=asked.frequency_penalty,
        repetition_penalty=asked.repetition_penalty,
        logit_bias=logit_bias,
    )


def _drafting(asked: ChatRequest, max_rows: int) -> Drafting | None:
    """Raises `ApiError`."""
    if asked.lookahead is None:
        return None
    try:
        return resolve(asked.lookahead.drafting, max_rows)
    except DraftingError as error:
        path = f"lookahead.{error.parameter}"
        raise invalid(f"Invalid value for '{path}': {error}.", path, "invalid_value") from None
