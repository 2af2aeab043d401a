"""Write the board of claims into the documentation: docs/claims.md (its first table, and all below its marker),
docs/claims/NAME.png, and the numbers in README.md.

python scripts/make_claims.py            write what is stale
python scripts/make_claims.py --check    write nothing, and fail when something is stale
"""

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from gruppo.lab.claims import board, page, pictures
from gruppo.lab.claims.claim import Claim, all_claims
from gruppo.lab.claims.kinds import outcomes, totals

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- first table: written by scripts/make_claims.py -->", "<!-- first table: end -->"
MARK = "<!-- Below: written by scripts/make_claims.py. -->"


def counted(readme: str, claims: Mapping[str, Claim]) -> str:
    """README.md with the numbers of today; its words and line breaks stay."""
    verdicts = board.verdicts(ROOT / "claims", claims)
    found, methods = Counter(verdicts.values()), totals(outcomes(claims, verdicts))
    for words, number in {
        r"papers of (\d+) methods": len({c.method for c in claims.values()}),
        r"Of (\d+) claims": len(claims),
        r"(\d+) are reproduced": found["reproduced"],
        r"(\d+) are not,": found["not reproduced"],
        r"(\d+) are open": found["inconclusive"],
        r"with (\d+) still to run": found["not run"],
        r"for (\d+) the\s+trouble": found["no regime found"],
        r"(\d+) survive with gates": methods[0],
        r"(\d+) without them": methods[1],
        r"(\d+) do not survive": methods[2],
        r"(\d+) are undecided": methods[3],
    }.items():
        pattern = words.replace(" ", r"\s+")
        match = re.search(pattern, readme)
        if match is None:
            raise ValueError(f"README.md does not say '{words}' any more: write the sentence of counts again.")
        readme = f"{readme[: match.start(1)]}{number}{readme[match.end(1) :]}"
    return readme


def rewritten(before: str, claims: Mapping[str, Claim]) -> str:
    """docs/claims.md with the tables and sections of today; the prose between them stays."""
    head, found, rest = before.partition(MARK)[0].partition(BEGIN)
    _, ended, prose = rest.partition(END)
    if not found or not ended:
        raise ValueError(f"docs/claims.md has lost a marker of its first table: put {BEGIN} and {END} back.")
    folder = ROOT / "claims"
    return f"{head}{BEGIN}\n\n{page.first(folder, claims)}\n{END}{prose}{MARK}\n\n{page.whole(folder, claims)}"


def main(check: bool) -> int:
    folder, path = ROOT / "claims", ROOT / "docs" / "claims.md"
    claims = all_claims(folder)
    readme = ROOT / "README.md"
    texts = {
        path: rewritten(path.read_text(encoding="utf-8"), claims),
        readme: counted(readme.read_text(encoding="utf-8"), claims),
    }
    stale = [p for p, new in texts.items() if p.read_text(encoding="utf-8") != new]
    for p in stale if not check else ():
        p.write_text(texts[p], encoding="utf-8")
    for name in claims:
        result, picture = board.path_of(folder, name), ROOT / "docs" / "claims" / f"{name}.png"
        body = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
        if pictures.has_picture(body) and not check:
            pictures.draw(body, picture, board.pilots_of(folder, name))
        elif pictures.has_picture(body) and not picture.is_file():
            stale.append(picture)
    for p in stale:
        print(f"{p.relative_to(ROOT)} {'is stale: run scripts/make_claims.py' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when something is stale")
    sys.exit(main(parser.parse_args().check))
