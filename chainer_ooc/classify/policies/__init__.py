"""The policies, in one explicit table.

A policy is a pure function of a `Problem`: a trace, its times, and the memory that there is. A new one is a file here
and a row in `POLICIES`; a user's own is found where its name says, see `own_policy`.
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
from chainer_ooc.classify.policies.policy import Policy, own_policy
from chainer_ooc.errors import ConfigError, did_you_mean

POLICIES: dict[str, Policy] = {
    policy.name: policy for policy in (
        keep.POLICY,
        swap_all.NAIVE, swap_all.POLICY, swap_opt.POLICY, pooch.POLICY, auto.POLICY,
        superneurons.POLICY, tensor_cache.POLICY, sublinear.POLICY,
        vdnn.ALL, vdnn.CONV, vdnn.PLUS_PLUS,
        capacity.POLICY, lms.POLICY, window.POLICY, unified.POLICY,
    )}

__all__ = ['POLICIES', 'Policy', 'policy_of']


def policy_of(name: str) -> Policy:
    """The policy of that name, or the user's own that ``module:attribute`` names.

    Raises:
        ConfigError: there is none.
    """
    if ':' in name:
        return own_policy(name)
    if name not in POLICIES:
        raise ConfigError(f'there is no policy {name!r}; {did_you_mean(name, POLICIES)}there are: '
                          f'{", ".join(sorted(POLICIES))}, or module:attribute for one of your own')
    return POLICIES[name]
