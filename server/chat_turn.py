"""Chat requests on their way into the worker: find the session, wait for its turn there, then for a place."""

import asyncio

from decoding.grammar import GrammarError
from decoding.suffix import LIMIT
from decoding.turn import Turn
from server import asking, chat_prompt
from server.asking import another
from server.body import LARGE_BODY
from server.chain import Chain
from server.errors import invalid
from server.lease import Lease
from server.placing import in_time, place
from server.reasoning import Reasoning
from server.request import Request
from server.response_format import checked, grammar_of
from server.schemas import ChatRequest
from server.service import Loaded, Service
from server.session import Entry
from server.tools.calls import Calls
from server.tools.format import UnenforceableError
from server.transcript import Transcript

MANY_MESSAGES = 200  # that take longer to hash than other requests should wait


class ChatTurn:
    """One choice of an answer."""

    def __init__(self, service: Service, loaded: Loaded, request: Request, asked: ChatRequest, deadline: float) -> None:
        """deadline: of the whole answer, in the event loop's time."""
        self._service, self._loaded = service, loaded
        self._deadline = deadline
        self.request, self.asked = request, asked
        self._lease: Lease | None = None
        self._template = loaded.template

    @property
    def lease(self) -> Lease:
        """Of a turn that has begun."""
        assert self._lease is not None
        return self._lease

    async def begin(self, namespace: bytes, name: str | None) -> None:
        """Returns when the request runs. Raises `ApiError` where it cannot, or not in time."""
        settings = self._service.settings
        seconds = settings.queue_timeout_seconds
        limit = min(self._deadline, asyncio.get_running_loop().time() + seconds)
        async with in_time(limit, min(seconds, settings.request_timeout_seconds)):
            await self._enter(namespace, name)
            await self._run(await self._turn())

    async def branch(self, request: Request, number: int) -> "ChatTurn":
        """Another choice, once the prompt of this one is read: of that it costs a copy. Raises `ApiError`."""
        branch = ChatTurn(self._service, self._loaded, request, self.asked, self._deadline)
        try:
            async with in_time(self._deadline, self._service.settings.request_timeout_seconds):
                await self.request.prompt_read()
                branch._lease = await self.lease.branch()
                session, tokens = branch.lease.session.handle, await branch.lease.tokens()
                await branch._run(another(self.request, number, session, tokens))
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
        settings = self._service.settings
        prompt = await chat_prompt.read(asked, loaded, settings, goes_on=name is not None)
        self._template, messages, tools = prompt.template, prompt.messages, prompt.tools
        many = len(messages) > MANY_MESSAGES or sum(len(message["content"]) for message in messages) > LARGE_BODY
        parts = namespace, messages, tools.encoded
        chain = await asyncio.to_thread(Chain.of, *parts) if many else Chain.of(*parts)
        entry = await self._find(chain, name)
        self._lease = Lease(
            loaded.sessions, entry, messages, self._template, loaded.facts, settings, tools, prompt.begun
        )

    @property
    def transcript(self) -> Transcript:
        """A new one, for the answer to come."""
        asked, template = self.asked, self._template
        functions = asked.choice.callable(self.lease.tools)
        shown, calls = [*template.special_tags.values()], None
        if functions:
            calls = Calls(template.dialect.format.reader(functions), parallel=asked.choice.parallel)
            shown += template.special_marks.values()
        return Transcript(
            template.tokenizer,
            asked.stop,
            vocabulary=self._loaded.vocabulary if asked.logprobs else None,
            reasoning=Reasoning(template.tags, opened=template.opens),
            calls=calls,
            shown=frozenset(shown),
        )

    async def _grammar(self) -> str | None:
        """What the answer must follow, where it must. Raises `ApiError`."""
        asked, grammars, template = self.asked, self._loaded.grammars, self._template
        tools, choice = self.lease.tools, asked.choice
        grammar = await grammar_of(asked.response_format, grammars)
        if grammar is not None and choice.callable(tools):
            raise invalid("Answers of a format hold no calls: 'tool_choice' should be none.", "response_format")
        if not choice.constrains(tools):
            return grammar
        try:
            calls = template.dialect.format.grammar(tools, choice, template.special_marks)
            return await asyncio.to_thread(checked, calls, grammars)
        except (UnenforceableError, GrammarError) as error:
            raise invalid(f"Calls of 'tools' cannot be asked for: {error}", "tools", "invalid_schema") from None

    async def _find(self, chain: Chain, name: str | None) -> Entry:
        asked = self.asked
        return await self._loaded.sessions.enter(chain, name, asked.session_mode, store=asked.store is not False)

    async def _run(self, turn: Turn) -> None:
        scheduler, lease = self._service.scheduler, self.lease
        if lease.begins_anew:
            scheduler.drop(turn.session)
        await place(scheduler, self.request, turn, lease.placement, self.asked.priority)

    async def _turn(self) -> Turn:
        """What the engine is asked. Raises `ApiError`."""
        asked, loaded, settings = self.asked, self._loaded, self._service.settings
        facts = loaded.facts
        sampling, drafting = asking.sampling(asked, facts.vocab_size), asking.drafting(asked, facts.max_rows)
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
            end_ids=asking.end_ids(asked, facts),
            drafting=drafting,
            prediction=prediction[:LIMIT],  # as much of it as is kept to draft from
            logprobs=asked.told_logprobs,
            grammar=await self._grammar(),
        )
