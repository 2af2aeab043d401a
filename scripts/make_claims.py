"""Write the board of claims into the documentation: docs/claims.md (below its marker) and docs/claims/NAME.png.

python scripts/make_claims.py            write what is stale
python scripts/make_claims.py --check    write nothing, and fail when something is stale
"""

import argparse
import json
import sys
from pathlib import Path

from gruppo.lab.claims import board, page
from gruppo.lab.claims.claim import all_claims

ROOT = Path(__file__).resolve().parents[1]
MARK = "<!-- Below: written by scripts/make_claims.py. -->"


def main(check: bool) -> int:
    folder, path = ROOT / "claims", ROOT / "docs" / "claims.md"
    claims = all_claims(folder)
    before, _, _ = path.read_text(encoding="utf-8").partition(MARK)
    text = f"{before}{MARK}\n\n{page.whole(folder, claims)}"
    stale = [] if path.read_text(encoding="utf-8") == text else [path]
    if not check:
        path.write_text(text, encoding="utf-8")
    for name in claims:
        result, picture = board.path_of(folder, name), ROOT / "docs" / "claims" / f"{name}.png"
        body = json.loads(result.read_text(encoding="utf-8")) if result.is_file() else {}
        if body.get("curves") and not check:  # where no regime was found there is nothing to draw
            page.draw(body, picture)
        elif body.get("curves") and not picture.is_file():
            stale.append(picture)
    for p in stale:
        print(f"{p.relative_to(ROOT)} {'is stale: run scripts/make_claims.py' if check else 'written'}")
    return int(check and bool(stale))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="write nothing; fail when something is stale")
    sys.exit(main(parser.parse_args().check))
