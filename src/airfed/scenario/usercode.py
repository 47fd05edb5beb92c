"""The user's own code in a scenario, "module:callable", and where it is looked for."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MODELS: Final = ("cnn", "mlp", "logistic", "quadratic")
"""The models that need no code of the user's."""


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
        path, colon, attribute = text.rpartition(":")
        folder, slash, module = path.rpartition("/")
        if module.endswith(".py"):
            module = module.removesuffix(".py")
            raise ValueError(_malformed(text, f"{folder}{slash}{module}:{attribute}"))
        if not colon:
            head, dot, tail = text.removesuffix(".py").rpartition(".")
            raise ValueError(_malformed(text, f"{head}:{tail}" if dot and not text.endswith(".py") else ""))
        if not attribute.isidentifier() or not all(part.isidentifier() for part in module.split(".")):
            raise ValueError(_malformed(text, ""))
        return cls(folder=folder + slash, module=module, attribute=attribute)

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


def user_code(model: str) -> UserCode | None:
    """Return the code of a `learning.model`; None for a built-in model.

    Raises:
        ValueError: it is neither a built-in model nor "module:callable".
    """
    if model in MODELS:
        return None
    try:
        return UserCode.parse(model)
    except ValueError as error:
        close = difflib.get_close_matches(model.lower(), MODELS, n=1)
        hint = f" (did you mean {close[0]!r}?)." if close else ""
        text = str(error).removeprefix("Expected ")
        raise ValueError(
            f"Expected learning.model to be one of {', '.join(MODELS)}, or your own as "
            + (text.removesuffix(".") + hint if hint else text)
        ) from None


def _malformed(text: str, instead: str) -> str:
    good = instead.rpartition(":")
    hint = f" (did you mean {instead!r}?)" if good[0] and good[2] else ""
    return f"Expected 'module:callable', got {text!r}{hint}."
