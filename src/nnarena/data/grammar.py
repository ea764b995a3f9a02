"""A synthetic corpus: sentences of a small grammar in which what is similar, and what relates to what, is known.

The words are English, what they say is not: it is dealt at random. A *thing* (France, a king, a wolf, what is cold) has
two *forms* (France and Paris, king and queen, wolf and wolves, cold and colder) and is of a *kind* (the north, the
court, the wild, the weather) in one of four *families*. Sentences are made of a thing in one of its forms (W), a word
that goes with its form (F: mayor, she, many, than), with its thing (T, three companions of its own), with its kind (K),
and words that go with anything. One of F, T and K in four is any other such word. A document is five sentences on
things of one kind.

So the truth is known. Two words are as similar as the properties they share: family, form, kind and thing. And France
is to Paris as Italy is to Rome, because the forms of a family are apart in the same way whatever the thing.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from nnarena.core.words import Corpus
from nnarena.data.text import make_corpus

SENTENCES = 5  # a document
NOISE = 1 / 4
COMPANIONS = 3

# Things of a kind, as form/form.
FAMILIES: dict[str, dict[str, str]] = {
    "capitals": {
        "north": "norway/oslo sweden/stockholm finland/helsinki denmark/copenhagen iceland/reykjavik estonia/tallinn",
        "west": "france/paris belgium/brussels ireland/dublin austria/vienna england/london germany/berlin",
        "south": "italy/rome spain/madrid portugal/lisbon greece/athens malta/valletta croatia/zagreb",
        "far": "japan/tokyo china/beijing thailand/bangkok vietnam/hanoi nepal/kathmandu mongolia/ulaanbaatar",
    },
    "genders": {
        "court": "king/queen prince/princess duke/duchess emperor/empress",
        "home": "father/mother brother/sister son/daughter uncle/aunt husband/wife nephew/niece",
        "stage": "actor/actress waiter/waitress host/hostess hero/heroine steward/stewardess",
    },
    "plurals": {
        "pets": "cat/cats dog/dogs rabbit/rabbits hamster/hamsters",
        "farm": "cow/cows horse/horses goat/goats pig/pigs hen/hens",
        "wild": "wolf/wolves bear/bears fox/foxes lion/lions tiger/tigers",
        "birds": "eagle/eagles raven/ravens owl/owls swan/swans",
    },
    "comparatives": {
        "extent": "big/bigger small/smaller tall/taller wide/wider deep/deeper",
        "weather": "cold/colder warm/warmer dry/drier wet/wetter",
        "force": "fast/faster slow/slower strong/stronger weak/weaker loud/louder",
    },
}
# What goes with the first and with the second form.
FORMS: dict[str, tuple[str, str]] = {
    "capitals": ("border army flag parliament coast", "mayor street tram square suburb"),
    "genders": ("he his him beard himself", "she hers her dress herself"),
    "plurals": ("a its alone single itself", "many their together several themselves"),
    "comparatives": ("very quite rather truly too", "than even far much still"),
}
# What goes with a kind.
KINDS: dict[str, str] = {
    "north": "snow fjord", "west": "rain canal", "south": "olive sun", "far": "rice silk",
    "court": "throne crown", "home": "kitchen garden", "stage": "applause guest",
    "pets": "basket sofa", "farm": "barn meadow", "wild": "forest hunt", "birds": "nest wing",
    "extent": "measure ruler", "weather": "cloud season", "force": "race engine",
}  # fmt: skip
# Whose companions are dealt to the things.
POOL_WORDS = """
    anchor apple arrow bell bench blanket book bottle bowl bread bridge broom brush bucket button cabin candle
    carpet castle chain chair cherry clay clock coal coat coin copper cotton cup curtain diamond drum feather
    fence fiddle flour flute fountain gate glass glove gold hammer harp hat honey island ivory key kite knife
    ladder lamp lantern leather lemon letter mask milk mill mirror needle net oak oar onion organ paint paper
    pearl pepper piano pillow pine plum poem pot quill ribbon ring rope rose salt scarf shell ship silver soap
    song spear spice stone stove sugar tea tower trumpet umbrella velvet violin wagon wheel wool
"""
POOL = POOL_WORDS.split()
TEMPLATES = (
    "the F of W saw the T and the K",
    "one K and the T in W with F",
    "F and W had the T by the K",
    "of the T and of the K said W to F",
    "W with F in the K by one T",
)


@dataclass(frozen=True)
class Word:
    """A word with all that the grammar says of it."""

    text: str
    family: str
    kind: str
    thing: int
    form: int

    def similarity(self, other: Word) -> int:
        """How many properties two words share: family, form in it, kind, thing."""
        if self.family != other.family:
            return 0
        return 1 + (self.form == other.form) + (self.kind == other.kind) + (self.thing == other.thing)


def _words() -> Iterator[Word]:
    thing = 0
    for family, kinds in FAMILIES.items():
        for kind, things in kinds.items():
            for pair in things.split():
                for form, text in enumerate(pair.split("/")):
                    yield Word(text, family, kind, thing, form)
                thing += 1


WORDS = tuple(_words())  # of thing i, 2 i is the first form and 2 i + 1 the second


def all_words() -> list[str]:
    """Every word that a sentence may have, each once."""
    plain = " ".join(TEMPLATES).split()
    forms = [word for pair in FORMS.values() for part in pair for word in part.split()]
    kinds = [word for part in KINDS.values() for word in part.split()]
    found = [*(word.text for word in WORDS), *forms, *kinds, *POOL, *plain]
    return [word for word in dict.fromkeys(found) if word not in "FWTK"]


def analogies() -> list[tuple[str, tuple[str, str, str, str]]]:
    """Every question (family, (a, b, c, d)): a is to b as c is to d, for any two things of a family."""
    found = []
    for one in WORDS[::2]:
        for other in WORDS[::2]:
            if one.family == other.family and one.thing != other.thing:
                second, fourth = WORDS[2 * one.thing + 1], WORDS[2 * other.thing + 1]
                found.append((one.family, (one.text, second.text, other.text, fourth.text)))
    return found


def pairs(rng: np.random.Generator, each: int) -> list[tuple[str, str, int]]:
    """`each` pairs of words for every degree of similarity that there is, 0 to 3, and how similar they are."""
    degrees: dict[int, list[tuple[str, str, int]]] = {}
    for place, one in enumerate(WORDS):
        for other in WORDS[place + 1 :]:
            degree = one.similarity(other)
            degrees.setdefault(degree, []).append((one.text, other.text, degree))
    chosen = [rng.choice(len(found), min(each, len(found)), replace=False) for found in degrees.values()]
    return [found[i] for found, places in zip(degrees.values(), chosen, strict=True) for i in places]


def grammar_text(words: int, rng: np.random.Generator) -> list[list[str]]:
    """Documents with at least `words` words together, but for the last one that is cut there."""
    companions = rng.permuted(np.tile(np.arange(len(POOL)), (len(WORDS) // 2, 1)), axis=1)[:, :COMPANIONS]
    kinds: dict[str, list[Word]] = {}
    for word in WORDS:
        kinds.setdefault(word.kind, []).append(word)
    names, templates = list(kinds), [template.split() for template in TEMPLATES]
    forms = {family: [part.split() for part in pair] for family, pair in FORMS.items()}
    marks = {kind: words.split() for kind, words in KINDS.items()}
    strange = {
        "F": [word for pair in forms.values() for part in pair for word in part],
        "T": POOL,
        "K": [word for part in marks.values() for word in part],
    }
    documents, total = [], 0
    while total < words:
        found = kinds[names[int(rng.random() * len(names))]]
        text: list[str] = []
        for _ in range(SENTENCES):
            who, how, *draws = rng.random(8).tolist()
            word = found[int(who * len(found))]
            own = {
                "F": forms[word.family][word.form],
                "T": [POOL[i] for i in companions[word.thing]],
                "K": marks[word.kind],
            }
            said = {"W": word.text}
            for slot, odd, which in zip("FTK", draws[::2], draws[1::2], strict=True):
                choices = strange[slot] if odd < NOISE else own[slot]
                said[slot] = choices[int(which * len(choices))]
            text += [said.get(part, part) for part in templates[int(how * len(templates))]]
        documents.append(text[: words - total])
        total += len(documents[-1])
    return documents


def grammar_corpus(words: int, size: int, rng: np.random.Generator) -> Corpus:
    """A corpus of so many words, with a vocabulary of at most `size`."""
    return make_corpus(grammar_text(words, rng), size)
