"""The endpoint: who calls, what is asked, and one engine that answers all of them."""

import asyncio
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from gruppo.engines.base import NotFinite, Request
from gruppo.serve import ids
from gruppo.serve.chat import Answer, Asked
from gruppo.serve.http import HOST, Call, Refusal, Reply, Server
from gruppo.serve.responses import asked_of, reply_of
from gruppo.serve.session import Plan, Session
from gruppo.stages.context import Context, Sampling
from gruppo.stages.play import request_after
from gruppo.tasks.imports import nearest

HEADER = "x-gruppo-episode"
# How a request is read and an answer written, by route.
FORMS: dict[str, tuple[Callable[[Any], Asked], Callable[[Answer, str, Asked], Reply]]] = {
    "chat/completions": (Asked.of, Answer.reply),
    "responses": (asked_of, reply_of),
}
EDITED = (
    "a call of an agent does not go on with the messages and answers before it (they were edited, or it is another "
    "dialogue), so a new sequence of its episode began. That is no mistake, and is told only once."
)
SAMPLED = (
    "an agent asked for temperature={0} or top_p={1}: in training and evaluation the settings of the run hold "
    "(sampling, eval.temperature), since what is learned depends on them. This is told only once."
)


@dataclass
class Endpoint:
    """Serves a policy on this machine: POST /v1/chat/completions, /v1/responses; GET /v1/models.

    If free, it completes ids, too: POST /v1/completions.

    find      the session of an episode by its name, which is in the path (/v1/NAME/…), in the header X-Gruppo-Episode
              or is the API key ("" if there is none), and by the API key. Raises a Refusal.
    sampling  (session) -> how tokens are drawn
    free      requests may choose their own temperature and top_p
    """

    ctx: Context  # engine and tokenizer
    model: str
    find: Callable[[str, str], Session]
    sampling: Callable[[Session], Sampling]
    free: bool = False
    say: Callable[[str], None] = print
    told: set[str] = field(default_factory=set[str])
    broken: Exception | None = None  # of the engine: the program is not to blame

    async def start(self, port: int = 0) -> "Endpoint":
        self.server = await Server(self.handle).start(port)
        return self

    async def close(self) -> None:
        await self.server.close()

    @property
    def address(self) -> str:
        return f"http://{HOST}:{self.server.port}/v1"

    async def handle(self, call: Call) -> Reply:
        route, name, key = where(call)
        if route == "models" and call.method == "GET":
            row = {"id": self.model, "object": "model", "created": 0, "owned_by": "gruppo"}
            return Reply({"object": "list", "data": [row]})
        if route not in FORMS and not (self.free and route == "completions"):
            here = f"/v1/chat/completions, /v1/responses{', /v1/completions' if self.free else ''} or /v1/models"
            raise Refusal(404, f"there is no {call.path} here. Use {here}.", "not_found")
        if call.method != "POST":
            raise Refusal(405, f"{call.method} {call.path}: completions are asked for by POST.")
        body = call.json()
        if (model := body.get("model", self.model)) != self.model:
            near = nearest(str(model), [self.model])
            said = f"there is no model {model!r} here.{near} Models: {self.model}."
            raise Refusal(404, said, "model_not_found", "model")
        session = self.find(name, key)
        if route == "completions":
            return await self.completed(body)
        read, write = FORMS[route]
        asked = read(body)
        with session:
            return write(await self.answer(session, asked), self.model, asked)

    async def completed(self, body: dict[str, Any]) -> Reply:
        """A completion of ids, for another engine: no dialogue, and nothing is remembered of it."""
        request = ids.request_of(body, secrets.randbits(62))
        try:
            return ids.reply_of(request, await self.ctx.engine.ask(request), self.model)
        except ValueError as error:  # such as ids without an embedding; logits that are not finite are our fault
            raise Refusal(500 if isinstance(error, NotFinite) else 400, str(error)) from None

    async def answer(self, session: Session, asked: Asked) -> Answer:
        if session.calls >= session.turns:
            raise Refusal(
                400,
                f"this episode has made its {session.turns} calls, so the policy says no more. End the episode, or "
                "make fewer calls.",
                "turns_exceeded",
            )
        session.calls += 1
        plan = session.plan(asked)
        try:
            request = self.request(session, asked, plan)
            if plan.edited:
                self._once(EDITED)
            completion = await self._completed(request)
            if session.over:  # it ended while the engine worked
                raise gone()
            return session.take(plan, asked, completion, request.temperature)
        finally:
            session.drop(plan)

    def request(self, session: Session, asked: Asked, plan: Plan) -> Request:
        size, length = self.ctx.engine.context(), len(plan.ids)
        if length >= size:
            raise Refusal(
                400,
                f"the messages have {length} tokens, and the context of this policy has {size}, so no answer fits. "
                "Shorten or drop earlier messages: then a new sequence begins.",
                "context_length_exceeded",
                "messages",
            )
        how = self.sampling(session)
        own = {n: v for n in ("temperature", "top_p") if (v := getattr(asked, n)) is not None}
        if self.free:
            how = replace(how, **own)
        elif any(v != getattr(how, n) for n, v in own.items()):
            self._once(SAMPLED.format(asked.temperature, asked.top_p))
        most = min(n for n in (how.max_tokens, asked.max_tokens, size - length) if n)
        key = plan.key if asked.seed is None or not self.free else asked.seed
        try:
            made = request_after(self.ctx, plan.ids, key, replace(how, max_tokens=most))
            return replace(made, stop_text=asked.stop)
        except ValueError as error:
            raise Refusal(400, str(error)) from None

    async def _completed(self, request: Request) -> Any:
        try:
            return await self.ctx.engine.ask(request)
        except asyncio.CancelledError:
            raise
        except Exception as error:  # of the model, such as logits that are not finite
            self.broken = self.broken or error
            raise Refusal(500, f"the engine failed: {error}") from None

    def _once(self, sentence: str) -> None:
        kind = sentence[:20]
        if kind not in self.told:
            self.told.add(kind)
            self.say(sentence)


def gone() -> Refusal:
    return Refusal(
        410,
        "this episode is over: its program has ended or was ended, so this answer would belong to nothing. Make all "
        "calls before the program returns its reward.",
        "episode_over",
    )


def where(call: Call) -> tuple[str, str, str]:
    """The route without /v1, the name of the episode (of the path, else of the header, else the key), the API key."""
    parts = [p for p in call.path.split("/") if p]
    parts = parts[1:] if parts[:1] == ["v1"] else parts
    key = call.headers.get("authorization", "").partition(" ")[2].strip()
    name = call.headers.get(HEADER, "") or key
    for route in (*(form.split("/") for form in FORMS), ["completions"], ["models"]):
        if parts[-len(route) :] == route and len(parts) <= len(route) + 1:
            return "/".join(route), parts[0] if len(parts) > len(route) else name, key
    return "/".join(parts), name, key
