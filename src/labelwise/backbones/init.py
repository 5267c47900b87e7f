"""He initialisation: convolution weights N(0, 2 / fan out), batch norm one and zero."""

from torch import nn

__all__ = ["he_init"]


def he_init(network: nn.Module) -> None:
    """Initialise the convolutions and batch norms of a ReLU network in place."""
    for module in network.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            if module.bias is not None:
                nn.init.zeros_(module.bias)
        elif isinstance(module, nn.BatchNorm2d):
            nn.init.ones_(module.weight)
            nn.init.zeros_(module.bias)
