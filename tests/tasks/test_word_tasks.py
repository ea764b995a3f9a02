"""Tasks on words: questions with a known answer, real sets by their files."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor

from nnarena import data
from nnarena.core.components import catalogue
from nnarena.core.errors import BadOption, DataError, Unfit, UnknownName
from nnarena.core.learner import Means
from nnarena.core.words import Vocabulary
from nnarena.data.grammar import all_words
from nnarena.tasks.analogy import Analogy
from nnarena.tasks.word_similarity import WordSimilarity
from nnarena.tasks.words import WordLearner, Words, neighbours, principal_plane, spread, terms

CPU = torch.device("cpu")
TASKS = [WordSimilarity, Analogy]


def make_learner(task: Words, model: str = "ppmi", seed: int = 1, device: torch.device = CPU) -> WordLearner:
    component = catalogue("model")[model]
    torch.manual_seed(0)
    net = component.load()(task.spec, **component.resolve({})).to(device)
    optimizer = torch.optim.SGD(net.parameters(), 0.025)
    learner = task.learner(net, optimizer, Means(seed, device, 128, lambda params: optimizer))
    assert isinstance(learner, WordLearner)
    return learner


class Table:
    """The cosines of given vectors, as a model answers."""

    def __init__(self, vectors: Tensor) -> None:
        self.unit = torch.nn.functional.normalize(vectors, dim=1)

    def __call__(self, x: Tensor) -> Tensor:
        return torch.nn.functional.normalize(x @ self.unit, dim=1) @ self.unit.T


def test_an_analogy_is_a_parallelogram_that_names_none_of_its_corners():
    task = Analogy(vocabulary=8)
    vectors = torch.zeros(8, 4)
    vectors[1], vectors[2] = torch.tensor([1.0, 0, 0.5, 0]), torch.tensor([1.0, 0, -0.5, 0])
    vectors[3], vectors[4] = torch.tensor([0, 1.0, 0.5, 0]), torch.tensor([0.1, 1.0, -0.5, 0])
    vectors[0] = vectors[2] - vectors[1] + vectors[3]  # the unknown word fits best, and must not answer
    vectors[5], vectors[6], vectors[7] = torch.eye(4)[3], -torch.eye(4)[3], vectors[0]  # 7 is not in the corpus
    questions = torch.tensor([[1, 2, 3, 4], [3, 4, 1, 2], [1, 2, 3, 5]])
    scores = task.judge(Table(vectors), questions, np.zeros(3), 7)
    assert scores == {"error": pytest.approx(1 / 3), "accuracy": pytest.approx(2 / 3)}
    assert task.judge(Table(vectors), questions[:1], np.zeros(1), 8)["accuracy"] == 0  # if it were, it would be nearest


def test_similarity_is_the_order_of_cosines():
    task = WordSimilarity(vocabulary=5)
    vectors = torch.tensor([[1.0, 0], [1, 0], [1, 0.1], [1, 1], [-1, 0]])
    questions, truth = torch.tensor([[1, 2], [1, 3], [1, 4]]), np.array([9.0, 5.0, 1.0])
    assert task.judge(Table(vectors), questions, truth, 5) == {"cost": 0.0, "spearman": 1.0}
    assert task.judge(Table(vectors), questions, truth[::-1].copy(), 5)["spearman"] == -1
    assert list(task.judge(Table(vectors), questions, truth, 5)) == ["cost", "spearman"]


@pytest.mark.parametrize("task", TASKS)
def test_halves_share_no_question_and_rivals_have_the_same(task):
    one, other, apart = (make_learner(task(tokens=6000), model, seed) for model, seed in
                         (("ppmi", 1), ("word2vec", 1), ("ppmi", 2)))  # fmt: skip
    rows = {part: {tuple(row) for row in one.parts[part][0].tolist()} for part in one.parts}
    assert not rows["validation"] & rows["test"] and abs(len(rows["validation"]) - len(rows["test"])) <= 1
    for part in rows:
        np.testing.assert_array_equal(one.parts[part][0], other.parts[part][0])
        assert not np.array_equal(one.corpus.tokens, apart.corpus.tokens)
    np.testing.assert_array_equal(one.corpus.tokens, other.corpus.tokens)


def test_counting_beats_chance_and_what_is_known_is_said():
    for task in TASKS:
        learner = make_learner(task(tokens=30_000))
        training = learner.practise(lambda: None)
        assert training["known"] == 1.0 and learner.finished
        metric = list(learner.examine("test"))[-1]
        chance = learner.baselines()["random vectors"][metric]
        assert abs(chance) < 0.2 and learner.examine("test")[metric] > chance + 0.4
        assert learner.examine("test") == learner.examine("test")


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"tokens": 0}, "the corpus is empty: tokens must be at least 1, not 0"),
        ({"vocabulary": 1}, "at least 2, not 1"),
    ],
)
def test_a_corpus_that_cannot_be_is_refused(options, text):
    for task in TASKS:
        with pytest.raises(BadOption, match=text):
            task(**options)


def test_too_few_words_for_the_questions_get_a_sentence():
    with pytest.raises(DataError, match=r"vocabulary of 10 words has all words of only 0 of .* is not in it\."):
        make_learner(Analogy(vocabulary=10))


def test_a_model_that_cannot_read_is_unfit():
    task = Analogy()
    with pytest.raises(Unfit, match="cannot read a corpus"):
        task.learner(
            torch.nn.Linear(2, 2), torch.optim.SGD([torch.zeros(1)], 1.0), Means(0, CPU, 1, lambda params: None)
        )
    with pytest.raises(Unfit, match="it reads sequences"):
        catalogue("model")["lstm"].load()(task.spec)


def test_the_vocabulary_is_as_large_as_the_grammar_or_as_asked():
    assert Analogy().spec.input_shape == (len(all_words()) + 1,)
    assert Analogy(corpus="text8").spec.input_shape == (10_000,)
    assert WordSimilarity(vocabulary=50).spec.output_size == 50


def test_neighbours_are_the_nearest_and_never_the_word_itself():
    learner = make_learner(Analogy(tokens=30_000))
    learner.practise(lambda: None)
    vocabulary, size = learner.corpus.vocabulary, learner.task.vocabulary
    found = neighbours(learner.model, vocabulary, [("oslo", 1.0)], size)
    assert len(found) == 6 and "oslo" not in dict(found) and "norway" in dict(found)
    assert [cosine for _, cosine in found] == sorted((cosine for _, cosine in found), reverse=True)
    with pytest.raises(UnknownName, match=r"no word in the vocabulary 'norwya'; did you mean 'norway'\?"):
        neighbours(learner.model, vocabulary, [("norwya", 1.0)], size)
    tiny = Vocabulary(vocabulary.words[:2], vocabulary.counts[:2])
    assert neighbours(learner.model, tiny, [(tiny.words[1], 1.0)], size) == []


def test_a_sum_of_words_is_words_with_signs_between_them():
    assert terms(" Oslo -  norway + italy ") == [("oslo", 1.0), ("norway", -1.0), ("italy", 1.0)]
    for wrong in ("", "oslo norway", "- oslo", "oslo +", "oslo + - italy", "a b c"):
        with pytest.raises(BadOption, match="neither a word nor a sum of words"):
            terms(wrong)


def test_the_plane_is_that_of_the_principal_components():
    torch.manual_seed(0)
    unit = torch.nn.functional.normalize(torch.randn(20, 6, dtype=torch.float64), dim=1)
    places, share = principal_plane(unit @ unit.T)
    centred = unit - unit.mean(0)
    U, s, _ = torch.linalg.svd(centred, full_matrices=False)
    wanted = U[:, :2] * s[:2]
    torch.testing.assert_close(places.abs(), wanted.abs(), rtol=1e-6, atol=1e-8)
    assert share == pytest.approx((s[:2] ** 2 / (s**2).sum()).tolist())
    same, none = principal_plane(torch.ones(3, 3))
    assert same.abs().max() < 1e-6 and none == [0.0, 0.0]
    assert spread([1, 2, 3, 4, 5], 3) == [1, 3, 5] and spread([], 3) == [] and spread([1], 3) == [1]


def test_a_plan_knows_what_an_epoch_costs():
    assert 0 < make_learner(Analogy(tokens=6000), "word2vec").seconds() < 60


def test_text8_and_its_questions_are_read_from_files_at_hand(tmp_path, monkeypatch):
    """Small files in the true formats: the grammar's text as if it were Wikipedia's."""
    monkeypatch.setenv("NNARENA_DATA", str(tmp_path / "data"))
    with pytest.raises(DataError, match="nnarena data get text8"):
        Analogy(corpus="text8").check()
    source = make_learner(Analogy(tokens=20_000)).corpus
    (tmp_path / "text8").write_text(" ".join(source.vocabulary.words[token] for token in source.tokens))
    asked = [": capitals", "France Paris Italy Rome", "Norway Oslo Spain Madrid", "Japan Tokyo Greece Athens"]
    asked += [": family", "king queen father mother", "son daughter uncle aunt", "Atlantis none king queen"]
    (tmp_path / "q.txt").write_text("\n".join(asked))
    judged = ["Word 1,Word 2,Human (mean)", "oslo,norway,9", "oslo,paris,5", "oslo,cat,1", "cat,dog,7", "cat,cold,0"]
    (tmp_path / "combined.csv").write_text("\n".join(judged))
    data.import_files("text8", [tmp_path / "text8"])
    with pytest.raises(DataError, match="nnarena data get questions_words"):
        Analogy(corpus="text8").check()
    data.import_files("questions_words", [tmp_path / "q.txt"])
    data.import_files("wordsim353", [tmp_path / "combined.csv"])
    for task, known in ((Analogy, 5 / 6), (WordSimilarity, 1.0)):
        made = task(corpus="text8", tokens=20_000, vocabulary=400)
        made.check()
        learner = make_learner(made)
        assert learner.practise(lambda: None)["known"] == pytest.approx(known) and len(learner.corpus) == 20_000
        assert np.isfinite(list(learner.examine("test").values())).all()
        groups = [one["group"] for one in learner.exhibit()["maps"]]
        assert groups == (["capitals", "family"] if task is Analogy else ["pairs"])


@pytest.mark.gpu
@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize("model", ["one_hot", "cooccurrence", "ppmi", "tf_idf", "lsa", "word2vec", "word2vec_softmax"])
def test_a_gpu_does_the_same(task, model):
    here = make_learner(task(tokens=6000), model)
    there = make_learner(task(tokens=6000), model, device=torch.device("cuda"))
    for learner in (here, there):
        torch.manual_seed(0)
        assert np.isfinite(learner.practise(lambda: None)["loss"])
    if here.finished:
        for part in ("validation", "test"):
            assert there.examine(part) == pytest.approx(here.examine(part), abs=0.02)
    assert np.isfinite(list(there.examine("test").values())).all()
    assert [one["words"] for one in there.exhibit()["maps"]] == [one["words"] for one in here.exhibit()["maps"]]
