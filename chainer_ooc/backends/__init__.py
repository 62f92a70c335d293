"""The devices: the only place that knows which device it is. ``base`` is the contract, each folder beside it fills it in."""
