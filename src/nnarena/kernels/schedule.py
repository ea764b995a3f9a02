"""In which order a kernel computes its tiles, and when it reads what they are made of."""

from __future__ import annotations

from collections.abc import Container

from nnarena.kernels.tiles import Ref, Tile, padded


def together(tiles: list[Tile]) -> list[Tile]:
    """The same tiles, with products that share a factor one after the other: read once, it need not be kept.

    Of a product, those with the same weights come next, then those with the same numbers of the samples.
    """
    sharing: dict[tuple[int, Tile], list[Tile]] = {}
    for tile in tiles:
        if tile.op == "dot":
            for side in (0, 1):
                sharing.setdefault((side, tile.args[side].tile), []).append(tile)
    order: dict[Tile, None] = {}

    def put(tile: Tile) -> None:
        for needed in _unplaced(tile, order):
            order.setdefault(needed)
        if tile.op == "dot":
            for side in (1, 0):
                for other in sharing[side, tile.args[side].tile]:
                    if other not in order and is_ready(other):
                        put(other)

    def is_ready(product: Tile) -> bool:
        """Whether it waits for no other product."""
        return all(needed is product or needed.op != "dot" for needed in _unplaced(product, order))

    for tile in tiles:
        if tile not in order:
            put(tile)
    return list(order)


def _unplaced(tile: Tile, placed: Container[Tile]) -> list[Tile]:
    """A tile and all it depends on that has no place yet, what comes first in front."""
    found: dict[Tile, None] = {}
    todo = [(tile, False)]
    while todo:
        one, ready = todo.pop()
        if one in placed or one in found:
            continue
        if ready:
            found.setdefault(one)
            continue
        todo.append((one, True))
        todo += [(arg.tile, False) for arg in reversed(one.args) if isinstance(arg, Ref)]
    return list(found)


def ahead(tiles: list[Tile], room: int) -> tuple[list[Tile], dict[Tile, list[Tile]]]:
    """Memory is slow: what is needed early in a step is loaded during the step before, while there is room for so many
    numbers; the rest at the start of the step, or two products ahead.

    Returns the loads of the first kind, and the others by the tile before whose turn they are issued.
    """
    first: dict[Tile, int] = {}
    for place, tile in enumerate(tiles):
        for arg in tile.args:
            if isinstance(arg, Ref):
                first.setdefault(arg.tile, place)
    products = [place for place, tile in enumerate(tiles) if tile.op == "dot" and not tile.steady]
    start = next((tile for tile in tiles if not tile.steady and tile.op != "load"), None)
    early: list[Tile] = []
    placed: dict[Tile, list[Tile]] = {}
    for tile in sorted(
        (tile for tile in tiles if tile.op == "load" and not tile.steady), key=lambda t: first.get(t, 0)
    ):
        before = [place for place in products if place < first.get(tile, 0)]
        if len(before) >= 3:
            placed.setdefault(tiles[before[-2]], []).append(tile)
        elif (room := room - padded(tile.axes)) >= 0 or start is None:
            early.append(tile)
        else:
            placed.setdefault(start, []).append(tile)
    return early, placed
