"""Machine code of the kernels: compiled by Numba once, kept on disk, loaded without it.

The name of the object file has a digest of the sources, the versions of the compilers and the processor, so a stale or
foreign file is never read; a damaged file is detected by its checksum and replaced.
"""

from __future__ import annotations

import ctypes
import hashlib
import importlib.metadata
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm
import platformdirs

from airfed.learning.fused.tables import host

LOG = logging.getLogger(__name__)
MESSAGE = "Compiling the fused engine (once, about 15 s) ..."
SYMBOL = "airfed_fused_run"
DIGEST = hashlib.sha256().digest_size
KEEP = 8  # object files kept for other versions and processors
SOURCES = ("tables.py", "tile.py", "kernels.py", "compiler.py")

# The arguments of `kernels.run`; native functions of Numba take two result pointers first, and return a status.
_INPUTS, _COUNTS, _REALS = (ctypes.c_void_p,) * 7, (ctypes.c_int64,) * 3, (ctypes.c_float,) * 2
PROTOTYPE = ctypes.CFUNCTYPE(ctypes.c_int32, *_INPUTS, *_COUNTS, *_REALS, *(ctypes.c_void_p,) * 4)

EntryPoint = Callable[..., int]


def object_file() -> Path:
    """Return the path of the object file for these sources, compilers and processor, below $AIRFED_CACHE_DIR if set."""
    digest = hashlib.sha256()
    for name in SOURCES:
        digest.update(Path(__file__).with_name(name).read_bytes())
    for package in ("numba", "llvmlite"):
        digest.update(f"{package} {importlib.metadata.version(package)}\n".encode())
    digest.update(f"{host().cpu} {host().features}".encode())
    folder = Path(os.environ.get("AIRFED_CACHE_DIR") or platformdirs.user_cache_path("airfed"))
    return folder / f"fused-{digest.hexdigest()[:32]}.o"


@cache
def compiled() -> EntryPoint:
    """Return the compiled entry point `kernels.run`, from the cache, or compile it with a warning."""
    path = object_file()
    code = _read(path)
    if code is None:
        LOG.warning(MESSAGE)
        code = compile_object()
        _write(path, code)
    return _link(code)


def _read(path: Path) -> bytes | None:
    """Return the code in an object file, or None if there is none or it is damaged."""
    with suppress(OSError):
        content = path.read_bytes()
        if hashlib.sha256(content[DIGEST:]).digest() == content[:DIGEST]:
            return content[DIGEST:]
    return None


def _write(path: Path, code: bytes) -> None:
    """Store the code; log a warning if the directory cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".new", delete=False) as file:
            file.write(hashlib.sha256(code).digest() + code)
        os.replace(file.name, path)
        others = [other for other in path.parent.glob("fused-*.o") if other != path]  # whatever its time
        others.sort(key=lambda other: other.stat().st_mtime)
        for other in others[: 1 - KEEP]:
            other.unlink(missing_ok=True)
    except OSError as error:
        LOG.warning("The fused engine will be compiled again next time: %s.", error)


def compile_object() -> bytes:
    """Return the object code of `kernels.run` for this machine, compiled in a separate process.

    There the optimiser of Numba is off (LLVM optimises the whole once, in half the time), and the memory is released.
    """
    environment = os.environ | {"NUMBA_OPT": "0", "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    child = subprocess.run([sys.executable, "-m", __name__], env=environment, capture_output=True, check=False)
    if child.returncode != 0 or not child.stdout:
        raise RuntimeError(f"The fused engine could not be compiled:\n{child.stderr.decode()[-2000:]}")
    return child.stdout


def _emit_object() -> bytes:
    """Return the object code: typed and lowered by Numba, optimised as a whole by LLVM."""
    import numba

    from airfed.learning.fused import kernels

    types: Any = numba.types
    floats, integers, table, results = (
        types.CPointer(scalar) for scalar in (types.float32, types.int32, types.int64, types.float64)
    )
    counts, reals = (types.int64,) * 3, (types.float32,) * 2
    signature = types.void(table, floats, floats, table, table, *counts, *reals, floats, integers, floats, results)
    run: Any = kernels.run
    run.compile(signature)
    name = run.overloads[signature.args].fndesc.mangled_name
    module = llvm.parse_assembly(run.inspect_llvm(signature.args))
    for function in module.functions:
        if function.name == name:
            function.name = SYMBOL
        elif not function.is_declaration:
            function.linkage = "internal"  # removes functions that the entry point does not call
    machine = _target_machine()
    builder = llvm.create_pass_builder(machine, llvm.create_pipeline_tuning_options(speed_level=3))
    builder.getModulePassManager().run(module, builder)
    return bytes(machine.emit_object(module))


def _target_machine() -> Any:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    options: dict[str, Any] = {"cpu": host().cpu, "features": host().features, "codemodel": "jitdefault"}
    return llvm.Target.from_default_triple().create_target_machine(**options, opt=3, jit=True)


_ENGINES: list[object] = []  # linked code needs its engine


def _link(code: bytes) -> EntryPoint:
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), _target_machine())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    _ENGINES.append(engine)
    return PROTOTYPE(engine.get_function_address(SYMBOL))


if __name__ == "__main__":
    sys.stdout.buffer.write(_emit_object())
