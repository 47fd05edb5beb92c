"""User code, "module:callable": find it, import it (anew each time), call it, and identify it by its sources."""

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
_LOCK = threading.RLock()  # sys.path and sys.modules are global
_IMPORTED: set[str] = set()  # modules imported by user code, which are read again the next time


@dataclass(frozen=True, kw_only=True)
class UserCode:
    """A callable in a module of the user."""

    folder: str  # absolute or relative to the scenario; "" if the text has none
    module: str
    attribute: str

    @classmethod
    def parse(cls, text: str) -> UserCode:
        """Parse "module:callable" or "folder/module:callable"."""
        if found := _SPEC.fullmatch(text):
            return cls(folder=found[1] or "", module=found[2], attribute=found[3])
        better = re.sub(r"\.py(?=:)|\.(?=\w+$)(?!py$)", lambda dot: "" if dot[0] == ".py" else ":", text)
        hint = f" (did you mean {better!r}?)" if _SPEC.fullmatch(better) else ""
        raise ValueError(f"User code must be 'module:callable', got {text!r}{hint}.")

    def search_path(self, folder: Path) -> list[Path]:
        """Return the folders to search: the named one, or else that of the scenario and the working directory."""
        named = [folder / self.folder] if self.folder else [folder, Path()]
        return list(dict.fromkeys(path.resolve() for path in named))

    def find(self, folder: Path) -> Path | None:
        """Return the first folder of the search path with the module; None if it can only be an installed one."""
        inner = self.module.replace(".", "/")
        files = (f"{inner}.py", f"{inner}/__init__.py")
        return next((path for path in self.search_path(folder) if any((path / file).is_file() for file in files)), None)

    def anchored(self, folder: Path) -> str:
        """Return the text with the full path of the folder."""
        found = self.find(folder)
        return self.name if found is None else f"{found.as_posix().rstrip('/')}/{self.name}"

    @property
    def name(self) -> str:
        return f"{self.module}:{self.attribute}"


RENAMED: Final = {
    "noise_free": "fedavg",
    "central": "dp_fedavg",
    "truncated": "truncated_inversion",
    "seif": "artificial_noise",
}
"""Old name -> new name of built-in policies."""


def named(text: str, *, builtin: Collection[str], key: str) -> UserCode | None:
    """Return the user code that the value of a key names; None if it names something built in."""
    if text in builtin:
        return None
    try:
        return UserCode.parse(text)
    except ValueError as error:
        if text in RENAMED:
            raise ValueError(f"The value {text!r} of {key} is now called {RENAMED[text]!r}.") from None
        reason = str(error).removeprefix("User code must be ")
        if close := difflib.get_close_matches(text.lower(), builtin, n=1):
            reason = f"{reason.removesuffix('.')} (did you mean {close[0]!r}?)."
        raise ValueError(f"{key} must be one of {', '.join(builtin)}, or your own as {reason}") from None


class Opened:
    """Imported user code; see `opened`."""

    def __init__(self, code: UserCode, role: str, folder: Path | None, before: set[str]) -> None:
        self._code, self._role, self._folder = code, role, folder
        with self._explained("cannot be imported"):
            module = importlib.import_module(code.module)
        self._files = {code.module: Path(str(module.__file__)), **_own(set(sys.modules) - before, folder)}
        found = getattr(module, code.attribute, None)
        if not callable(found):
            known = [name for name, value in vars(module).items() if callable(value) and name[0] != "_"]
            raise ValueError(
                f"{code.attribute!r} in {code.module!r} ({module.__file__}) must be a callable, got {found!r}"
                + (f"; the module has {', '.join(known[:6])}." if known else ".")
            )
        self.function: Callable[..., Any] = found

    def call(self, *args: Any, **settings: Any) -> Any:
        """Call it; turn every exception except InfeasibleError into a ValueError."""
        with self._explained("failed" if args else "cannot be called without arguments"):
            return self.function(*args, **settings)

    def digest(self) -> str:
        """Return the SHA-256 of the callable's name, its module, and the modules that it imports from its folder."""
        finder = modulefinder.ModuleFinder([str(self._folder)])
        with suppress(ImportError, SyntaxError, TypeError, AttributeError):  # no folder, or no __init__.py
            finder.import_hook(self._code.module)
        named = {name: Path(str(getattr(part, "__file__", None))).resolve() for name, part in finder.modules.items()}
        own = {name: path for name, path in named.items() if path.is_file() and _is_own(path, self._folder)}
        digest = hashlib.sha256(f"{self._code.name}\n".encode())
        for name, path in sorted((self._files | own).items()):
            digest.update(f"{name} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return digest.hexdigest()

    @contextmanager
    def _explained(self, problem: str) -> Iterator[None]:
        """Turn exceptions of the user code into a ValueError that names the line."""
        try:
            with _extras.explained():
                yield
        except (InfeasibleError, _extras.MissingExtra):
            raise
        except (Exception, SystemExit) as error:  # user code can raise anything
            problem = "is not valid Python" if isinstance(error, SyntaxError) else problem
            kind = "" if isinstance(error, ImportError | SyntaxError) else f"{type(error).__name__}: "
            reason = " ".join(str(error).split()).removesuffix(".") or "no message"
            frames = [(Path(frame.filename), frame.lineno) for frame in traceback.extract_tb(error.__traceback__)]
            own = [f" ({path.name}, line {line})" for path, line in frames if _is_own(path, self._folder)]
            where = own[-1] if own else ""
            raise ValueError(f"The {self._role} {self._code.name!r} {problem}: {kind}{reason}{where}.") from error


@contextmanager
def opened(code: UserCode, folder: Path, *, role: str) -> Iterator[Opened]:
    """Import user code and its helpers from the scenario's folder, the working directory or the installed packages."""
    found, spec = code.find(folder), None
    with _LOCK, redirect_stdout(sys.stderr):  # its prints must not mix with --json
        _forget(_IMPORTED)
        _IMPORTED.clear()
        if found is not None:
            _unload(code.module.partition(".")[0], found)
            sys.path.insert(0, str(found))
        else:
            with suppress(ImportError, ValueError):  # of the parent package
                spec = None if code.folder else importlib.util.find_spec(code.module)
            if spec is None:
                searched = " or in ".join(map(str, code.search_path(folder)))
                raise ValueError(
                    f"The {role} {code.name!r} ('module:callable') cannot be imported: there is no module "
                    f"{code.module!r} in {searched}{'' if code.folder else ', nor is it installed'}."
                )
        before, wrote, sys.dont_write_bytecode = set(sys.modules), sys.dont_write_bytecode, True
        importlib.invalidate_caches()
        try:
            yield Opened(code, role, found, before)
        finally:
            _IMPORTED.update(_own(set(sys.modules) - before, found))
            sys.dont_write_bytecode = wrote
            if str(found) in sys.path:  # the user code may have removed it
                sys.path.remove(str(found))


def _unload(top: str, folder: Path) -> None:
    """Forget the modules of earlier imports that would hide those in `folder`."""
    beside = {entry.stem for entry in folder.iterdir() if entry.suffix == ".py" or (entry / "__init__.py").is_file()}
    own = _own(beside | {top}, Path(folder.anchor))
    if top in sys.stdlib_module_names or (getattr(sys.modules.get(top), "__file__", None) and top not in own):
        raise ValueError(
            f"The module {top!r} in {folder} must have another name: Python or an installed package has a module of "
            "this name."
        )
    _forget({top, *own})


def _forget(names: set[str]) -> None:
    for name in [name for name in sys.modules if name in names or name.partition(".")[0] in names]:
        del sys.modules[name]


def _own(names: set[str], folder: Path | None) -> dict[str, Path]:
    """Return the files of those loaded modules that are in the folder and belong to the user."""
    others = [name for name in names if name.partition(".")[0] not in ("airfed", "__main__", "__mp_main__")]
    files = {name: getattr(sys.modules.get(name), "__file__", None) for name in others}
    paths = {name: Path(file).resolve() for name, file in files.items() if isinstance(file, str)}
    return {name: path for name, path in paths.items() if _is_own(path, folder)}


def _is_own(path: Path, folder: Path | None) -> bool:
    return folder is not None and path.is_relative_to(folder) and not any(map(path.is_relative_to, _LIBRARIES))
