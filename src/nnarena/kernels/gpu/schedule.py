"""In which order a kernel computes its tiles, and when it reads what they are made of."""

from __future__ import annotations

from collections.abc import Container

from nnarena.kernels.compiler.tiles import Ref, Tile, padded

LEAD = 4  # tiles between the reading of a constant and its use
CLOSE = 8  # in a block of samples, where tiles take less time
KEPT = 96  # registers that a thread of a block has for weights, on the way forward
CROWDED = 160  # that all weights would take, from which on there is no room even for some
SPARE = 32  # registers that it has for what else is the same at every step


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


def soon(tiles: list[Tile]) -> list[Tile]:
    """The same tiles, with those moved forward that make room: what they are made of is needed by nobody else.

    Terms of a sum are added up as they come, and what is only written is computed while its parts are at hand.
    """
    users: dict[Tile, set[Tile]] = {tile: set() for tile in tiles}
    for tile in tiles:
        for arg in tile.args:
            if isinstance(arg, Ref):
                users[arg.tile].add(tile)
    order: dict[Tile, None] = {}

    def makes_room(tile: Tile) -> bool:
        args = {arg.tile for arg in tile.args if isinstance(arg, Ref)}
        if tile.steady or tile.op == "load" or not args or not all(arg in order or arg.steady for arg in args):
            return False
        freed = sum(padded(arg.axes) for arg in args if not arg.steady and users[arg] <= {*order, tile})
        return freed >= (padded(tile.axes) if users[tile] else 0)

    def put(tile: Tile) -> None:
        order.setdefault(tile)
        todo = [tile]
        while todo:
            placed = todo.pop()
            touched = {
                user for arg in (placed, *(a.tile for a in placed.args if isinstance(a, Ref))) for user in users[arg]
            }
            for other in sorted(touched - order.keys(), key=number.__getitem__):
                if makes_room(other):
                    order.setdefault(other)
                    todo.append(other)

    number = {tile: place for place, tile in enumerate(tiles)}
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


def read_again(tiles: list[Tile]) -> set[Tile]:
    """Constants that a step adds or multiplies by, number for number: there may be more than a thread can hold."""
    found = {tile for tile in tiles if tile.op == "load" and tile.steady}
    for tile in tiles:
        if tile.steady or tile.op in ("dot", "dots"):
            found -= {arg.tile for arg in tile.args if isinstance(arg, Ref)}
    return found


def read_near(tiles: list[Tile], warps: int) -> set[Tile]:
    """Constants of a block of samples that are too many to be held: they are read where they are used, at every step.

    The matrix units spread a row over all warps, two numbers a thread at least.
    """
    found = {tile for tile in read_again(tiles) if len(tile.axes) == 1}
    return found if sum(max(2, padded(tile.axes) // (4 * warps)) for tile in found) > SPARE else set()


def kept_weights(tiles: list[Tile], threads: int, parts: int) -> set[Tile]:
    """Weights that stay in registers: as many as there is room for.

    The others lie in shared memory, and every warp reads its part of them in every step, which takes longer than to
    multiply by them. A number is two or three `parts` of two bytes each. The way back needs its registers for other
    things.
    """
    weights = dict.fromkeys(tile.args[1].tile for tile in tiles if tile.op == "dot" and not tile.steady)
    steady = [tile for tile in weights if tile.op == "load" and tile.steady]
    sizes = {tile: padded(tile.axes) * parts // (2 * threads) for tile in steady}
    room = KEPT if sum(sizes.values()) <= CROWDED else 0
    return {tile for tile, size in sizes.items() if (room := room - size) >= 0}


def ahead(
    tiles: list[Tile], room: int, again: Container[Tile] = (), near: Container[Tile] = (), far: Container[Tile] = ()
) -> tuple[list[Tile], dict[Tile, list[Tile]]]:
    """Memory is slow: what is needed early in a step is loaded during the step before, while there is room for so many
    numbers; the rest at the start of the step, or two products ahead. What is read `again`, or late, is never far, and
    what is `near` comes quickly: it is read just before it is used.

    Returns the loads of the first kind, and the others by the tile before whose turn they are issued.
    """
    first: dict[Tile, int] = {}
    for place, tile in enumerate(tiles):
        for arg in tile.args:
            if isinstance(arg, Ref):
                first.setdefault(arg.tile, place)
    products = [place for place, tile in enumerate(tiles) if tile.op in ("dot", "dots") and not tile.steady]
    start = next((tile for tile in tiles if not tile.steady and tile.op != "load"), None)
    early: list[Tile] = []
    placed: dict[Tile, list[Tile]] = {}
    for tile in sorted(
        (tile for tile in tiles if tile.op == "load" and (not tile.steady or tile in again or tile in near)),
        key=lambda t: first.get(t, 0),
    ):
        before = [place for place in products if place < first.get(tile, 0)]
        if tile in far:
            early.append(tile)
        elif len(before) >= 3 and tile not in near:
            placed.setdefault(tiles[before[-2]], []).append(tile)
        elif tile in near or (tile in again and first.get(tile, 0) >= LEAD):
            begin = max(0, first.get(tile, 0) - (CLOSE if tile in near else LEAD))
            later = (other for other in tiles[begin:] if not other.steady and other.op != "load")
            placed.setdefault(next(later), []).append(tile)
        elif start is None or (tile not in again and (room := room - padded(tile.axes)) >= 0):
            early.append(tile)
        else:
            placed.setdefault(start, []).append(tile)
    return early, placed
