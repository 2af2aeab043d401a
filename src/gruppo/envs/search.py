"""Search and answer: a question of two to four hops over a small encyclopedia."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from gruppo.envs.base import Called
from gruppo.envs.corpus import CORPORA, PEOPLE, RELATIONS, corpus, paths
from gruppo.envs.world import LOST, WON, Facts, Moved, World, nothing, spoken, wanted


class State(NamedTuple):
    found: tuple[int, ...] = ()  # of the last search, the best first
    at: int = 0  # which of them is shown
    read: tuple[int, ...] = ()  # every sentence that was shown, sorted


class Search(World[State]):
    name = "search"
    about = "questions of two to four hops over a small encyclopedia, ranked by BM25"
    rules = (
        "Answer the question. Search the encyclopedia: search WORDS shows the best sentence, next the one after it. "
        "Then say: answer WORD."
    )
    words = spoken("what is the of search next answer found ready you win lose nothing happens") | {
        word for relation, (subjects, values) in RELATIONS.items() for word in (relation, *subjects, *values)
    }
    levels = {1: (2, 6), 2: (3, 8), 3: (4, 10)}  # hops, turns

    @classmethod
    def count(cls, level: int) -> int:
        return CORPORA * len(PEOPLE) * len(paths(cls.levels[level][0]))

    @classmethod
    def numbered(cls, level: int, rank: int) -> dict[str, Any]:
        hops, turns = cls.levels[level]
        rank, path = divmod(rank, len(paths(hops)))
        key, person = divmod(rank, len(PEOPLE))
        return {"corpus": key, "person": PEOPLE[person], "path": list(paths(hops)[path]), "turns": turns}

    @classmethod
    def asked(cls, facts: Facts) -> str:
        chain = " ".join(f"the {relation} of" for relation in reversed(facts["path"]))
        return f"what is {chain} {facts['person']}"

    @classmethod
    def answer(cls, facts: Facts) -> str:
        return corpus(facts["corpus"]).follow(facts["person"], facts["path"])[-1]

    def begin(self, facts: Facts) -> State:
        self.corpus = corpus(wanted(facts, "corpus", int, "search"))
        person, path = wanted(facts, "person", str, "search"), tuple(wanted(facts, "path", list, "search"))
        if person not in PEOPLE or path not in paths(len(path)) or not path:
            raise ValueError(f"search: there is no {' of '.join(reversed(path))} of {person}. People: {PEOPLE}.")
        self.chain = self.corpus.follow(person, path)
        self.hops = list(zip(path, [person, *self.chain], strict=False))
        return State()

    def move(self, state: State, words: list[str]) -> Moved[State]:
        if words[0] == "search" and len(words) > 1:
            return self._shown(state, self.corpus.search(words[1:9]), 0, words)
        if words == ["next"] and state.at + 1 < len(state.found):
            return self._shown(state, state.found, state.at + 1, words)
        if len(words) == 2 and words[0] == "answer":
            won = words[1] == self.chain[-1]
            return Moved(state, WON if won else LOST, True, True, float(won))
        return nothing(state)

    def _shown(self, state: State, found: tuple[int, ...], at: int, words: list[str]) -> Moved[State]:
        called = (Called("search", " ".join(words), ok=bool(found)),)
        if not found:
            return Moved(State((), 0, state.read), "nothing found", tools=called)
        return Moved(State(found, at, tuple(sorted({*state.read, found[at]}))), tools=called)

    def view(self, state: State) -> str:
        return self.corpus.texts[state.found[state.at]] if state.found else "ready"

    def key(self, state: State) -> str:
        shown = state.found[state.at] if state.found else -1
        return f"{shown} | {' '.join(map(str, state.read))}"

    def choices(self, state: State) -> Sequence[str]:
        known = [self.facts["person"], *(self.corpus.texts[i].split()[-1] for i in state.read)]
        asks = [f"search {relation} of {who}" for relation in self.facts["path"] for who in known]
        return [*asks, *(["next"] if state.at + 1 < len(state.found) else []), *(f"answer {w}" for w in known[1:])]

    def best(self, state: State) -> str:
        read = {self.corpus.texts[i] for i in state.read}
        for (relation, who), value in zip(self.hops, self.chain, strict=True):
            if f"the {relation} of {who} is {value}" not in read:
                return f"search {relation} of {who}"
        return f"answer {self.chain[-1]}"
