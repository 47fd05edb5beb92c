"""The user's own code, "module:callable": find it, import it, call it, and name it by a digest of its sources.

The module and those that it imports from its folder are read afresh each time, and no bytecode is kept: what is
executed is what is digested.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import importlib
import importlib.util
import modulefinder
import re
import site
import sys
import sysconfig
import threading
import traceback
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from airfed import _extras
from airfed.problem import InfeasibleError

_NAME: Final = r"[^\W\d]\w*"
_SPEC: Final = re.compile(rf"(.*/)?({_NAME}(?:\.{_NAME})*)(?<!\.py):({_NAME})")
_LOCK = threading.RLock()  # sys.path and sys.modules are everybody's
_IMPORTED: set[str] = set()  # modules that came by way of the user's code, and are read again the next time


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """A callable in a module of the user's.

    Args:
        folder: where the module lies, absolute or relative to the scenario; "" where the text does not say.
        module: its name, with dots in a package.
        attribute: the callable's name.
    """

    folder: str
    module: str
    attribute: str

    @classmethod
    def parse(cls, text: str) -> UserCode:
        """Return the code that a text names: "module:callable", or "folder/module:callable".

        Raises:
            ValueError: the text is neither; the message says how to write it.

        >>> UserCode.parse("nets.small:make").module
        'nets.small'
        >>> UserCode.parse("nets.py:make")
        Traceback (most recent call last):
        ...
        ValueError: Expected 'module:callable', got 'nets.py:make' (did you mean 'nets:make'?).
        """
        if found := _SPEC.fullmatch(text):
            return cls(folder=found[1] or "", module=found[2], attribute=found[3])
        better = re.sub(r"\.py(?=:)|\.(?=\w+$)(?!py$)", lambda dot: "" if dot[0] == ".py" else ":", text)
        hint = f" (did you mean {better!r}?)" if _SPEC.fullmatch(better) else ""
        raise ValueError(f"Expected 'module:callable', got {text!r}{hint}.")

    def places(self, folder: Path) -> list[Path]:
        """Return where the module is looked for: the folder it names, else beside the scenario, then where we are."""
        if self.folder:
            return [(folder / self.folder).resolve()]
        return list(dict.fromkeys(place.resolve() for place in (folder, Path())))

    def place(self, folder: Path) -> Path | None:
        """Return the first of the places that holds the module; None where it can only be an installed one."""
        inner = Path(*self.module.split("."))
        for place in self.places(folder):
            if (place / inner).with_suffix(".py").is_file() or (place / inner / "__init__.py").is_file():
                return place
        return None

    def anchored(self, folder: Path) -> str:
        """Return the text that means the same wherever it is read."""
        place = self.place(folder)
        return self.name if place is None else f"{place.as_posix().rstrip('/')}/{self.name}"

    @property
    def name(self) -> str:
        """The text without the folder."""
        return f"{self.module}:{self.attribute}"


def named(text: str, *, builtin: Collection[str], key: str) -> UserCode | None:
    """Return the user's code that a text names; None where it names something built in.

    Args:
        text: a built-in name, or "module:callable".
        builtin: the names that need no code.
        key: what the text was given for.

    Raises:
        ValueError: it is neither.
    """
    if text in builtin:
        return None
    try:
        return UserCode.parse(text)
    except ValueError as error:
        close = difflib.get_close_matches(text.lower(), builtin, n=1)
        hint = f" (did you mean {close[0]!r}?)." if close else ""
        reason = str(error).removeprefix("Expected ")
        raise ValueError(
            f"Expected {key} to be one of {', '.join(builtin)}, or your own as "
            + (reason.removesuffix(".") + hint if hint else reason)
        ) from None


class Opened:
    """The user's code, imported; see `opened`."""

    def __init__(self, code: UserCode, role: str, place: Path | None, before: set[str]) -> None:
        self._code, self._role, self._place = code, role, place
        with self._explained("to be importable"):
            module = importlib.import_module(code.module)
        loaded = _arrived(before, place) | {code.module}
        self._files = {name: path for name in loaded if (path := _file(name)) is not None}
        found = getattr(module, code.attribute, None)
        if not callable(found):
            known = [name for name, value in vars(module).items() if callable(value) and name[0] != "_"]
            raise ValueError(
                f"Expected {code.module!r} ({module.__file__}) to have a callable {code.attribute!r}, got "
                f"{found!r}; write 'module:callable'" + (f", it has {', '.join(known[:6])}." if known else ".")
            )
        self.function: Callable[..., Any] = found

    def call(self, *args: Any, **settings: Any) -> Any:
        """Return what the callable returns.

        Raises:
            InfeasibleError: it says so.
            ValueError: it failed in any other way; the message says where.
        """
        with self._explained("to decide" if args else "to be made without arguments"):
            return self.function(*args, **settings)

    def digest(self) -> str:
        """Return the SHA-256 of the callable's name, its module, and the modules of its folder that this imports.

        An import within a function counts, except in a package without __init__.py; an installed package, a module
        elsewhere or a file of data does not count.
        """
        files = self._files if self._place is None else self._files | _imported(self._code.module, self._place)
        digest = hashlib.sha256(f"{self._code.name}\n".encode())
        for name, path in sorted(files.items()):
            digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return digest.hexdigest()

    @contextmanager
    def _explained(self, wish: str) -> Iterator[None]:
        """Turn whatever the user's code raises into one sentence that says where."""
        try:
            with _extras.explained():
                yield
        except (InfeasibleError, _extras.MissingExtra):
            raise
        except (Exception, SystemExit) as error:  # it is somebody else's code: anything can come out of it
            if isinstance(error, SyntaxError):
                wish = "to be Python"
            reason = " ".join(str(error).split()) or "no message"
            if not isinstance(error, ImportError | SyntaxError):
                reason = f"{type(error).__name__}: {reason}"
            frames = [
                frame
                for frame in traceback.extract_tb(error.__traceback__)
                if self._place is not None and _within(Path(frame.filename), self._place)
            ]
            where = f" ({Path(frames[-1].filename).name}, line {frames[-1].lineno})" if frames else ""
            raise ValueError(
                f"Expected {self._role} {self._code.name!r} {wish}; {reason.removesuffix('.')}{where}."
            ) from error


@contextmanager
def opened(code: UserCode, folder: Path, *, role: str) -> Iterator[Opened]:
    """Import the user's code from beside the scenario, the working directory or the installed packages.

    Its folder is importable within the context: helper modules may lie there.

    Args:
        code: what to import.
        folder: the scenario's.
        role: what the code is for, "model" say, as messages name it.

    Raises:
        ValueError: there is no such module or callable, or the import failed.
    """
    place = code.place(folder)
    with _LOCK, redirect_stdout(sys.stderr):  # what it prints must not get into our --json
        _forget(_IMPORTED)
        _IMPORTED.clear()
        if place is None:
            _check_installed(code, folder, role)
        else:
            _forget(_in_the_way(code, place))
            sys.path.insert(0, str(place))
        before, wrote, sys.dont_write_bytecode = set(sys.modules), sys.dont_write_bytecode, True
        importlib.invalidate_caches()
        try:
            yield Opened(code, role, place, before)
        finally:
            _IMPORTED.update(_arrived(before, place))
            sys.dont_write_bytecode = wrote
            if str(place) in sys.path:  # the user's code may have put it right already
                sys.path.remove(str(place))


def _check_installed(code: UserCode, folder: Path, role: str) -> None:
    """Raise where a module is neither in the places it is looked for nor installed."""
    try:
        found = not code.folder and importlib.util.find_spec(code.module) is not None
    except (ImportError, ValueError):  # of the package that it is said to be in
        found = False
    if not found:
        places = " or in ".join(str(place) for place in code.places(folder))
        raise ValueError(
            f"Expected {role} {code.name!r} ('module:callable') to be importable; there is no module {code.module!r} "
            f"in {places}{'' if code.folder else ', nor is it installed'}."
        )


def _forget(names: set[str]) -> None:
    """Drop modules, with what is in them, so that the next import reads them again."""
    for name in list(sys.modules):
        if name in names or name.partition(".")[0] in names:
            del sys.modules[name]


def _in_the_way(code: UserCode, place: Path) -> set[str]:
    """The modules of earlier imports that would be taken instead of reading those in `place`."""
    top = code.module.partition(".")[0]
    if top in sys.stdlib_module_names or (_file(top) is not None and not _users(top)):
        raise ValueError(
            f"Expected another name for the module {top!r} in {place}: Python or an installed package has one of that "
            "name."
        )
    beside = {entry.stem for entry in place.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").is_file()}
    return {top} | {name for name in beside if _users(name)}


def _arrived(before: set[str], place: Path | None) -> set[str]:
    """The modules that were imported from the place since."""
    new = [name for name in list(sys.modules) if name not in before]
    return {name for name in new if place is not None and _within(_file(name), place)}


def _imported(module: str, place: Path) -> dict[str, Path]:
    """The modules of a folder that a module names in its imports, wherever in the source they stand, and so on."""
    finder = modulefinder.ModuleFinder([str(place)])
    with suppress(ImportError, SyntaxError, TypeError, AttributeError):  # it does not know packages without __init__.py
        finder.import_hook(module)
    files = {name: getattr(part, "__file__", None) for name, part in finder.modules.items()}
    found = {name: Path(file).resolve() for name, file in files.items() if file}
    return {name: path for name, path in found.items() if _within(path, place)}


def _users(name: str) -> bool:
    """Whether a module is loaded and is neither Python's, nor an installed package's, nor airfed's own."""
    path = _file(name)
    if path is None or name.partition(".")[0] in ("airfed", "__main__", "__mp_main__"):
        return False
    return not any(path.is_relative_to(folder) for folder in _installed())


def _file(name: str) -> Path | None:
    """The file of a loaded module, if it has one."""
    path = getattr(sys.modules.get(name), "__file__", None)
    return Path(path).resolve() if isinstance(path, str) and Path(path).is_file() else None


def _within(path: Path | None, folder: Path) -> bool:
    return path is not None and path.is_relative_to(folder) and not any(path.is_relative_to(f) for f in _installed())


@functools.cache
def _installed() -> tuple[Path, ...]:
    """The folders of the standard library and of installed packages."""
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    known = [*map(sysconfig.get_path, kinds), *site.getsitepackages(), site.getusersitepackages()]
    return tuple({Path(path).resolve() for path in known})
