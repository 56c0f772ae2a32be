"""Ridge regression against scikit-learn, least squares and plain loops."""

import numpy as np
import pytest
from sklearn import linear_model

from moeprobe.probes.fewshot.ridge import STRENGTHS, Ridge, choose_strength, targets

CLASSES = 4
# More images than features, and fewer.
SIZES = pytest.mark.parametrize("num_images", [40, 12])


def planted(num_images: int, *, width: int = 20, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Features of classes that overlap, one of them constant."""
    random = np.random.default_rng(seed)
    labels = np.arange(num_images) % CLASSES
    features = random.normal(size=(num_images, width)) * random.uniform(0.1, 30, width) + 5
    features[:, :CLASSES] += 12 * np.eye(CLASSES)[labels]
    features[:, -1] = 3.0
    return features, labels


def inputs(features: np.ndarray, shown: np.ndarray) -> np.ndarray:
    """The released particulars, image by image and feature by feature."""
    found = np.empty((len(features), shown.shape[1] + 1))
    for i, j in np.ndindex(*features.shape):
        mean = sum(shown[:, j]) / len(shown)
        deviation = (sum((value - mean) ** 2 for value in shown[:, j]) / len(shown)) ** 0.5
        found[i, j] = (features[i, j] - mean) / (deviation + 1e-5)
    found[:, -1] = 100
    return found


def test_the_strengths_are_the_released_ones() -> None:
    assert STRENGTHS[0] == 1 / 1024 and STRENGTHS[-1] == 524288 and len(STRENGTHS) == 30
    np.testing.assert_array_equal(np.diff(np.log2(STRENGTHS)), 1)


@SIZES
def test_every_strength_is_the_regression_fitted_by_itself(num_images: int) -> None:
    features, labels = planted(num_images)
    others, _ = planted(9, seed=1)
    ridge = Ridge(features, labels, num_classes=CLASSES)
    shown, asked = inputs(features, features), inputs(others, features)
    wanted = np.where(labels[:, None] == np.arange(CLASSES), 1.0, -1.0)
    for strength, scores in ridge.along(others):
        model = linear_model.Ridge(alpha=strength, fit_intercept=False, solver="cholesky")
        np.testing.assert_allclose(scores, model.fit(shown, wanted).predict(asked), rtol=1e-6, atol=1e-7)
        # The penalty as images of its own: least squares of [X; √λ I] on [Y; 0].
        width = shown.shape[1]
        stacked = np.vstack([shown, strength**0.5 * np.eye(width)])
        weights = np.linalg.lstsq(stacked, np.vstack([wanted, np.zeros((width, CLASSES))]), rcond=None)[0]
        np.testing.assert_allclose(scores, asked @ weights, rtol=1e-6, atol=1e-7)
        np.testing.assert_allclose(ridge.classifier(strength).scores(others), scores, rtol=1e-9, atol=1e-9)


@SIZES
def test_an_image_left_out_is_judged_by_the_regression_on_the_others(num_images: int) -> None:
    features, labels = planted(num_images)
    shown, wanted = inputs(features, features), targets(labels, CLASSES)
    for strength, scores in Ridge(features, labels, num_classes=CLASSES).left_out():
        for row in range(num_images):
            others = np.arange(num_images) != row
            gram = shown[others].T @ shown[others] + strength * np.eye(shown.shape[1])
            weights = np.linalg.solve(gram, shown[others].T @ wanted[others])
            np.testing.assert_allclose(scores[row], shown[row] @ weights, rtol=1e-5, atol=1e-6)


def test_a_single_shot_is_fitted_exactly_by_the_weakest_penalty() -> None:
    features, labels = planted(CLASSES)
    scores = Ridge(features, labels, num_classes=CLASSES).classifier(STRENGTHS[0]).scores(features)
    np.testing.assert_allclose(scores, targets(labels, CLASSES), atol=1e-3)


def by_hand(candidates: list[tuple[float, np.ndarray]], labels: np.ndarray) -> float:
    chosen, right, missed = 0.0, -1, 0.0
    for strength, scores in candidates:
        hits, error = 0, 0.0
        for row, label in zip(scores, labels, strict=True):
            hits += int(np.argmax(row)) == label
            error += sum((score - (1 if c == label else -1)) ** 2 for c, score in enumerate(row))
        if hits > right or (hits == right and error <= missed):
            chosen, right, missed = strength, hits, error
    return chosen


@pytest.mark.parametrize("seed", range(8))
def test_the_strength_is_the_one_a_plain_loop_takes(seed: int) -> None:
    features, labels = planted(24, seed=seed)
    held_out, classes = planted(28, seed=seed + 100)
    ridge = Ridge(features, labels, num_classes=CLASSES)
    for candidates, asked in ((list(ridge.along(held_out)), classes), (list(ridge.left_out()), labels)):
        chosen = choose_strength(candidates, asked)
        assert chosen == by_hand(candidates, asked)
        # It is not for nothing that one is chosen.
        accuracies = {np.mean(scores.argmax(1) == asked) for _, scores in candidates}
        assert len(accuracies) > 1


def test_accuracy_then_error_then_strength_decide() -> None:
    labels = np.array([0, 1])
    right, better = np.array([[0.1, -0.1], [-0.1, 0.1]]), np.array([[0.9, -0.9], [-0.9, 0.9]])
    wrong = np.array([[1.0, -1.0], [0.2, 0.1]])  # half right, with a smaller error than ``right``
    assert np.square(wrong - targets(labels, 2)).mean() < np.square(right - targets(labels, 2)).mean()
    assert choose_strength([(1.0, wrong), (2.0, right)], labels) == 2.0
    assert choose_strength([(1.0, better), (2.0, right)], labels) == 1.0
    assert choose_strength([(1.0, right), (2.0, right)], labels) == 2.0
