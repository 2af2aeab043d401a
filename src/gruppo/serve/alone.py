"""A policy that is served without training: the dialogues of its visitors, so that each goes on where it was."""

from collections import OrderedDict
from typing import Any

from gruppo.data import Growing
from gruppo.serve.http import Refusal
from gruppo.serve.session import Session

VISITORS, CALLS = 256, 512  # kept: names, and calls of each before its dialogues are forgotten


class Visitors:
    """Sessions by name. Nothing is recorded: a session only knows what was sampled, so that it need not be rendered.

    key  the API key that all must send; empty: any, and it tells programs apart
    """

    def __init__(self, tokenizer: Any, seed: int, key: str = "") -> None:
        self.tokenizer, self.seed, self.key = tokenizer, seed, key
        self.number = 0
        self.sessions: OrderedDict[str, Session] = OrderedDict()

    def find(self, name: str, key: str = "") -> Session:
        if self.key and key != self.key:
            raise Refusal(401, "the API key is not that of --key, so nothing is served.", "invalid_api_key")
        session = self.sessions.get(name)
        if session is None or session.calls >= CALLS:
            self.number += 1
            session = self.sessions[name] = Session(Growing(self.seed + self.number, "", ""), self.tokenizer)
        self.sessions.move_to_end(name)
        if len(self.sessions) > VISITORS:
            self.sessions.popitem(last=False)
        return session
