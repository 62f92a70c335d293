"""Which feature maps stay, leave, or are computed again."""
