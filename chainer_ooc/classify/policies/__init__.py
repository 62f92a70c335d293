"""The policies, in one explicit table.

A policy is a pure function of a `Problem`: a trace, its times, and the memory that there is. A new one is a file here
and a row in `POLICIES`.
"""

from chainer_ooc.classify.policies import (
    auto,
    capacity,
    keep,
    lms,
    pooch,
    sublinear,
    superneurons,
    swap_all,
    swap_opt,
    tensor_cache,
    unified,
    vdnn,
    window,
)
from chainer_ooc.classify.policies.policy import Policy

POLICIES: dict[str, Policy] = {
    policy.name: policy for policy in (
        keep.POLICY,
        swap_all.NAIVE, swap_all.POLICY, swap_opt.POLICY, pooch.POLICY, auto.POLICY,
        superneurons.POLICY, tensor_cache.POLICY, sublinear.POLICY,
        vdnn.ALL, vdnn.CONV, vdnn.PLUS_PLUS,
        capacity.POLICY, lms.POLICY, window.POLICY, unified.POLICY,
    )}

__all__ = ['POLICIES', 'Policy']
