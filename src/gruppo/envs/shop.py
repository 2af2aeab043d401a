"""A shop: find what was asked for among pages of similar goods, choose its size, and buy it."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from gruppo.envs.world import LOST, NOTHING, WON, Draws, Facts, Moved, World, nothing, number, spoken, wanted

KINDS = ("cup", "hat", "lamp", "book", "ring", "bag", "shirt", "shoe")
COLOURS = ("red", "blue", "green", "black", "white", "yellow", "brown", "pink")
SIZES = ("small", "medium", "large")
PAGE = 3  # goods on a page


class State(NamedTuple):
    kind: str = ""  # what was searched for
    page: int = 0
    item: int = -1  # the one that is open
    size: str = ""


class Shop(World[State]):
    name = "shop"
    about = "find, compare and buy what was asked for: kind, colour, price, size"
    rules = (
        "You are in a web shop. Buy what is asked for. Actions: find KIND, next, back, open NUMBER, choose SIZE, buy. "
        "A page lists number, colour and price of its goods."
    )
    words = spoken("buy size under find next back open choose nothing happens found shop you win lose") | {
        *KINDS,
        *COLOURS,
        *SIZES,
    }
    # goods of the wanted kind, other goods, sizes matter, price matters, turns
    levels = {
        1: (3, 0, False, False, 6),
        2: (6, 3, False, True, 8),
        3: (6, 6, True, True, 12),
        4: (12, 9, True, True, 20),
    }

    @classmethod
    def drawn(cls, level: int, draw: Draws) -> dict[str, Any]:
        many, others, sized, priced, turns = cls.levels[level]
        kind, colour = draw.pick(KINDS), draw.pick(COLOURS)
        limit, size = draw.between(20, 60), draw.pick(SIZES) if sized else ""
        goods = [_item(kind, colour, draw.between(5, limit - 1), size, draw)]
        while len(goods) < many:
            item = _item(kind, draw.pick(COLOURS), draw.between(5, 99), "", draw)
            if not _right(item, {"kind": kind, "colour": colour, "under": limit if priced else 100, "size": size}):
                goods.append(item)
        away = [k for k in KINDS if k != kind]
        goods += [_item(draw.pick(away), draw.pick(COLOURS), draw.between(5, 99), "", draw) for _ in range(others)]
        want = {"kind": kind, "colour": colour, "under": limit if priced else 100, "size": size}
        return {"goods": draw.some(goods, len(goods)), "want": want, "turns": turns}

    @classmethod
    def asked(cls, facts: Facts) -> str:
        want = facts["want"]
        price = f" under {want['under']}" if want["under"] < 100 else ""
        return f"buy {want['colour']} {want['kind']}" + (f" size {want['size']}" if want["size"] else "") + price

    def begin(self, facts: Facts) -> State:
        self.goods = [dict(item) for item in wanted(facts, "goods", list, "shop")]
        self.want = dict(wanted(facts, "want", Mapping, "shop"))
        self.found = {k: [i for i, item in enumerate(self.goods) if item["kind"] == k] for k in KINDS}
        return State()

    def move(self, state: State, words: list[str]) -> Moved[State]:
        if len(words) == 1 and words[0] in ("next", "back", "buy"):
            return getattr(self, f"_{words[0]}")(state)
        if len(words) == 2 and words[0] in ("find", "open", "choose"):
            return getattr(self, f"_{words[0]}")(state, words[1])
        return nothing(state)

    def _find(self, state: State, kind: str) -> Moved[State]:
        return Moved(State(kind)) if kind in self.found else nothing(state)

    def _next(self, state: State) -> Moved[State]:
        more = state.kind and state.item < 0 and (state.page + 1) * PAGE < len(self.found[state.kind])
        return Moved(state._replace(page=state.page + 1)) if more else nothing(state)

    def _back(self, state: State) -> Moved[State]:
        if state.item >= 0:
            return Moved(state._replace(item=-1, size=""))
        if state.page:
            return Moved(state._replace(page=state.page - 1))
        return Moved(State()) if state.kind else nothing(state)

    def _open(self, state: State, word: str) -> Moved[State]:
        n = number(word)
        page = self._page(state) if state.item < 0 else []
        return Moved(state._replace(item=page[n - 1])) if n is not None and 1 <= n <= len(page) else nothing(state)

    def _choose(self, state: State, size: str) -> Moved[State]:
        if state.item < 0 or size not in self.goods[state.item]["sizes"]:
            return nothing(state)
        return Moved(state._replace(size=size))

    def _buy(self, state: State) -> Moved[State]:
        if state.item < 0:
            return nothing(state)
        item = self.goods[state.item]
        won = _right(item, self.want) and (not self.want["size"] or state.size == self.want["size"])
        return Moved(state, WON if won else LOST, True, True, float(won))

    def _page(self, state: State) -> list[int]:
        return self.found[state.kind][state.page * PAGE : (state.page + 1) * PAGE] if state.kind else []

    def view(self, state: State) -> str:
        if state.item >= 0:
            item = self.goods[state.item]
            sizes = f"size {state.size}" if state.size else " ".join(item["sizes"])
            return f"{item['colour']} {item['kind']} {item['price']} {sizes}"
        if not state.kind:
            return "shop"
        rows = [f"{n} {self.goods[i]['colour']} {self.goods[i]['price']}" for n, i in enumerate(self._page(state), 1)]
        more = (state.page + 1) * PAGE < len(self.found[state.kind])
        return " ".join([*rows, *(["next"] if more else [])]) or f"{NOTHING.split()[0]} found"

    def key(self, state: State) -> str:
        return f"{state.kind} {state.page} {state.item} {state.size}"

    def choices(self, state: State) -> Sequence[str]:
        if state.item >= 0:
            return ["buy", "back", *(f"choose {size}" for size in self.goods[state.item]["sizes"])]
        pages = [f"open {n}" for n in range(1, len(self._page(state)) + 1)]
        more = ["next"] if self._next(state).valid else []
        return [*pages, *more, *(["back"] if state.kind else []), *(f"find {kind}" for kind in KINDS)]

    def best(self, state: State) -> str:
        target = next((i for i, item in enumerate(self.goods) if _right(item, self.want)), -1)
        if target < 0:
            return ""
        if state.item == target:
            done = not self.want["size"] or state.size == self.want["size"]
            return "buy" if done else f"choose {self.want['size']}"
        if state.item >= 0:
            return "back"
        if state.kind != self.want["kind"]:
            return f"find {self.want['kind']}"
        page, at = divmod(self.found[state.kind].index(target), PAGE)
        return f"open {at + 1}" if page == state.page else "next" if page > state.page else "back"


def _item(kind: str, colour: str, price: int, size: str, draw: Draws) -> dict[str, Any]:
    """One good; its sizes are in stock, and the one that is named is among them."""
    sizes = [s for s in SIZES if s == size or draw.below(2)] or ["medium"]
    return {"kind": kind, "colour": colour, "price": price, "sizes": sizes}


def _right(item: Mapping[str, Any], want: Mapping[str, Any]) -> bool:
    """Whether this good, in the right size, is what was asked for."""
    same = item["kind"] == want["kind"] and item["colour"] == want["colour"]
    return same and item["price"] < want["under"] and (not want["size"] or want["size"] in item["sizes"])
