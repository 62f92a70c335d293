"""Feature maps that are read after the uses that a plan counts with: from the next iteration on no plan loses them."""

from __future__ import annotations

from collections.abc import Iterable

from chainer_ooc.execute.graphs.graph import Graph
from chainer_ooc.execute.graphs.graphs import Graphs
from chainer_ooc.execute.storage.storage import Storage


class ReadAgain:
    """Maps that late backward passes have read.

    Late is a pass over an earlier iteration's graph, or over its own after another one: parameters may have changed.
    Its own graph learns of a loss alone: where they have not, what is read again comes back all the same.
    """

    def __init__(self, graphs: Graphs) -> None:
        self._graphs = graphs
        self._found: dict[int, tuple[Graph, list[int]]] = {}
        self._may_be_estimates = False  # the graphs of some: no recording has their maps

    @property
    def has_lost(self) -> bool:
        """Whether such a pass has not come to its end before, as where something was lost."""
        return self._graphs.has_lost

    def note(self, others: Iterable[Storage], own: Graph | None, reads_own: bool) -> None:
        """Notes what a step reads of earlier iterations', and whether also of its own graph after another pass."""
        if reads_own:
            self._may_be_estimates = True
            self._maps_of(own)
        for each in others:
            graph = None if each.token is None else each.token.graph
            self._may_be_estimates |= graph is None
            self._maps_of(graph).append(each.map)

    def _maps_of(self, graph: Graph | None) -> list[int]:
        return [] if graph is None else self._found.setdefault(id(graph), (graph, []))[1]

    def learn(self, has_ended: bool) -> None:
        """Has the graphs know; once for all steps of a pass, as each has its rows made anew.

        A pass that has not ended would have read on, as does one whose error is that something was lost.
        """
        self._graphs.has_lost |= self._may_be_estimates and not has_ended
        for graph, maps in self._found.values():
            graph.learn(reused=maps) if has_ended else graph.lose_none(retained_alone=True)
        self._may_be_estimates = False
        self._found.clear()


def share_reuse(graph: Graph, others: Iterable[Graph]) -> None:
    """What a graph has in common with others, and is read again there, its plans lose no more.

    Which of them an iteration is, is known when it ends.
    """
    for each in others if not graph.is_estimate else ():
        reused = each.trace.reused
        if graph.reused_by_others.get(each.number) != len(reused):
            common = each.trace.calls[:graph.common_calls(each)]
            graph.learn(reused=reused.intersection(
                map_id for call in common for map_id in (*call.inputs, *call.outputs, *call.hidden)))
            graph.reused_by_others[each.number] = len(reused)


def note_that_it_makes_graphs(graph: Graph | None) -> None:
    """A graph's backward pass makes another: a later backward pass may read each of its maps once more."""
    if graph is not None and not graph.makes_graphs:
        graph.makes_graphs = True
        graph.lose_none()
