"""Episodes as Arrow IPC files, one row per episode, without loss.

    uid task group status … │ reward: [(name, value)] │ notes: [{…}] │ sequences: [{ids, …}] │ turns: [{…}]

Nested lists are Arrow lists over flat columns, so that columns are written and read at once, and any Arrow reader
(pandas, polars, DuckDB) can open the file. Nothing is pickled. Files are written atomically.

Columns may stand beside the episodes: what a person who reads the file wants to know and an episode does not hold.
"""

import gc
import os
import secrets
from collections.abc import Callable, Iterable, Mapping
from collections.abc import Sequence as Seq
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gruppo.data.episode import Episode, Note, Sequence, Source, Status, ToolCall, Turn, Use

VERSION = 1
_FORMAT, _VERSION = b"gruppo.format", b"gruppo.version"

_EPISODE_NUMBERS = {
    "uid": np.int64,
    "status": np.int8,
    "use": np.int8,
    "source": np.int8,
    "replayed": np.bool_,
    "step": np.int64,
    "index": np.int64,
    "parent": np.int64,
    "fork": np.int64,
}
_EPISODE_TEXTS = ("task", "group", "text", "error", "final_state", "domain", "answer", "asked")
# Fields that older files lack, with their values.
_LATER: dict[str, Any] = {"domain": "", "index": -1, "answer": "", "parent": -1, "fork": -1, "asked": ""}
_LATER_OF_TURNS: dict[str, Any] = {"tag": "", "seconds": 0.0, "text": ""}
# Columns beside the episodes, each with its value in a file that lacks it: texts and numbers.
BESIDE: dict[str, Any] = {"prompt": "", "reference": "", "advantage": float("nan")}
_SEQUENCE_ARRAYS = {
    "ids": np.int64,
    "source": np.int8,
    "logp": np.float32,
    "version": np.int32,
    "temperature": np.float32,
    "node": np.int64,
    "train_as": np.int64,
}
_TURN_NUMBERS = {
    **dict.fromkeys(("start", "stop", "sequence", "obs_start", "obs_stop"), np.int64),
    "seconds": np.float64,
}
_TURN_TEXTS = ("state", "action_key", "agent", "tag", "text")


def save_episodes(
    path: str | os.PathLike[str], episodes: Seq[Episode], beside: Mapping[str, Seq[Any]] | None = None
) -> None:
    """Write the episodes of one step, and columns of `BESIDE`. An existing file is replaced atomically."""
    pa = _arrow()
    columns = _episodes(pa, episodes)
    columns |= {name: _beside(pa, name, values) for name, values in (beside or {}).items()}
    schema = pa.schema([(name, column.type) for name, column in columns.items()])
    schema = schema.with_metadata({_FORMAT: b"episodes", _VERSION: str(VERSION).encode()})
    rows = pa.RecordBatch.from_arrays(list(columns.values()), schema=schema)

    def write(file: Any) -> None:
        with pa.ipc.new_file(file, schema) as writer:
            writer.write_batch(rows)

    _write_atomically(Path(path), write)


def load_episodes(path: str | os.PathLike[str]) -> list[Episode]:
    """Read a file of `save_episodes`: every field is restored exactly."""
    return load_with_beside(path)[0]


def load_with_beside(path: str | os.PathLike[str]) -> tuple[list[Episode], dict[str, list[Any]]]:
    """The episodes, and the columns beside them."""
    table = _read(Path(path))
    if not table.num_rows:
        return [], {name: [] for name in BESIDE}
    table = table if table.column(0).num_chunks == 1 else table.combine_chunks()
    collecting = gc.isenabled()
    gc.disable()  # thousands of small objects, none of them garbage: collection would double the time
    try:
        columns = {name: table.column(name).chunk(0) for name in table.column_names}
        return _read_episodes(columns), _read_beside(columns)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as e:
        raise ValueError(
            f"{path} is damaged ({e}), so its episodes cannot be trusted. Copy it again, or sample the step again."
        ) from e
    finally:
        if collecting:
            gc.enable()


def _arrow() -> Any:
    try:
        import pyarrow as pa
        import pyarrow.ipc  # pyright: ignore[reportUnusedImport]
    except ModuleNotFoundError as e:
        raise ModuleNotFoundError(
            "pyarrow is not installed, so episodes can neither be saved nor loaded. Run `pip install pyarrow`"
        ) from e
    return pa


def _write_atomically(path: Path, write: Callable[[Any], None]) -> None:
    """Write a temporary file, sync it and rename it: neither a reader nor a crash leaves half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.part")
    try:
        with open(part, "wb") as file:
            write(file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    if os.name == "posix":  # sync the directory entry, too
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _read(path: Path) -> Any:
    pa = _arrow()
    try:
        reader = pa.ipc.open_file(pa.py_buffer(path.read_bytes()))
        metadata = reader.schema.metadata or {}
        if metadata.get(_FORMAT) == b"episodes" and metadata.get(_VERSION) == str(VERSION).encode():
            table = reader.read_all()
            table.validate(full=True)
            return table
    except (pa.ArrowException, OSError) as e:
        if isinstance(e, OSError) and e.errno is not None:  # no such file, or no permission
            raise
        raise ValueError(
            f"{path} is no whole Arrow file ({str(e).splitlines()[0]}), so its episodes cannot be read. "
            "It was cut off or is something else: copy it again, or sample the step again."
        ) from e
    if metadata.get(_FORMAT) != b"episodes":
        raise ValueError(
            f"{path} is an Arrow file, but not one of episodes, so there is nothing to load. "
            "Name a file that save_episodes wrote."
        )
    raise ValueError(
        f"{path} has episode format {metadata.get(_VERSION, b'?').decode()}, and this gruppo reads {VERSION}: "
        "fields would be misread. Load it with the version of gruppo that wrote it."
    )


# ---- writing: flat columns, and lists over them


def _flat(arrays: Seq[NDArray[Any]], dtype: Any, name: str) -> NDArray[Any]:
    """The arrays concatenated; a dtype that would lose digits is refused."""
    for kind in {a.dtype for a in arrays}:
        if not np.can_cast(kind, dtype, "safe") and any(len(a) for a in arrays if a.dtype == kind):
            raise ValueError(
                f"{name} is {kind}, and the file holds {np.dtype(dtype)}: digits would be lost. "
                f"Use {np.dtype(dtype)} when you make the episode."
            )
    return np.concatenate(arrays).astype(dtype, copy=False) if arrays else np.zeros(0, dtype)


def _list(pa: Any, lengths: Iterable[int], values: Any, absent: NDArray[np.bool_] | None = None) -> Any:
    ends = np.cumsum(np.fromiter(lengths, np.int64))
    mask = None if absent is None or not absent.any() else pa.array(absent)
    return pa.LargeListArray.from_arrays(np.concatenate([[0], ends]).astype(np.int64), values, mask=mask)


def _arrays(pa: Any, arrays: Seq[NDArray[Any] | None], dtype: Any, name: str) -> Any:
    """A list of numbers for each row; null where the array is None."""
    there = [a for a in arrays if a is not None]
    values = pa.array(_flat(there, dtype, name))
    if len(there) == len(arrays):
        return _list(pa, map(len, there), values)
    absent = np.fromiter((a is None for a in arrays), np.bool_, len(arrays))
    return _list(pa, (0 if a is None else len(a) for a in arrays), values, absent)


def _texts(pa: Any, texts: Seq[str]) -> Any:
    try:
        return pa.array(texts, pa.large_string())
    except UnicodeEncodeError:  # a lone surrogate, which Python allows and UTF-8 does not
        return pa.array([t.encode("utf-8", "surrogatepass") for t in texts], pa.large_binary())


def _columns(pa: Any, rows: Seq[Any], numbers: dict[str, Any], texts: Iterable[str] = ()) -> dict[str, Any]:
    """The plain fields of the rows: numbers with their dtypes, and texts."""
    columns = {n: pa.array(np.fromiter(map(attrgetter(n), rows), dtype, len(rows))) for n, dtype in numbers.items()}
    return columns | {name: _texts(pa, list(map(attrgetter(name), rows))) for name in texts}


def _struct(pa: Any, columns: dict[str, Any]) -> Any:
    return pa.StructArray.from_arrays(list(columns.values()), names=list(columns))


def _rewards(pa: Any, rewards: Seq[dict[str, float]]) -> Any:
    pairs = {
        "name": _texts(pa, list(chain.from_iterable(rewards))),
        "value": pa.array(np.fromiter(chain.from_iterable(r.values() for r in rewards), np.float64)),
    }
    return _list(pa, map(len, rewards), _struct(pa, pairs))


def _names(pa: Any, sets: Seq[frozenset[str]]) -> Any:
    names = [sorted(s) for s in sets]
    return _list(pa, map(len, names), _texts(pa, list(chain.from_iterable(names))))


def _episodes(pa: Any, episodes: Seq[Episode]) -> dict[str, Any]:
    sequences = [s for e in episodes for s in e.sequences]
    turns = [t for e in episodes for t in e.turns]
    return {
        **_columns(pa, episodes, _EPISODE_NUMBERS, _EPISODE_TEXTS),
        "reward": _rewards(pa, [e.reward for e in episodes]),
        "replaced": _names(pa, [e.replaced for e in episodes]),
        "notes": _notes(pa, episodes),
        "sequences": _list(pa, (len(e.sequences) for e in episodes), _sequences(pa, sequences)),
        "turns": _list(pa, (len(e.turns) for e in episodes), _turns(pa, turns)),
    }


def _beside(pa: Any, name: str, values: Seq[Any]) -> Any:
    """Texts are stored once each: the answers of a group have one prompt."""
    if isinstance(BESIDE[name], str):
        return _texts(pa, list(values)).dictionary_encode()
    return pa.array(np.array(values, np.float64))


def _notes(pa: Any, episodes: Seq[Episode]) -> Any:
    """Values are float32, as in `Note`, unless a note of the step has a wider dtype."""
    notes = [note for e in episodes for note in e.notes.values()]
    values = [np.asarray(note.values) for note in notes]
    names = {d: d.name for d in {v.dtype for v in values}}
    dtype = np.float32 if all(np.can_cast(d, np.float32, "safe") for d in names) else np.float64
    columns = {
        "name": _texts(pa, [name for e in episodes for name in e.notes]),
        **_columns(pa, notes, {"version": np.int64}, ("level",)),
        "dtype": _texts(pa, [names[v.dtype] for v in values]),
        "shape": _arrays(pa, [np.array(v.shape, np.int64) for v in values], np.int64, "Note.values.shape"),
        "values": _arrays(pa, [_floating(v.reshape(-1)) for v in values], dtype, "Note.values"),
    }
    return _list(pa, (len(e.notes) for e in episodes), _struct(pa, columns))


def _floating(values: NDArray[Any]) -> NDArray[Any]:
    """Integers as float64, if it represents them exactly."""
    if values.dtype.kind not in "iu" or np.can_cast(values.dtype, np.float32, "safe"):
        return values
    wide = values.astype(np.float64)
    if np.abs(wide).max(initial=0) >= 2**53:
        raise ValueError(
            f"Note.values is {values.dtype} and reaches {values.max()}: as a float64 it would lose digits. "
            "Notes are numbers to compute with; keep an id in another field."
        )
    return wide


def _sequences(pa: Any, sequences: Seq[Sequence]) -> Any:
    columns = {
        name: _arrays(pa, list(map(attrgetter(name), sequences)), dtype, f"Sequence.{name}")
        for name, dtype in _SEQUENCE_ARRAYS.items()
    }
    columns |= _columns(pa, sequences, {"prompt_len": np.int64})
    return _struct(pa, columns | {"allowed": _allowed(pa, [s.allowed for s in sequences])})


def _allowed(pa: Any, allowed: Seq[dict[int, NDArray[np.int64]] | None]) -> Any:
    absent = np.fromiter((a is None for a in allowed), np.bool_, len(allowed))
    there = [a for a in allowed if a is not None]
    columns = {
        "position": pa.array(np.fromiter(chain.from_iterable(there), np.int64)),
        "ids": _arrays(pa, [ids for a in there for ids in a.values()], np.int64, "Sequence.allowed"),
    }
    return _list(pa, (0 if a is None else len(a) for a in allowed), _struct(pa, columns), absent)


def _turns(pa: Any, turns: Seq[Turn]) -> Any:
    tools = [tool for t in turns for tool in t.tools]
    calls = _columns(pa, tools, {"seconds": np.float64, "ok": np.bool_}, ("name", "arguments"))
    columns = _columns(pa, turns, _TURN_NUMBERS, _TURN_TEXTS)
    columns["reward"] = _rewards(pa, [t.reward for t in turns])
    columns["tools"] = _list(pa, (len(t.tools) for t in turns), _struct(pa, calls))
    columns["flags"] = _names(pa, [t.flags for t in turns])
    return _struct(pa, columns)


# ---- reading: the same columns, split into objects


def _plain(column: Any) -> list[Any]:
    """A column of numbers or texts as a list."""
    values = column.to_numpy(zero_copy_only=False).tolist()
    if values and isinstance(values[0], bytes):
        return [v.decode("utf-8", "surrogatepass") for v in values]
    return values


def _cut(values: Iterable[Any], lists: Any, make: Callable[[Iterable[Any]], Any]) -> list[Any]:
    """The values of each row of an Arrow list; None where the row is null."""
    flow = iter(values)
    pieces = [make(islice(flow, n)) for n in np.diff(lists.offsets.to_numpy()).tolist()]
    if lists.null_count:
        return [p if there else None for p, there in zip(pieces, _plain(lists.is_valid()), strict=True)]
    return pieces


def _read_arrays(lists: Any) -> list[Any]:
    """Each array is a copy: it is writable, and keeping one episode does not keep the file in memory."""
    values, at = lists.values.to_numpy(zero_copy_only=False), lists.offsets.to_numpy().tolist()
    there = _plain(lists.is_valid()) if lists.null_count else [True] * len(lists)
    return [values[a:b].copy() if t else None for a, b, t in zip(at, at[1:], there, strict=False)]


def _read_rewards(lists: Any) -> list[dict[str, float]]:
    names, values = _plain(lists.values.field("name")), _plain(lists.values.field("value"))
    return _cut(zip(names, values, strict=True), lists, dict)


def _read_names(lists: Any) -> list[frozenset[str]]:
    return _cut(_plain(lists.values), lists, frozenset)


def _build(kind: Callable[..., Any], columns: dict[str, list[Any]]) -> list[Any]:
    """One object per row, by positional arguments: the fastest call in Python."""
    return list(map(kind, *(columns[name] for name in kind.__match_args__)))  # type: ignore[attr-defined]


def _read_episodes(columns: dict[str, Any]) -> list[Episode]:
    rows = len(columns["uid"])
    columns = {"index" if name == "place" else name: x for name, x in columns.items()}  # "place" in older files
    names = (*_EPISODE_NUMBERS, *_EPISODE_TEXTS)
    c = {n: [_LATER[n]] * rows if n in _LATER and n not in columns else _plain(columns[n]) for n in names}
    for name, kind in (("status", Status), ("use", Use), ("source", Source)):
        c[name] = list(map({int(k): k for k in kind}.__getitem__, c[name]))
    c["reward"] = _read_rewards(columns["reward"])
    c["replaced"] = _read_names(columns["replaced"]) if "replaced" in columns else [frozenset()] * rows
    c["notes"] = _read_notes(columns["notes"])
    c["sequences"] = _cut(_read_sequences(columns["sequences"].values), columns["sequences"], list)
    c["turns"] = _cut(_read_turns(columns["turns"].values), columns["turns"], list)
    return _build(Episode, c)


def _read_beside(columns: dict[str, Any]) -> dict[str, list[Any]]:
    rows, out = len(columns["uid"]), dict[str, list[Any]]()
    for name, missing in BESIDE.items():
        column = columns.get(name)
        encoded = column is not None and isinstance(missing, str)
        out[name] = [missing] * rows if column is None else _plain(column.dictionary_decode() if encoded else column)
    return out


def _read_notes(lists: Any) -> list[dict[str, Note]]:
    names, level, version, dtype = (_plain(lists.values.field(n)) for n in ("name", "level", "version", "dtype"))
    shapes, values = (_read_arrays(lists.values.field(n)) for n in ("shape", "values"))
    rows = zip(values, dtype, shapes, strict=True)
    values = [v.astype(kind, copy=False).reshape(shape) for v, kind, shape in rows]
    return _cut(zip(names, map(Note, values, level, version), strict=True), lists, dict)


def _read_sequences(rows: Any) -> list[Sequence]:
    c: dict[str, list[Any]] = {name: _read_arrays(rows.field(name)) for name in _SEQUENCE_ARRAYS}
    c["prompt_len"] = _plain(rows.field("prompt_len"))
    allowed = rows.field("allowed")
    position, ids = _plain(allowed.values.field("position")), _read_arrays(allowed.values.field("ids"))
    c["allowed"] = _cut(zip(position, ids, strict=True), allowed, dict)
    return _build(Sequence, c)


def _read_turns(rows: Any) -> list[Turn]:
    there = {field.name for field in rows.type}
    later = {n: x for n, x in _LATER_OF_TURNS.items() if n not in there}
    names = (*_TURN_NUMBERS, *_TURN_TEXTS)
    c = {n: [later[n]] * len(rows) if n in later else _plain(rows.field(n)) for n in names}
    tools = rows.field("tools")
    calls = {name: _plain(tools.values.field(name)) for name in ToolCall.__match_args__}
    c["reward"] = _read_rewards(rows.field("reward"))
    c["tools"] = _cut(_build(ToolCall, calls), tools, tuple)
    c["flags"] = _read_names(rows.field("flags"))
    return _build(Turn, c)
