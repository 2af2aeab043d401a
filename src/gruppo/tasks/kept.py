"""Texts kept on disk by key, in SQLite: several processes may use one file."""

import sqlite3
import sys
from pathlib import Path


class Kept:
    """A table of texts. A file that cannot be opened is refused; one that cannot be written later costs only time."""

    def __init__(self, file: str) -> None:
        path = Path(file).expanduser()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self.base = sqlite3.connect(path, timeout=30, isolation_level=None, check_same_thread=False)
            self.base.execute("create table if not exists kept (key text primary key, value text not null)")
        except (OSError, sqlite3.Error) as error:
            raise ValueError(
                f"task.args.cache={file!r} cannot be used ({error}). Name a new file, or one that this made."
            ) from None
        self.warned = False

    def get(self, key: str) -> str | None:
        try:
            row = self.base.execute("select value from kept where key = ?", (key,)).fetchone()
        except sqlite3.Error as error:
            return self._warn(error)
        return row[0] if row else None

    def put(self, key: str, value: str) -> None:
        try:
            self.base.execute("insert or replace into kept values (?, ?)", (key, value))
        except sqlite3.Error as error:
            self._warn(error)

    def _warn(self, error: sqlite3.Error) -> None:
        if not self.warned:
            print(f"the cache cannot be used now ({error}); answers are judged without it", file=sys.stderr)
            self.warned = True
