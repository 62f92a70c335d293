"""Stretches of the soak: what is trained for a while, under which settings, and what goes wrong meanwhile.

A stretch is drawn of a seed and its number alone, so that each can be run by itself. It is trained in plain Chainer
first; every iteration out-of-core is then compared with that, also those that were repeated after a trouble.

    training   one training with troubles, some of its passes perhaps in another thread
    crowd      two or three trainings at once, each in a thread
    program    one of tests/support/trainings/training_programs.py
"""
from __future__ import annotations

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

from soak_trainings import NETWORKS, OPTIMIZERS, USES, Digests, Task, Training, call, digest
from soak_troubles import (
    TROUBLES,
    BadDisk,
    FileSizeLimit,
    Fork,
    HookError,
    Interrupt,
    Reset,
    SmallDisk,
    Trouble,
    finish_in_child,
)

# isort: split
import chainer
import numpy as np

import chainer_ooc
from chainer_ooc.errors import InfeasibleBudgetError, LostMapError
from support.trainings import training_programs

MARGIN = 1.02  # above a floor that a refusal names
MOST_REFUSALS = 12
MOST_REPEATS = 3  # of an iteration that loses a map
AMPLE = '1GB'
KINDS: Mapping[str, float] = {'training': 8, 'crowd': 1, 'program': 1}
PARTS = {*NETWORKS, *TROUBLES, 'crossing', 'crowd', 'program'}  # what can be left out


@dataclass(frozen=True)
class Setting:
    """Entries of chainer.config.

    Attributes:
        policy: `ooc`.
        share: what `ooc_budget` is of the peak of the first iteration; None is the default budget.
        min_bytes: `ooc_min_bytes`.
        on_small_disk: whether the spill file is in the file system that gets full.
    """

    policy: str
    share: float | None
    min_bytes: int
    on_small_disk: bool


@dataclass(frozen=True)
class Stretch:
    """What is trained for a while.

    Attributes:
        number: of the stretch; with the seed it says all the rest.
        kind: 'training', 'crowd' or 'program'.
        tasks: what is trained; of a crowd one for each thread.
        settings: of each task.
        program: the name of the program.
        troubles: iteration -> (name, a number between 0 and 1).
        resets: whether everything is reset at the end.
    """

    number: int
    kind: str
    tasks: tuple[Task, ...] = ()
    settings: tuple[Setting, ...] = ()
    program: str = ''
    troubles: Mapping[int, tuple[str, float]] = field(default_factory=dict)
    resets: bool = False


# --- drawing ---------------------------------------------------------------------------------------------------------


def draw_stretch(seed: int, number: int, policies: Sequence[str], without: Collection[str] = ()) -> Stretch:
    """Draws a stretch; the same of the same arguments.

    Args:
        seed: of the soak.
        number: of the stretch.
        policies: to choose from.
        without: some of `PARTS`.
    """
    choose = random.Random(f'{seed} {number}')
    networks = [name for name in NETWORKS if name not in without]
    kinds = [name for name in KINDS if name not in without]
    kind = choose.choices(kinds, [KINDS[name] for name in kinds])[0]
    resets = choose.random() < 0.1
    if kind == 'program':
        return Stretch(number, kind, (), (_draw_setting(choose, policies),),
                       choose.choice(sorted(training_programs.PROGRAMS)), resets=resets)
    if kind == 'crowd':
        quiet = [name for name in networks if not NETWORKS[name].draws]
        if quiet:
            count = choose.randint(2, 3)
            return Stretch(number, kind, tuple(_draw_task(choose, quiet) for _ in range(count)),
                           tuple(_draw_setting(choose, policies) for _ in range(count)), resets=resets)
    setting = _draw_setting(choose, policies)
    iterations = range(choose.randint(3, 12))
    crossings, passes = ([each for each in iterations if choose.random() < share] if choose.random() < 0.2 else []
                         for share in (0.3, 0.7))
    if 'crossing' in without:
        crossings = passes = []
    task = _draw_task(choose, networks, crossings, passes, len(iterations))
    names = [name for name in TROUBLES if name not in without]
    troubles = {each: (choose.choices(names, [TROUBLES[name] for name in names])[0], choose.random())
                for each in iterations if names and choose.random() < 0.3}
    return Stretch(number, 'training', (task,), (setting,), '', troubles, resets)


def _draw_task(choose: random.Random, networks: Sequence[str], crossings: Sequence[int] = (),
               passes: Sequence[int] = (), iterations: int = 6) -> Task:
    name = choose.choice(list(networks))
    sizes = [tuple(sorted(NETWORKS[name].draw(choose).items())) for _ in range(choose.choice([1, 1, 2, 3]))]
    if name == 'penalised' or crossings:  # the one cannot be accumulated, the others should cross alone
        uses = frozenset()
    else:
        uses = frozenset(each for each in USES if choose.random() < 0.2)
    return Task(name, choose.randrange(10), tuple(sizes), iterations, choose.choice(sorted(OPTIMIZERS)), uses,
                frozenset(crossings), frozenset(passes))


def _draw_setting(choose: random.Random, policies: Sequence[str]) -> Setting:
    share = choose.choice([None, None, 0.0, choose.uniform(0.2, 1.0), choose.uniform(0.2, 1.0), 1.5])
    return Setting(choose.choice(list(policies)), share, choose.choice([0, 0, 2000, 100_000]), choose.random() < 0.25)


# --- running ---------------------------------------------------------------------------------------------------------


class DifferenceError(Exception):
    """Bits differ from plain Chainer's.

    Attributes:
        what: what was trained.
    """

    def __init__(self, what: str, details: str) -> None:
        self.what = what
        super().__init__(f'WRONG BITS: {what}: {details}')


class Runner:
    """Runs stretches.

    Args:
        small_disk: The folder of the file system that troubles fill, or None.
        spill_dir: Where other spill files lie, or None.

    Attributes:
        counts: What has happened how often.
    """

    def __init__(self, small_disk: str | None, spill_dir: str | None = None) -> None:
        self.counts: Counter[str] = Counter()
        self._small_disk, self._spill_dir = small_disk, spill_dir

    def run(self, stretch: Stretch) -> None:
        """Runs one stretch.

        Raises:
            DifferenceError: Bits differ from plain Chainer's.
            Exception: Whatever a training raised that no trouble explains.
        """
        self.counts[stretch.kind] += 1
        {'training': self._training, 'crowd': self._crowd, 'program': self._program}[stretch.kind](stretch)
        if stretch.resets:
            self.counts['reset after a stretch'] += 1
            chainer_ooc.reset()

    # --- kinds ---

    def _training(self, stretch: Stretch) -> None:
        task, = stretch.tasks
        expected, seconds = plain(task)
        with contextlib.ExitStack() as stack:
            elsewhere = self.elsewhere(stack, stretch.settings[0]) if task.has_two_threads else call
            OocTraining(self, task, stretch.settings[0], expected).run(stretch.troubles, seconds, elsewhere)

    def elsewhere(self, stack: contextlib.ExitStack, setting: Setting) -> Callable[[Callable[[], Any], str], Any]:
        """Gives what runs a pass in another thread, which ends with the stack; a backward pass without own settings.

        What is interrupted here goes on there. It is over when the interrupt is seen, wherever that came: the only
        worker is there before, since a pool whose start of one is interrupted starts a second.
        """
        pool = stack.enter_context(ThreadPoolExecutor(1))
        pool.submit(int).result()

        def there(function: Callable[[], Any]) -> Any:
            with self.entries(setting, chainer.config.ooc_budget):
                return function()

        def run(function: Callable[[], Any], way: str) -> Any:
            self.counts[f'{way} in another thread'] += 1
            try:
                return (pool.submit(there, function) if way == 'forward' else pool.submit(function)).result()
            finally:  # the next task waits for it
                pool.submit(int).result()
        return run

    def _crowd(self, stretch: Stretch) -> None:
        expected = [plain(task)[0] for task in stretch.tasks]
        trainings = [OocTraining(self, *each) for each in zip(stretch.tasks, stretch.settings, expected, strict=True)]
        errors: list[BaseException] = []

        def run(training: OocTraining) -> None:
            try:
                training.run({}, [], call)
            except BaseException as error:
                errors.append(error)

        threads = [threading.Thread(target=run, args=(each,)) for each in trainings]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        if errors:
            raise errors[0]

    def _program(self, stretch: Stretch) -> None:
        results = []
        for setting in (None, stretch.settings[0]):
            np.random.seed(0)
            with self.entries(setting, None):
                results.append(_digests(training_programs.PROGRAMS[stretch.program]()))
        compare(f'program {stretch.program}', *results)

    # --- what kinds share ---

    @contextlib.contextmanager
    def entries(self, setting: Setting | None, budget: Any) -> Iterator[None]:
        """Sets chainer.config for a while; plain Chainer of no setting."""
        entries: dict[str, Any] = {'ooc': None}
        if setting is not None:
            small = setting.on_small_disk and self._small_disk is not None
            entries = {'ooc_min_bytes': setting.min_bytes, 'ooc_budget': budget,
                       'ooc_spill_dir': self._small_disk if small else self._spill_dir, 'ooc': setting.policy}
        with contextlib.ExitStack() as stack:
            for name, value in entries.items():
                stack.enter_context(chainer.using_config(name, value))
            yield

    def make_trouble(self, name: str, number: float, seconds: float, on_small_disk: bool) -> Trouble:
        """A trouble by its name, as large or as late as a number between 0 and 1 says."""
        if name == 'small disk' and (self._small_disk is None or not on_small_disk):
            name = 'file size'
        makers: Mapping[str, Callable[[], Trouble]] = {
            'interrupt': lambda: Interrupt(6 * seconds * number ** 2),
            'hook': lambda: HookError(int(60 * number), round(100 * number) % 2 == 1),
            'file size': lambda: FileSizeLimit(int(4e6 * number ** 3)),
            'small disk': lambda: SmallDisk(str(self._small_disk), int(4e6 * number ** 3)),
            'reset': Reset,
            'fork and train': lambda: Fork(train_in_child),
            'fork and finish': lambda: Fork(finish_in_child),
            'fork and leave': lambda: Fork(lambda loss: ''),
        }
        trouble = makers[name]() if name in makers else BadDisk(int(1e6 * number), number, name)
        self.counts[f'{name}, tried'] += 1
        return trouble


class OocTraining:
    """One training out-of-core, compared with plain Chainer's iteration by iteration.

    Args:
        runner: Counts what happens.
        task: What is trained.
        setting: How.
        expected: The digests of each iteration.
    """

    def __init__(self, runner: Runner, task: Task, setting: Setting, expected: Sequence[Digests]) -> None:
        self._runner, self._task, self._setting, self._expected = runner, task, setting, expected
        self._training = Training(task)
        self._budget: Any = None if setting.share is None else AMPLE

    def run(self, troubles: Mapping[int, tuple[str, float]], seconds: Sequence[float],
            elsewhere: Callable[[Callable[[], Any], str], Any]) -> None:
        """Trains all iterations.

        Raises:
            DifferenceError: Bits differ.
        """
        for number in range(self._task.iterations):
            saved = self._training.save()
            trouble = Trouble()
            if number in troubles:
                name, amount = troubles[number]
                trouble = self._runner.make_trouble(name, amount, seconds[number], self._setting.on_small_disk)
            found = self._iterate(number, trouble, elsewhere, saved)
            is_here = number not in self._task.crossings | self._task.passes
            crossing = '' if is_here else ', a pass in another thread'
            compare(f'{self._task.network}{crossing}', self._expected[number], found,
                    f' in iteration {number} ({type(trouble).__name__}) under {self._setting}')
            stats = chainer_ooc.stats()
            self._runner.counts['iterations recorded' if stats and stats.phase == 'profile' else 'iterations run'] += 1
            if number == 0 and self._setting.share is not None and stats is not None:
                self._budget = max(1, int(self._setting.share * stats.peak_bytes))

    def _iterate(self, number: int, trouble: Trouble, elsewhere: Callable[[Callable[[], Any], str], Any],
                 saved: tuple[Any, ...]) -> Digests:
        """Runs one iteration, again after each exception that the program may get."""
        refusals = lost = 0
        configuration = dict(vars(chainer.config._local))
        while True:
            try:
                with trouble, self._runner.entries(self._setting, self._budget):
                    return self._training.iterate(number, elsewhere, trouble.between)
            except InfeasibleBudgetError as error:
                if self._budget is None or refusals == MOST_REFUSALS:
                    raise
                self._runner.counts['refused' if not refusals else 'refused at 1.02 of the floor named before'] += 1
                refusals += 1
                self._budget = int(error.floor_bytes * MARGIN)
            except LostMapError:
                if lost == MOST_REPEATS:
                    raise
                self._runner.counts['map lost'] += 1
                lost += 1
            except BaseException as error:
                if not trouble.explains(error):
                    raise
                self._runner.counts[f'{type(trouble).__name__}: {type(error).__name__}'] += 1
                trouble = trouble.aftermath()
            # An interrupt may come while Chainer itself puts an entry back.
            vars(chainer.config._local).clear()
            vars(chainer.config._local).update(configuration)
            self._training.restore(saved)


def plain(task: Task) -> tuple[list[Digests], list[float]]:
    """A training in plain Chainer: the digests and the seconds of each iteration."""
    found, seconds = [], []
    with chainer.using_config('ooc', None):
        training = Training(task)
        for number in range(task.iterations):
            began = time.perf_counter()
            found.append(training.iterate(number))
            seconds.append(time.perf_counter() - began)
    return found, seconds


def compare(what: str, expected: Digests, found: Digests, when: str = '') -> None:
    """Compares digests.

    Args:
        what: what was trained.
        expected: plain Chainer's.
        found: those to compare.
        when: the moment, for the message.

    Raises:
        DifferenceError: Some differ; the message names the first ones.
    """
    if expected == found:
        return
    if [label for label, _ in expected] != [label for label, _ in found]:
        raise DifferenceError(what, f'other results than in plain Chainer{when}')
    differing = [label for (label, wanted), (_, got) in zip(expected, found, strict=True) if wanted != got]
    raise DifferenceError(what, f'{len(differing)} of {len(found)} differ{when}: {", ".join(differing[:6])}')


def train_in_child(loss: chainer.Variable) -> str:
    """Trains a network of the child's own, as guide and errors say that a child may."""
    chainer_ooc.reset()
    del loss
    task = Task('several', 1, ((('size', 8),),), 3, 'momentum', frozenset())
    expected, _ = plain(task)
    with contextlib.ExitStack() as stack:
        for name, value in (('budget', None), ('spill_dir', None), ('min_bytes', 0)):
            stack.enter_context(chainer.using_config(f'ooc_{name}', value))
        stack.enter_context(chainer.using_config('ooc', 'swap-all'))
        training = Training(task)
        for number in range(task.iterations):
            if training.iterate(number) != expected[number]:
                return f'WRONG BITS in iteration {number} of a forked child'
    chainer_ooc.reset()
    return ''


def _digests(nest: Any, label: str = '') -> Digests:
    if isinstance(nest, dict):
        nest = sorted(nest.items())
    if isinstance(nest, (list, tuple)):
        return [each for number, part in enumerate(nest) for each in _digests(part, f'{label}.{number}')]
    return [(label, digest(nest) if isinstance(nest, (np.ndarray, np.generic)) else repr(nest))]
