"""EfficientNet-Lite0: the mobile network of inverted residuals, without squeeze-and-excitation and with ReLU6."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

FEATURES = 1280
STEM_CHANNELS = 32
# Repeats, kernel, stride of the first repeat, expansion, output channels: table 1 of https://arxiv.org/abs/1905.11946,
# which Lite0 takes unscaled.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
NORM_EPSILON = 1e-3


class ConvNorm(nn.Module):
    """Convolution, batch norm, and ReLU6 unless `linear`; float32 [batch, channels, height, width].

    Padded as TensorFlow pads ("SAME"), where the weights were trained: with stride 2 on an even size the odd row of
    padding goes to the bottom and the odd column to the right, which the padding of a convolution cannot say.
    Height and width must be even at stride 2.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, groups: int = 1, linear: bool = False
    ) -> None:
        super().__init__()
        before, after = (kernel - stride) // 2, (kernel - stride + 1) // 2
        even = before == after
        self.pad = nn.Identity() if even else nn.ZeroPad2d((before, after, before, after))
        padding = before if even else 0
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=NORM_EPSILON)
        self.activation = nn.Identity() if linear else nn.ReLU6()

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.activation(self.norm(self.conv(self.pad(x))))
        return y


class InvertedResidual(nn.Module):
    """Expand, filter each channel, project; the input is added back where the shape allows it."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = ConvNorm(inputs, inner, 1) if expansion != 1 else nn.Identity()
        self.depthwise = ConvNorm(inner, inner, kernel, stride, groups=inner)
        self.project = ConvNorm(inner, outputs, 1, linear=True)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.residual else y


class EfficientNetLite0(nn.Module):
    """Images to logits: `image` float32 [batch, 3, height, width], pixels as (x - 127) / 128, to [batch, classes].

    Height and width must be multiples of 32.
    """

    def __init__(self, classes: int) -> None:
        super().__init__()
        self.stem = ConvNorm(3, STEM_CHANNELS, 3, 2)
        blocks, inputs = [], STEM_CHANNELS
        for repeats, kernel, stride, expansion, outputs in STAGES:
            for repeat in range(repeats):
                blocks.append(InvertedResidual(inputs, outputs, kernel, stride if repeat == 0 else 1, expansion))
                inputs = outputs
        self.blocks = nn.Sequential(*blocks)
        self.last = ConvNorm(inputs, FEATURES, 1)
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(FEATURES, classes)

    def features(self, image: Tensor) -> Tensor:
        """Return the input of the head, float32 [batch, 1280]."""
        pooled: Tensor = self.pool(self.last(self.blocks(self.stem(image))))
        return pooled.flatten(1)

    def forward(self, image: Tensor) -> Tensor:
        logits: Tensor = self.head(self.features(image))
        return logits


def load_checkpoint(model: EfficientNetLite0, tensors: Mapping[str, Tensor]) -> None:
    """Load all weights of `model` except its head from a checkpoint with the names of efficientnet_lite_pytorch.

    Raises:
        RuntimeError: a weight has another shape.
        KeyError: a weight is missing.
    """
    pairs = {"stem": ("_conv_stem", "_bn0"), "last": ("_conv_head", "_bn1")}
    for index, block in enumerate(model.blocks):
        assert isinstance(block, InvertedResidual)
        ours, theirs = f"blocks.{index}", f"_blocks.{index}"
        if isinstance(block.expand, ConvNorm):
            pairs[f"{ours}.expand"] = (f"{theirs}._expand_conv", f"{theirs}._bn0")
        pairs[f"{ours}.depthwise"] = (f"{theirs}._depthwise_conv", f"{theirs}._bn1")
        pairs[f"{ours}.project"] = (f"{theirs}._project_conv", f"{theirs}._bn2")
    state = {f"head.{name}": tensor for name, tensor in model.head.state_dict().items()}
    for ours, (conv, norm) in pairs.items():
        state[f"{ours}.conv.weight"] = tensors[f"{conv}.weight"]
        for name in ("weight", "bias", "running_mean", "running_var"):
            state[f"{ours}.norm.{name}"] = tensors[f"{norm}.{name}"]
        state[f"{ours}.norm.num_batches_tracked"] = torch.zeros((), dtype=torch.int64)
    model.load_state_dict(state)
