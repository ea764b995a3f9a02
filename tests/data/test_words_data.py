"""Text to numbers, the synthetic grammar, and readers of what others published."""

from __future__ import annotations

import zipfile
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from nnarena import data
from nnarena.core.errors import ArenaError, DataError
from nnarena.data import questions_words, text8, wordsim353
from nnarena.data.grammar import (
    FAMILIES,
    FORMS,
    KINDS,
    POOL,
    WORDS,
    all_words,
    analogies,
    grammar_corpus,
    grammar_text,
    pairs,
)
from nnarena.data.text import make_corpus, tokenise

QUESTIONS = """: capital-common-countries
Athens Greece Baghdad Iraq
Athens Greece Bangkok Thailand
: family
boy girl brother sister
"""
CSV = """Word 1,Word 2,Human (mean)
love,sex,6.77
tiger,cat,7.35
Maradona,football,8.62
"""
TAB = "# The WordSimilarity-353 Test Collection\n# " + CSV.replace(",", "\t")


def test_a_text_becomes_words():
    assert tokenise("It's BIG, isn't it? «Größe» 42_x 'quoted'") == [
        *("it's", "big", "isn't", "it", "größe", "42", "x", "quoted")
    ]
    assert tokenise(" … !") == []


def test_documents_become_a_corpus():
    corpus = make_corpus([["a", "b"], [], ["a", "c"]], 3)
    assert corpus.vocabulary.words[1:] == ("a", "b") and corpus.tokens.tolist() == [1, 2, 1, 0]
    assert corpus.documents.tolist() == [0, 0, 2, 2]
    with pytest.raises(ArenaError, match="The corpus is empty"):
        make_corpus([[], []], 3)


def test_the_grammar_is_whole():
    assert set(FORMS) == set(FAMILIES) and set(KINDS) == {kind for kinds in FAMILIES.values() for kind in kinds}
    listed = [word.text for word in WORDS]
    forms = [word for pair in FORMS.values() for part in pair for word in part.split()]
    marks = [word for part in KINDS.values() for word in part.split()]
    apart = [*listed, *forms, *marks, *POOL]
    assert [word for word, count in Counter(apart).items() if count > 1] == []  # a word has one meaning
    assert all(WORDS[2 * word.thing + word.form] is word for word in WORDS)


def test_the_seed_decides_the_text_and_its_length_is_as_asked():
    one, same, other = (grammar_text(3000, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert one == same and one != other
    assert sum(map(len, one)) == 3000 and {word for text in one for word in text} <= set(all_words())
    corpus = grammar_corpus(50_000, 10_000, np.random.default_rng(0))
    assert len(corpus) == 50_000 and len(corpus.vocabulary) == len(all_words()) + 1  # none is missing


def test_words_stand_with_what_goes_with_their_form_and_kind():
    documents = grammar_text(60_000, np.random.default_rng(0))

    def often(one: str, other: str, reach: int) -> int:
        return sum(
            other in text[max(0, place - reach) : place + reach + 1]
            for text in documents
            for place, word in enumerate(text)
            if word == one
        )

    she = FORMS["genders"][1].split()
    assert sum(often("queen", word, 5) for word in she) > 3 * sum(often("king", word, 5) for word in she)
    assert often("norway", "snow", 50) > 3 * often("norway", "silk", 50)


def test_similarity_is_what_words_share():
    by_name = {word.text: word for word in WORDS}
    wanted = {("paris", "france"): 3, ("paris", "london"): 3, ("paris", "rome"): 2, ("paris", "england"): 2}
    wanted |= {("paris", "italy"): 1, ("paris", "king"): 0, ("cat", "queen"): 0, ("wolf", "wolves"): 3}
    for (one, other), degree in wanted.items():
        assert by_name[one].similarity(by_name[other]) == by_name[other].similarity(by_name[one]) == degree
    found = pairs(np.random.default_rng(0), 20)
    assert Counter(degree for *_, degree in found) == {0: 20, 1: 20, 2: 20, 3: 20}
    assert all(by_name[one].similarity(by_name[other]) == degree for one, other, degree in found)


def test_analogies_are_all_there():
    found = analogies()
    assert ("capitals", ("france", "paris", "italy", "rome")) in found
    assert ("genders", ("king", "queen", "son", "daughter")) in found
    sizes = [sum(len(things.split()) for things in kinds.values()) for kinds in FAMILIES.values()]
    assert len(found) == len(set(found)) == sum(size * (size - 1) for size in sizes)


def zip_of(path: Path, name: str, text: str) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(name, text)
    return path


@pytest.mark.parametrize("part", [1, 3, 7, 1000])
@pytest.mark.parametrize("words", [0, 1, 5, 8, 99])
def test_parts_of_text8_are_its_words_wherever_they_are_cut(part, words):
    said = " anarchism originated as a term of abuse "
    found = list(text8.first_words(np.frombuffer(said.encode(), np.uint8), words, part))
    assert [word for some in found for word in some] == said.split()[:words]
    assert part < 1000 or len(found) <= 1


def test_text8_is_read_plain_or_zipped_and_cut_into_documents(tmp_path, monkeypatch):
    text = " anarchism originated as a term of abuse first used against early working class radicals"
    (tmp_path / "text8").write_text(text)
    for path in (tmp_path / "text8", zip_of(tmp_path / "text8.zip", "text8", text)):
        arrays = text8.read([path])
        text8.check(arrays)
        assert arrays["text"].tobytes().decode() == text
    monkeypatch.setattr(text8, "DOCUMENT", 5)
    corpus = text8.text8_corpus(arrays["text"], 12, 100)
    assert len(corpus) == 12 and corpus.documents.tolist() == [0] * 5 + [1] * 5 + [2] * 2
    assert [corpus.vocabulary.words[token] for token in corpus.tokens][:3] == ["anarchism", "originated", "as"]
    assert len(text8.text8_corpus(arrays["text"], 10_000, 100)) == 14


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [("other", b"x", "no file 'text8'"), ("text8", b"Big", "holds 'B'"), ("text8", b"", "it is empty")],
)
def test_what_is_not_text8_is_told(tmp_path, name, content, text):
    path = zip_of(tmp_path / "text8.zip", name, content.decode())
    with pytest.raises(DataError, match=text):
        text8.check(text8.read([path]))


def test_questions_are_read(tmp_path):
    path = tmp_path / "questions-words.txt"
    path.write_text(QUESTIONS)
    arrays = questions_words.read([path])
    questions_words.check(arrays)
    assert arrays["words"].tolist()[0] == ["athens", "greece", "baghdad", "iraq"] and len(arrays["words"]) == 3
    assert arrays["kind"].tolist() == [0, 0, 1] and arrays["kinds"].tolist() == ["capital-common-countries", "family"]
    assert (
        questions_words.SET.missing_rows(arrays)
        == "words has 3 rows instead of 19544 and kinds has 2 rows instead of 14"
    )


@pytest.mark.parametrize("text", ["a b c d\n", ": kind\na b c\n"])
def test_questions_without_kind_or_word_are_refused(tmp_path, text):
    path = tmp_path / "q.txt"
    path.write_text(text)
    with pytest.raises(DataError, match=r"line [12] should have four words"):
        questions_words.read([path])


def test_judgements_are_read_in_every_form(tmp_path):
    (tmp_path / "wordsim353.tsv").write_text(TAB)
    (tmp_path / "combined.csv").write_text(CSV)
    zipped = zip_of(tmp_path / "wordsim353.zip", "combined.csv", CSV)
    for path in (tmp_path / "wordsim353.tsv", tmp_path / "combined.csv", zipped):
        arrays = wordsim353.read([path])
        wordsim353.check(arrays)
        assert arrays["words"].tolist() == [["love", "sex"], ["tiger", "cat"], ["maradona", "football"]]
        np.testing.assert_allclose(arrays["similarity"], [6.77, 7.35, 8.62], rtol=1e-6)
    (tmp_path / "bad.csv").write_text("love,sex\n")
    with pytest.raises(DataError, match="line 1 should have two words and a number"):
        wordsim353.read([tmp_path / "bad.csv"])


def test_imported_sets_come_back(tmp_path, monkeypatch):
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path / "data"))
    (tmp_path / "q.txt").write_text(QUESTIONS)
    _, difference = data.import_files("questions_words", [tmp_path / "q.txt"])
    assert "3 rows instead of 19544" in difference
    assert data.load("questions_words")["words"][2].tolist() == ["boy", "girl", "brother", "sister"]
