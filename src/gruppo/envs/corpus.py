"""The bundled corpora of the world `search`: small encyclopedias of one sentence each, made by a key.

Every sentence says one thing: `the city of acme is rome`. A person has a boss, a friend, a firm and a pet, a firm has a
city, a city has a country, a country has a river. Ranking is BM25 (Robertson and Zaragoza 2009), k1 = 1.2 and b = 0.75.
"""

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from math import log

from gruppo.envs.world import Draws

PEOPLE = ("ann", "bob", "carl", "dora", "emma", "fred", "gina", "hugo", "ida", "john", "kate", "leo", "mia", "nick")
FIRMS = ("acme", "bolt", "cargo", "delta", "ember", "frost")
CITIES = ("rome", "paris", "cairo", "oslo", "lima", "tokyo")
COUNTRIES = ("italy", "france", "egypt", "norway", "peru", "japan")
PETS = ("cat", "dog", "bird", "fish", "horse")
RIVERS = ("blue", "green", "white", "black", "long")
# relation: (of whom, who or what it is)
RELATIONS = {
    "boss": (PEOPLE, PEOPLE),
    "friend": (PEOPLE, PEOPLE),
    "firm": (PEOPLE, FIRMS),
    "pet": (PEOPLE, PETS),
    "city": (FIRMS, CITIES),
    "country": (CITIES, COUNTRIES),
    "river": (COUNTRIES, RIVERS),
}
CORPORA = 50
K1, B = 1.2, 0.75


class Corpus:
    """Facts, their sentences, and a ranking of the sentences for a query."""

    def __init__(self, key: int) -> None:
        draw = Draws("corpus", key)
        self.facts: dict[tuple[str, str], str] = {}
        for relation, (subjects, objects) in RELATIONS.items():
            for subject in subjects:
                self.facts[relation, subject] = draw.pick([o for o in objects if o != subject])
        said = [f"the {relation} of {subject} is {value}" for (relation, subject), value in self.facts.items()]
        self.texts: tuple[str, ...] = tuple(draw.some(said, len(said)))
        # Whom a sentence is about counts twice, as a title does: `boss of leo` means the boss that leo has.
        self._bags = [Counter([*text.split(), text.split()[3]]) for text in self.texts]
        self._mean = sum(bag.total() for bag in self._bags) / len(self._bags)
        self._documents = Counter(word for bag in self._bags for word in bag)
        self._found: dict[tuple[str, ...], tuple[int, ...]] = {}

    def search(self, words: Sequence[str]) -> tuple[int, ...]:
        """The three best sentences for a query; those without any of its words are left out."""
        query = tuple(sorted(words))
        if query not in self._found:
            if len(self._found) > 4096:
                self._found.clear()
            scores = [(self.score(query, i), -i) for i in range(len(self.texts))]
            self._found[query] = tuple(-i for score, i in sorted(scores, reverse=True)[:3] if score > 0)
        return self._found[query]

    def score(self, query: Sequence[str], i: int) -> float:
        """BM25 of one sentence: Σ_w idf(w) f (k1 + 1) / (f + k1 (1 − b + b |d| / mean))."""
        bag, n = self._bags[i], len(self.texts)
        weight = K1 * (1 - B + B * bag.total() / self._mean)
        total = 0.0
        for word in query:
            found = self._documents.get(word, 0)
            idf = log(1 + (n - found + 0.5) / (found + 0.5))
            total += idf * bag[word] * (K1 + 1) / (bag[word] + weight)
        return total

    def follow(self, subject: str, relations: Sequence[str]) -> list[str]:
        """What each relation leads to, one after the other."""
        out: list[str] = []
        for relation in relations:
            subject = self.facts[relation, subject]
            out.append(subject)
        return out


@lru_cache(maxsize=CORPORA)
def corpus(key: int) -> Corpus:
    return Corpus(key)


@lru_cache(maxsize=16)
def paths(hops: int) -> tuple[tuple[str, ...], ...]:
    """All chains of relations that begin with a person: the n-th leads from what the one before it led to."""
    found: list[tuple[str, ...]] = [()]
    for _ in range(hops):
        found = [
            (*path, relation)
            for path in found
            for relation, (subjects, _) in RELATIONS.items()
            if subjects == (RELATIONS[path[-1]][1] if path else PEOPLE)
        ]
    return tuple(found)
