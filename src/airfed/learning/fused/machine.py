"""What the processor offers: the instruction set to compile for and the register tiles that fit it."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache

SAMPLES = 8
"""Images that travel through the network together; one vector of the sample-last layout."""


@dataclass(frozen=True, kw_only=True)
class Machine:
    """A processor as the compiler sees it.

    Args:
        cpu: LLVM's name of the processor.
        features: LLVM's list of its instruction-set extensions ("+avx2,-avx512f,...").
    """

    cpu: str
    features: str

    @property
    def lanes(self) -> int:
        """Floats in one register: 16 with AVX-512, else 8 (LLVM splits them where registers are shorter)."""
        return 16 if "+avx512f" in self.features.split(",") else 8

    @property
    def registers(self) -> int:
        """Registers that one tile of partial sums may occupy: all but those for the operands."""
        return 25 if self.lanes == 16 else 12

    @property
    def rows(self) -> int:
        """Rows of the tile of a dense product (columns: 4), so that sums and operands stay in registers."""
        return 4 if self.lanes == 16 else 2


@cache
def host() -> Machine:
    """Return this machine.

    Numba's own variables NUMBA_CPU_NAME and NUMBA_CPU_FEATURES replace what LLVM finds, say to build for an
    older processor.
    """
    import llvmlite.binding as llvm

    name = os.environ.get("NUMBA_CPU_NAME")
    features = os.environ.get("NUMBA_CPU_FEATURES", "" if name else llvm.get_host_cpu_features().flatten())
    return Machine(cpu=name or llvm.get_host_cpu_name(), features=features)
