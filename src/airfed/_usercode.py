"""The user's own code, "module:callable": find it, import it, call it, and name it by a digest of its sources.

It is read afresh each time with the modules that it imports from its folder: what is executed is what is digested.
"""

from __future__ import annotations

import difflib
import hashlib
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
_PATHS: Final = [*map(sysconfig.get_path, ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()]
_LIBRARIES: Final = {Path(path).resolve() for path in (*_PATHS, site.getusersitepackages())}
_LOCK = threading.RLock()  # sys.path and sys.modules are everybody's
_IMPORTED: set[str] = set()  # modules that came by way of the user's code, and are read again the next time


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """A callable in a module of the user's."""

    folder: str  # absolute or relative to the scenario; "" where the text does not say
    module: str
    attribute: str

    @classmethod
    def parse(cls, text: str) -> UserCode:
        """Return the code that a text names: "module:callable", or "folder/module:callable"."""
        if found := _SPEC.fullmatch(text):
            return cls(folder=found[1] or "", module=found[2], attribute=found[3])
        better = re.sub(r"\.py(?=:)|\.(?=\w+$)(?!py$)", lambda dot: "" if dot[0] == ".py" else ":", text)
        hint = f" (did you mean {better!r}?)" if _SPEC.fullmatch(better) else ""
        raise ValueError(f"Expected 'module:callable', got {text!r}{hint}.")

    def places(self, folder: Path) -> list[Path]:
        """Return where the module is looked for: the folder it names, else beside the scenario, then where we are."""
        named = [folder / self.folder] if self.folder else [folder, Path()]
        return list(dict.fromkeys(place.resolve() for place in named))

    def place(self, folder: Path) -> Path | None:
        """Return the first of the places that holds the module; None where it can only be an installed one."""
        inner = self.module.replace(".", "/")
        files = (f"{inner}.py", f"{inner}/__init__.py")
        return next((place for place in self.places(folder) if any((place / file).is_file() for file in files)), None)

    def anchored(self, folder: Path) -> str:
        """Return the text that means the same wherever it is read."""
        place = self.place(folder)
        return self.name if place is None else f"{place.as_posix().rstrip('/')}/{self.name}"

    @property
    def name(self) -> str:
        return f"{self.module}:{self.attribute}"


def named(text: str, *, builtin: Collection[str], key: str) -> UserCode | None:
    """Return the user's code that the text of a key names; None where it names something built in."""
    if text in builtin:
        return None
    try:
        return UserCode.parse(text)
    except ValueError as error:
        reason = str(error).removeprefix("Expected ")
        if close := difflib.get_close_matches(text.lower(), builtin, n=1):
            reason = f"{reason.removesuffix('.')} (did you mean {close[0]!r}?)."
        raise ValueError(f"Expected {key} to be one of {', '.join(builtin)}, or your own as {reason}") from None


class Opened:
    """The user's code, imported; see `opened`."""

    def __init__(self, code: UserCode, role: str, place: Path | None, before: set[str]) -> None:
        self._code, self._role, self._place = code, role, place
        with self._explained("to be importable"):
            module = importlib.import_module(code.module)
        self._files = {code.module: Path(str(module.__file__)), **_own(set(sys.modules) - before, place)}
        found = getattr(module, code.attribute, None)
        if not callable(found):
            known = [name for name, value in vars(module).items() if callable(value) and name[0] != "_"]
            raise ValueError(
                f"Expected {code.module!r} ({module.__file__}) to have a callable {code.attribute!r}, got "
                f"{found!r}; write 'module:callable'" + (f", it has {', '.join(known[:6])}." if known else ".")
            )
        self.function: Callable[..., Any] = found

    def call(self, *args: Any, **settings: Any) -> Any:
        """Return what the callable returns; whatever it raises but an InfeasibleError becomes a ValueError."""
        with self._explained("to decide" if args else "to be made without arguments"):
            return self.function(*args, **settings)

    def digest(self) -> str:
        """Return the SHA-256 of the callable's name, its module, and the modules of its folder that this imports.

        An import within a function counts, except in a package without __init__.py; installed packages do not.
        """
        finder = modulefinder.ModuleFinder([str(self._place)])
        with suppress(ImportError, SyntaxError, TypeError, AttributeError):  # no folder, or no __init__.py
            finder.import_hook(self._code.module)
        named = {name: Path(str(getattr(part, "__file__", None))).resolve() for name, part in finder.modules.items()}
        own = {name: path for name, path in named.items() if path.is_file() and _is_own(path, self._place)}
        digest = hashlib.sha256(f"{self._code.name}\n".encode())
        for name, path in sorted((self._files | own).items()):
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
            wish = "to be Python" if isinstance(error, SyntaxError) else wish
            kind = "" if isinstance(error, ImportError | SyntaxError) else f"{type(error).__name__}: "
            reason = " ".join(str(error).split()).removesuffix(".") or "no message"
            frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
            own = [f" ({path.name}, line {line})" for path, line in frames if _is_own(path, self._place)]
            where = own[-1] if own else ""
            raise ValueError(f"Expected {self._role} {self._code.name!r} {wish}; {kind}{reason}{where}.") from error


@contextmanager
def opened(code: UserCode, folder: Path, *, role: str) -> Iterator[Opened]:
    """Import the user's code from beside the scenario, the working directory or the installed packages.

    Its folder is importable within the context: helper modules may lie there. Messages name it by its role, as "model".
    """
    place, found = code.place(folder), None
    with _LOCK, redirect_stdout(sys.stderr):  # what it prints must not get into our --json
        _forget(_IMPORTED)
        _IMPORTED.clear()
        if place is not None:
            _make_way(code.module.partition(".")[0], place)
            sys.path.insert(0, str(place))
        else:
            with suppress(ImportError, ValueError):  # of the package that it is said to be in
                found = None if code.folder else importlib.util.find_spec(code.module)
            if found is None:
                places = " or in ".join(map(str, code.places(folder)))
                raise ValueError(
                    f"Expected {role} {code.name!r} ('module:callable') to be importable; there is no module "
                    f"{code.module!r} in {places}{'' if code.folder else ', nor is it installed'}."
                )
        before, wrote, sys.dont_write_bytecode = set(sys.modules), sys.dont_write_bytecode, True
        importlib.invalidate_caches()
        try:
            yield Opened(code, role, place, before)
        finally:
            _IMPORTED.update(_own(set(sys.modules) - before, place))
            sys.dont_write_bytecode = wrote
            if str(place) in sys.path:  # the user's code may have put it right already
                sys.path.remove(str(place))


def _make_way(top: str, place: Path) -> None:
    """Forget the modules of earlier imports that would be taken instead of reading those in `place`."""
    beside = {entry.stem for entry in place.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").is_file()}
    own = _own(beside | {top}, Path(place.anchor))
    if top in sys.stdlib_module_names or (getattr(sys.modules.get(top), "__file__", None) and top not in own):
        raise ValueError(
            f"Expected another name for the module {top!r} in {place}: Python or an installed package has one of that "
            "name."
        )
    _forget({top, *own})


def _forget(names: set[str]) -> None:
    for name in [name for name in sys.modules if name in names or name.partition(".")[0] in names]:
        del sys.modules[name]


def _own(names: set[str], place: Path | None) -> dict[str, Path]:
    """The files of those loaded modules that lie in the place and are neither installed nor airfed's."""
    others = [name for name in names if name.partition(".")[0] not in ("airfed", "__main__", "__mp_main__")]
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in others}
    paths = {name: Path(file).resolve() for name, file in files.items() if isinstance(file, str)}
    return {name: path for name, path in paths.items() if _is_own(path, place)}


def _is_own(path: Path, place: Path | None) -> bool:
    return place is not None and path.is_relative_to(place) and not any(map(path.is_relative_to, _LIBRARIES))
