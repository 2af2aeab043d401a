"""The figures, and the survivors that nobody has explained yet."""

import tomllib
from collections import Counter
from math import sqrt
from typing import Any

from making import ROOT, Mutant

SURVIVORS = ROOT / "tests" / "mutants" / "survivors.toml"
GOAL = 0.9
DEAD = ("killed", "timeout", "crashed")


def wilson(killed: int, total: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    if not total:
        return 0.0, 1.0
    p, n = killed / total, total
    middle, half = p + z * z / (2 * n), z * sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def explained() -> dict[tuple[str, str, str], dict[str, Any]]:
    """The survivors that are listed, by file and mutation: line numbers move."""
    if not SURVIVORS.exists():
        return {}
    rows = tomllib.loads(SURVIVORS.read_text(encoding="utf-8")).get("survivor", [])
    return {(r["file"], r["before"], r["after"]): r for r in rows}


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
    table = explained()
    alive = [m for m, s in known if s == "survived"]
    open_ones = [m for m in alive if (m.file, m.before, m.after) not in table]
    gaps = [m for m in alive if table.get((m.file, m.before, m.after), {}).get("reason") == "gap"]
    print(
        f"{len(alive)} survivors: {len(alive) - len(open_ones)} explained in {SURVIVORS.relative_to(ROOT)}"
        f" ({len(gaps)} of them gaps), {len(open_ones)} not"
    )
    for m in open_ones:
        print(f'\n[[survivor]]\nfile = "{m.file}"\nline = {m.line}\nbefore = {m.before!r}\nafter = {m.after!r}')
    return int(bool(open_ones) or dead < GOAL * len(known))


def _by_operator(known: list[tuple[Mutant, str]]) -> list[str]:
    out: list[str] = []
    for operator, total in Counter(m.operator for m, _ in known).most_common():
        dead = sum(s != "survived" for m, s in known if m.operator == operator)
        out.append(f"{operator.removeprefix('operator_')} {dead}/{total}")
    return out
