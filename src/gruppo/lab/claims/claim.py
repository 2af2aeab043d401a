"""What is claimed, and the rule to judge it: one file claims/NAME.toml per claim."""

import hashlib
import json
import math
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from gruppo.lab.claims.gates import Gate
from gruppo.lab.claims.kinds import KINDS as KINDS_OF_CLAIMS
from gruppo.lab.claims.measures import measure
from gruppo.lab.claims.sense import refuse_senseless
from gruppo.lab.compare.stages import stages_of
from gruppo.stages.names import nearest

Kind = Literal["higher", "lower", "not_worse", "at_most"]
KINDS = ("higher", "lower", "not_worse", "at_most")
PILOT_SEEDS = range(100, 105)
SEEDS = 10  # of a verdict, from 0 on; twice as many if these leave it open
RULE = ("method", "claim", "settings", "baseline", "entrant", "conditions", "chosen")
LATER = {"gates": (), "mechanisms": (), "placebo": "", "seeds": SEEDS}  # part of a rule where a file has them


@dataclass(frozen=True)
class Condition:
    """One thing that must hold.

    higher     entrant − baseline ≥ size: the interval of the paired difference is above 0, its mean at least `size`
    lower      the same for baseline − entrant; with `of = "ratio"` sizes are relative: 0.33 is a third less
    not_worse  entrant − baseline > −size, one-sided (a margin); `better = "lower"` reverses it
    at_most    of the entrant only: the interval of its value is at or below `size`
    """

    measure: str
    kind: Kind
    size: float
    of: Literal["difference", "ratio"] = "difference"
    better: Literal["higher", "lower"] = "higher"
    against: Literal["baseline", "placebo"] = "baseline"  # what the entrant is compared with

    def __post_init__(self) -> None:
        measure(self.measure)
        for name, known in (
            ("kind", KINDS),
            ("of", ("difference", "ratio")),
            ("better", ("higher", "lower")),
            ("against", ("baseline", "placebo")),
        ):
            if (value := getattr(self, name)) not in known:
                raise ValueError(f"{name} {value!r}{nearest(str(value), known)}: use one of {', '.join(known)}.")
        if not 0 <= self.size < math.inf or (self.kind == "not_worse" and self.size == 0):
            raise ValueError(f"size = {self.size}: no run could show it. Give a finite size above 0.")
        if self.of == "ratio" and self.size >= 1 and "lower" in (self.kind, self.better):
            raise ValueError(f"size = {self.size} of a ratio: nothing is less by all it has. Give a share below 1.")


@dataclass(frozen=True)
class Claim:
    """Read from claims/NAME.toml. `chosen` holds the result of the sweep on pilot seeds for each arm."""

    name: str
    method: str
    claim: str
    baseline: str  # as in `gruppo compare`: a method with settings of its own
    entrant: str
    settings: tuple[str, ...]  # of both arms
    conditions: tuple[Condition, ...]
    sweep: tuple[str, ...] = ()  # settings, of which each arm gets the best one on pilot seeds
    sweep_by: str = ""  # the measure that decides; by default that of the first condition
    no_sweep: str = ""  # the reason why there is no sweep
    not_best: str = ""  # the reason why [chosen] is not the best point of the stored pilots
    chosen: Mapping[str, str] = field(default_factory=dict[str, str])
    pilots: tuple[Mapping[str, Any], ...] = ()
    note: str = ""
    gates: tuple[Gate, ...] = ()  # of the baseline on pilot seeds: it has the disease
    mechanisms: tuple[Gate, ...] = ()  # of the entrant on pilot seeds: its lever moves
    placebo: str = ""  # a third arm, which does what the method does without its idea
    seeds: int = SEEDS
    kind: str = ""  # of claim, a name in kinds.py: for the summary of the board, no part of the rule

    def __post_init__(self) -> None:
        if self.sweep_by:
            measure(self.sweep_by)

    @property
    def arms(self) -> dict[str, str]:
        """The command line of each arm, with the settings that the sweep chose; the placebo has the entrant's, unless
        [chosen] or its own text has one for it."""
        plain = {"baseline": self.baseline, "entrant": self.entrant}
        plain |= {"placebo": self.placebo} if self.placebo else {}
        best = self.chosen.get("entrant", "")
        chosen = {"placebo": "" if _names(best) & _names(self.placebo) else best, **self.chosen}
        return {arm: f"{text} {chosen.get(arm, '')}".strip() for arm, text in plain.items()}

    @property
    def rule(self) -> str:
        """A hash of everything that decides: results are valid for this rule only."""
        every = asdict(self)
        body = {k: every[k] for k in every if k in RULE}
        body |= {k: every[k] for k, plain in LATER.items() if every[k] != plain}
        for c in body["conditions"]:  # rules that are older than placebos keep their hash
            if c["against"] == "baseline":
                del c["against"]
        return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def ready(self) -> bool:
        return {arm for arm in ("baseline", "entrant") if self.swept(getattr(self, arm))} <= set(self.chosen)

    def swept(self, text: str) -> tuple[str, ...]:
        """The points of the sweep for an arm; none for an arm that sets what is swept itself."""
        return tuple(point for point in self.sweep if not _names(point) & _names(text))


def _names(text: str) -> set[str]:
    """What a text of settings sets; that of an arm, in its last stage, which is the one that is swept."""
    return {word.partition("=")[0] for word in stages_of(text)[-1] if "=" in word}


def read(path: Path) -> Claim:
    """A claim from its file; errors name the file."""
    judged = path.parent / "results" / f"{path.stem}.json"
    try:
        claim = parsed(path.stem, path.read_text(encoding="utf-8"))
        _refuse_wrong(claim)
        if not judged.is_file():  # what is judged stays as it is
            refuse_senseless(claim)
    except ValueError as error:  # of TOML, too
        raise ValueError(f"{path}: {error}") from None
    return claim


TABLES = ("condition", "gate", "mechanism", "pilot")
WORDS = {str: (str, "text"), int: (int, "whole number"), float: ((int, float), "number")}  # of a field's type


def parsed(name: str, text: str) -> Claim:
    """A claim from the text of its file."""
    body = tomllib.loads(text)
    for own in ("name", "conditions", "gates", "mechanisms", "pilots"):
        if own in body:
            raise ValueError(f"{own} is not for a file to set{nearest(own, TABLES)}. Take it out.")
    body["conditions"] = tuple(_made(Condition, c) for c in _tables(body, "condition"))
    body["gates"] = tuple(_made(Gate, g) for g in _tables(body, "gate"))
    body["mechanisms"] = tuple(_made(Gate, g) for g in _tables(body, "mechanism"))
    body["pilots"] = tuple(_tables(body, "pilot"))
    for many in ("settings", "sweep"):
        if not isinstance(found := body.get(many, []), list):
            letters = ", and would be read letter by letter" if isinstance(found, str) else ""
            raise ValueError(f"{many} = {found!r} is no list{letters}. Write a list: [{found!r}].")
        body[many] = tuple(found)
    if not isinstance(chosen := body.get("chosen", {}), dict):
        raise ValueError(f"chosen = {chosen!r} is no table. Write [chosen], and below it: baseline = 'optim.lr=0.1'.")
    for many, words in (("settings", body["settings"]), ("sweep", body["sweep"]), ("chosen", chosen.values())):
        for word in words:
            if not isinstance(word, str) or "=" not in word:
                raise ValueError(f"{many} has {word!r}, which is no setting. Write it as a text: 'optim.lr=0.1'.")
    return _made(Claim, {"name": name, "method": name, **body})


def _tables(body: dict[str, Any], name: str) -> list[dict[str, Any]]:
    rows = body.pop(name, [])
    if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
        raise ValueError(f"{name} is no list of tables. Write [[{name}]], with two brackets, above each.")
    return rows


def _refuse_wrong(claim: Claim) -> None:
    if claim.kind and claim.kind not in KINDS_OF_CLAIMS:
        raise ValueError(
            f"kind = {claim.kind!r}{nearest(claim.kind, KINDS_OF_CLAIMS)}: the summary of the board has no such row. "
            f"Use one of {', '.join(KINDS_OF_CLAIMS)}."
        )
    if not 2 <= claim.seeds <= PILOT_SEEDS[0] // 2:
        raise ValueError(f"seeds = {claim.seeds}: twice as many would reach those of pilots. Use 2 to 50.")
    if not claim.conditions:
        raise ValueError("no [[condition]], so nothing could be judged. Give at least one.")
    for name in ("no_sweep", "not_best"):
        if (reason := getattr(claim, name)) != reason.strip():
            raise ValueError(f"{name} = {reason!r} is no reason. Give it as a text.")
    if claim.sweep and claim.no_sweep:
        raise ValueError("no_sweep says why there is no sweep, and there is one. Take one of them out.")
    if claim.not_best and not claim.chosen:
        raise ValueError("not_best says why [chosen] is not the best point, and nothing is chosen. Take it out.")
    for arm in claim.chosen:
        if arm not in claim.arms:
            raise ValueError(f"[chosen] for {arm!r}{nearest(arm, claim.arms)}, and no arm has that name.")


def _made(kind: Any, body: Mapping[str, Any]) -> Any:
    known = kind.__dataclass_fields__
    called = kind.__name__.lower()
    for name, value in body.items():
        if name not in known:
            raise ValueError(f"{name!r} is not a field of a {called}{nearest(name, known)}.")
        types, word = WORDS.get(known[name].type, (object, ""))
        if not isinstance(value, types) or (isinstance(value, bool) and word):
            raise ValueError(f"{name} = {value!r} is no {word}. Give a {word}.")
    for name, f in known.items():
        if name not in body and f.default is MISSING and f.default_factory is MISSING:
            raise ValueError(f"a {called} has no {name}. Write {name} = …")
    return kind(**body)


SHIPPED = "shipped"  # in this package, where a wheel puts the board


def board_folder(asked: str | None) -> Path:
    """The folder that was asked for; else ./claims or, where there is none, the board that gruppo comes with."""
    if asked is not None or any(Path("claims").glob("*.toml")):
        return Path(asked or "claims")
    here = Path(__file__).resolve()
    known = (here.parent / SHIPPED, here.parents[4] / "claims")  # of an installed package, or of a clone
    return next((f for f in known if any(f.glob("*.toml"))), Path("claims"))


def all_claims(folder: Path) -> dict[str, Claim]:
    return {p.stem: read(p) for p in sorted(folder.glob("*.toml"))}


def chosen_claims(folder: Path, names: Sequence[str]) -> dict[str, Claim]:
    """The claims with these names, or all."""
    known = all_claims(folder)
    if not known:
        raise ValueError(
            f"{folder} has no claims. Leave --folder out to see the board that gruppo comes with, or name a folder "
            "with claims of your own."
        )
    for name in names:
        if name not in known:
            raise ValueError(f"there is no claim {name!r}{nearest(name, known)}. gruppo claims lists all.")
    return {n: known[n] for n in names} if names else known
