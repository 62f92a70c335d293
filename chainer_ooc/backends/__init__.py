"""The devices: the only place that knows which device it is; `base` is the contract that each folder fills in."""
