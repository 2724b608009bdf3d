"""Few cases in which every pair of options meets: a covering array of strength two.

Most faults of option handling need two options to show, seldom three (Kuhn, Wallace, Gallo: Software Fault
Interactions and Implications for Software Testing, 2004). All combinations would be thousands.
"""

from __future__ import annotations

import itertools
import random
from typing import Any, Callable, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Set, Tuple

Case = Dict[str, Any]
Pair = FrozenSet[Tuple[str, Any]]

_CANDIDATES = 40  # complete cases that are compared before one is taken


def pairs(case: Mapping[str, Any]) -> Set[Pair]:
    """All pairs of options of a case."""
    return {frozenset(pair) for pair in itertools.combinations(case.items(), 2)}


def possible_pairs(factors: Mapping[str, Sequence[Any]], allowed: Callable[[Case], bool]) -> List[Pair]:
    """Every pair of options that occurs in some allowed case, in a fixed order."""
    if next(_completions(factors, {}, allowed), None) is None:
        return []  # found once, not for every pair
    found = []
    for one, other in itertools.combinations(factors, 2):
        for values in itertools.product(factors[one], factors[other]):
            fixed = dict(zip((one, other), values))
            if next(_completions(factors, fixed, allowed), None) is not None:
                found.append(frozenset(fixed.items()))
    return found


def _completions(factors: Mapping[str, Sequence[Any]], fixed: Case, allowed: Callable[[Case], bool]) -> Iterator[Case]:
    free = [name for name in factors if name not in fixed]
    for values in itertools.product(*(factors[name] for name in free)):
        case = {**fixed, **dict(zip(free, values))}
        if allowed(case):
            yield {name: case[name] for name in factors}


def covering(
    factors: Mapping[str, Sequence[Any]], allowed: Callable[[Case], bool] = lambda case: True, seed: int = 0
) -> List[Case]:
    """Cases that hold every pair of options which any allowed case holds. The same ones at every call.

    Args:
        factors: of each option its values.
        allowed: whether a complete case can be run.
        seed: another one gives other cases.
    """
    chance = random.Random(seed)
    left = possible_pairs(factors, allowed)
    cases = []
    while left:
        missing = set(left)
        candidates = [_candidate(factors, dict(left[0]), allowed, missing, chance) for _ in range(_CANDIDATES)]
        best = max((c for c in candidates if c is not None), key=lambda c: len(pairs(c) & missing))
        cases.append(best)
        covered = pairs(best)
        left = [pair for pair in left if pair not in covered]
    return cases


def _candidate(
    factors: Mapping[str, Sequence[Any]],
    fixed: Case,
    allowed: Callable[[Case], bool],
    missing: Set[Pair],
    chance: random.Random,
) -> Optional[Case]:
    """An allowed case around a pair: option by option the value that covers most; where that is not allowed, any."""
    case = dict(fixed)
    free = [name for name in factors if name not in fixed]
    for name in chance.sample(free, len(free)):
        values = chance.sample(list(factors[name]), len(factors[name]))
        case[name] = max(
            values,
            key=lambda v: sum(frozenset({(name, v), item}) in missing for item in case.items()),
        )
    if allowed(case):
        return {name: case[name] for name in factors}
    shuffled = {name: chance.sample(list(values), len(values)) for name, values in factors.items()}
    found = next(_completions(shuffled, fixed, allowed), None)
    return None if found is None else {name: found[name] for name in factors}
