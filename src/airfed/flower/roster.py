"""Which node is which device."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable

from flwr.serverapp import Grid

from airfed.flower import messages

_LOG = logging.getLogger("flwr")
_PAUSE = 0.5  # s between two looks at who has joined


class Roster:
    """The nodes that are there, by the index of the device that each of them is.

    Args:
        num_devices: N.
        answer_timeout: [s] how long a node may take to say which device it is.
    """

    def __init__(self, *, num_devices: int, answer_timeout: float = 60.0) -> None:
        self.num_devices, self.answer_timeout = num_devices, answer_timeout
        self._devices: dict[int, int] = {}  # of each node that has answered

    def find(self, grid: Grid, devices: Iterable[int], *, wait: float = 0.0) -> dict[int, int]:
        """Return the node id of each of the devices that is there.

        Nodes that are new are asked which device they are. A device that is there twice is the node that came first.

        Args:
            grid: where the nodes are.
            devices: who is looked for.
            wait: [s] for how long to wait for those who are missing.
        """
        wanted = list(devices)
        deadline = time.monotonic() + wait
        while True:
            nodes = self._look(grid, wanted)
            found = {device: nodes[device] for device in wanted if device in nodes}
            if len(found) == len(wanted) or time.monotonic() >= deadline:
                return found
            time.sleep(_PAUSE)

    def _look(self, grid: Grid, wanted: list[int]) -> dict[int, int]:
        present = set(grid.get_node_ids())
        self._devices = {node: device for node, device in self._devices.items() if node in present}
        strangers = sorted(present - self._devices.keys())
        if strangers and not set(wanted) <= set(self._devices.values()):
            self._ask(grid, strangers)
        nodes: dict[int, int] = {}
        for node, device in self._devices.items():
            nodes.setdefault(device, node)
        return nodes

    def _ask(self, grid: Grid, nodes: list[int]) -> None:
        questions = [messages.question(node, ttl=self.answer_timeout) for node in nodes]
        for reply in grid.send_and_receive(questions, timeout=self.answer_timeout):
            node, device = reply.metadata.src_node_id, messages.answered_device(reply)
            if device is None:
                why = reply.error.reason if reply.has_error() else "is over_the_air_mod among its mods?"
                _LOG.warning("node %d does not say which device it is: %s", node, why)
            elif not 0 <= device < self.num_devices:
                _LOG.warning("node %d says it is device %d; the plan has 0 to %d", node, device, self.num_devices - 1)
            else:
                if device in self._devices.values():
                    _LOG.warning("node %d says it is device %d, which is there already; it is not used", node, device)
                self._devices[node] = device
