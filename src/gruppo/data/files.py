"""Files that appear whole or not at all, with the permissions that the umask gives."""

import errno
import os
import re
import shutil
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor


def write_tensors(tensors: Mapping[str, Tensor], path: Path, metadata: Mapping[str, str] | None = None) -> None:
    """Write a safetensors file, on disk when this returns; a full disk is an OSError.

    Tensors of any device and layout are stored whole, also those that share memory.
    """
    draft = path.with_name(f".draft-{path.name}")
    try:
        draft.unlink(missing_ok=True)
        mode = _new_file_mode(draft)
        with system_errors():
            save_file(_separate(tensors), draft, metadata=dict(metadata) if metadata else None)
        draft.chmod(mode)  # safetensors makes it readable by the owner alone
        sync(draft)
        os.replace(draft, path)
    finally:
        draft.unlink(missing_ok=True)


def _separate(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Contiguous tensors in main memory, each with a storage of its own; only what shares one is copied."""
    out, seen = dict[str, Tensor](), set[int]()
    for name, tensor in tensors.items():
        own = tensor.detach().cpu().contiguous()
        storage = own.untyped_storage()
        if storage.data_ptr() in seen or storage.nbytes() != own.numel() * own.element_size():
            own = own.clone()
        seen.add(own.untyped_storage().data_ptr())
        out[name] = own
    return out


@contextmanager
def whole_folder(path: Path, mark: str) -> Generator[Path]:
    """A draft folder that takes the name `path` once the block has ended, with everything on disk.

    A folder of that name is replaced if it has the file `mark`; any other is refused. If the block fails, or the
    process is killed, the old folder stays as it is.
    """
    path = path.absolute()
    if path.exists() and not (path / mark).is_file() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(
            f"{path} exists and has no {mark}: it holds something else, which would be lost. Move it, or choose "
            "another folder."
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    draft, before = path.with_name(f".draft-{path.name}"), path.with_name(f".before-{path.name}")
    if before.is_dir() and not path.exists():  # killed between the two renames below
        before.rename(path)
    for left in (draft, before):
        shutil.rmtree(left, ignore_errors=True)
    draft.mkdir()
    try:
        with system_errors():
            yield draft
        _settle(draft)
        if path.exists():
            path.rename(before)
        draft.rename(path)
    except BaseException:
        if before.is_dir() and not path.exists():
            before.rename(path)
        raise
    finally:
        shutil.rmtree(draft, ignore_errors=True)  # nothing left if it was renamed
    sync(path.parent)
    shutil.rmtree(before, ignore_errors=True)


def _settle(folder: Path) -> None:
    """Every file and folder under it on disk, and files with the permissions of an ordinary new file."""
    probe = folder / ".mode"
    mode = _new_file_mode(probe)
    probe.unlink()
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)
        sync(path)
    sync(folder)


def follow_umask(path: Path) -> None:
    """Give a file the permissions of an ordinary new file."""
    probe = path.with_name(f".mode-{path.name}")
    path.chmod(_new_file_mode(probe))
    probe.unlink()


def _new_file_mode(path: Path) -> int:
    """Makes an empty file. os.umask() could tell too, but only by changing the umask of all threads."""
    path.touch()
    return path.stat().st_mode & 0o777


def sync(path: Path) -> None:
    """Wait until a file or folder is on disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


@contextmanager
def system_errors() -> Generator[None]:
    """An error of the disk inside safetensors as the OSError that it was."""
    try:
        yield
    except SafetensorError as error:
        found = re.search(r"code: (\d+)|os error (\d+)", str(error))
        code = int(found[1] or found[2]) if found else errno.EIO
        raise OSError(code, os.strerror(code) if found else str(error)) from error
