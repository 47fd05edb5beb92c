"""A residual network with group normalisation (d = 77,850), the own model of the study of CIFAR-10."""

from __future__ import annotations

from torch import Tensor, nn

GROUPS = 8


def _convolution(inputs: int, outputs: int, *, size: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """Two convolutions, and a shortcut around them."""

    def __init__(self, inputs: int, outputs: int, *, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            *(_convolution(inputs, outputs, stride=stride), nn.GroupNorm(GROUPS, outputs), nn.ReLU()),
            *(_convolution(outputs, outputs), nn.GroupNorm(GROUPS, outputs)),
        )
        same = stride == 1 and inputs == outputs
        self.shortcut = nn.Identity() if same else _convolution(inputs, outputs, size=1, stride=stride)

    def forward(self, images: Tensor) -> Tensor:
        """Return the features."""
        return nn.functional.relu(self.body(images) + self.shortcut(images))


def net() -> nn.Module:
    """Return the network for images of 32×32 pixels: a first layer of stride 2, and three blocks."""
    return nn.Sequential(
        *(_convolution(3, 16, stride=2), nn.GroupNorm(GROUPS, 16), nn.ReLU()),
        *(Block(16, 16, stride=1), Block(16, 32, stride=2), Block(32, 64, stride=2)),
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)),
    )
