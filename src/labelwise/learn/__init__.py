"""Networks: backbones that see and heads that name."""
