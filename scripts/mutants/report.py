"""The figures, and the survivors that nobody has explained yet."""

from collections import Counter
from math import sqrt
from typing import Any

import explained
from making import ROOT, Mutant

GOAL = 0.94
DEAD = ("killed", "timeout", "crashed")


def wilson(killed: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    if not total:
        return 0.0, 1.0
    p, n = killed / total, total
    middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def show(chosen: list[Mutant], population: int, results: dict[str, dict[str, Any]], seed: int) -> int:
    """Print the table; the exit code."""
    known = [(m, results[m.name]["status"]) for m in chosen if m.name in results]
    print(f"\n{'':12} mutants  killed  in time  crashed  survived   share")
    for part in (*dict.fromkeys(m.file.split("/")[0] for m, _ in known), "all"):
        mine = Counter(s for m, s in known if part in ("all", m.file.split("/")[0]))
        total, dead = sum(mine.values()), sum(mine[s] for s in DEAD)
        row = f"{total:7} {mine['killed']:7} {mine['timeout']:8} {mine['crashed']:8} {mine['survived']:9}"
        print(f"{part:12} {row}  {dead / max(total, 1):6.1%}")
    print("\nby operator: " + ", ".join(_by_operator(known)))
    if len(known) < len(chosen):
        print(f"{len(chosen) - len(known)} of {len(chosen)} mutants have not been run yet")
    dead = sum(s in DEAD for _, s in known)
    if len(known) < population:
        low, high = wilson(dead, len(known))
        print(f"a sample of {len(known)} of {population} mutants (seed {seed}): 95 % interval {low:.1%} to {high:.1%}")
    wrong = _survivors([m for m, s in known if s == "survived"], {m.file for m in chosen}, len(known) == population)
    return int(wrong or dead < GOAL * len(known))


def _survivors(alive: list[Mutant], files: set[str], whole: bool) -> bool:
    """Says who is explained, by what; whether somebody is not, or an explanation explains nobody."""
    covered, open_ones = explained.sort(alive, explained.entries())
    count = Counter(e.said["reason"] for e, mine in covered.items() for _ in mine)
    reasons = ", ".join(f"{n} {reason}" for reason, n in count.most_common())
    print(f"{len(alive)} survivors: {len(open_ones)} not explained; {reasons or 'none explained'}\n")
    for e, mine in covered.items():
        if e.rule and mine:
            print(f"{len(mine):4}  {e.said['reason']:10}  {e.said['why']}")
    print(f"{sum(len(mine) for e, mine in covered.items() if not e.rule):4}  one by one")
    for m in open_ones:
        row = explained.seen(m)
        said = "\n".join(f"{k} = {_toml(row[k])}" for k in ("file", "text", "before", "after"))
        print(f'\n[[survivor]]  # line {m.line}\n{said}\nreason = ""\nwhy = ""')
    idle = explained.idle(covered, files) if whole else []
    for e in idle:
        print(f"\n{explained.SURVIVORS.relative_to(ROOT)}: nothing that survives is meant by  {e}. Take it out.")
    return bool(open_ones or idle)


def _toml(x: str) -> str:
    return f"'{x}'" if "'" not in x else '"' + x.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _by_operator(known: list[tuple[Mutant, str]]) -> list[str]:
    out: list[str] = []
    for operator, total in Counter(m.operator for m, _ in known).most_common():
        dead = sum(s in DEAD for m, s in known if m.operator == operator)
        out.append(f"{operator.removeprefix('operator_')} {dead}/{total}")
    return out
