"""All heads trained as one model equal each head trained alone."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from torch import nn

from candor_monai.networks.linear_heads import HeadOptions, batch_order, initial_head, train_linear_heads

FINDINGS = ["Edema", "Effusion", "Fracture"]


def _data(n: int = 300, d: int = 16, seed: int = 0) -> tuple[torch.Tensor, np.ndarray]:
    rng = np.random.default_rng(seed)
    labels = (rng.random((n, 3)) < [0.5, 0.2, 0.03]).astype(np.int8)
    x = rng.normal(size=(n, d))
    x[:, :3] += 2 * labels
    labels[rng.random((n, 3)) < 0.2] = -1
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return torch.tensor(x, dtype=torch.float32), labels


def _alone(
    x: torch.Tensor, labels: np.ndarray, finding: str, member: int, options: HeadOptions
) -> tuple[torch.Tensor, torch.Tensor]:
    """One head in a plain PyTorch loop: nn.Linear, autograd, torch.optim.Adam."""
    head = nn.Linear(x.shape[1], 1)
    weight, bias = initial_head(options.seed, member, finding, x.shape[1])
    with torch.no_grad():
        head.weight.copy_(weight[None])
        head.bias.copy_(bias[None])
    adam = torch.optim.Adam(head.parameters(), lr=options.learning_rate, weight_decay=options.weight_decay)
    y = torch.tensor(labels[:, FINDINGS.index(finding)])
    for epoch in range(options.epochs):
        for rows in batch_order(options.seed, member, epoch, len(x)).split(options.batch_size):
            known = y[rows] >= 0
            adam.zero_grad()
            logits = head(x[rows])[:, 0]
            losses = nn.functional.binary_cross_entropy_with_logits(logits, (y[rows] == 1).float(), reduction="none")
            (losses * known).sum().div(known.sum().clamp_min(1)).backward()
            adam.step()
    return head.weight.detach()[0], head.bias.detach()[0]


def test_one_step_by_hand() -> None:
    # Adam's first step is the learning rate in the gradient's direction, whatever its size
    x, labels = torch.tensor([[1.0, 0.0]]), np.array([[1]])
    options = HeadOptions(members=1, epochs=1, weight_decay=0.0, learning_rate=0.01)
    weight, bias = initial_head(42, 0, "Edema", 2)
    found = train_linear_heads(x, labels, ["Edema"], options)
    assert (found.weight[0, 0] - weight).tolist() == pytest.approx([0.01, 0.0], abs=1e-6)
    assert float(found.bias[0, 0] - bias) == pytest.approx(0.01, abs=1e-6)


@pytest.mark.parametrize("batch_size", [64, 77, 1000])
def test_equals_training_each_head_alone(batch_size: int) -> None:
    x, labels = _data()
    options = HeadOptions(members=3, epochs=10, batch_size=batch_size)
    found = train_linear_heads(x, labels, FINDINGS, options)
    for member in range(3):
        for f, finding in enumerate(FINDINGS):
            weight, bias = _alone(x, labels, finding, member, options)
            assert torch.allclose(found.weight[member, f], weight, atol=2e-6)
            assert torch.allclose(found.bias[member, f], bias, atol=2e-6)


def test_another_finding_or_member_beside_it_changes_no_head() -> None:
    x, labels = _data()
    both = train_linear_heads(x, labels, FINDINGS, HeadOptions(members=2, epochs=3, batch_size=64))
    one = train_linear_heads(x, labels[:, 1:2], FINDINGS[1:2], HeadOptions(members=1, epochs=3, batch_size=64))
    assert torch.allclose(both.weight[0, 1], one.weight[0, 0], atol=1e-6)


def test_two_runs_are_identical() -> None:
    x, labels = _data()
    first, second = (train_linear_heads(x, labels, FINDINGS, HeadOptions(epochs=3)) for _ in range(2))
    assert torch.equal(first.weight, second.weight)
    assert torch.equal(first.bias, second.bias)


def test_members_and_seeds_differ() -> None:
    x, labels = _data()
    found = train_linear_heads(x, labels, FINDINGS, HeadOptions(members=2, epochs=1))
    other = train_linear_heads(x, labels, FINDINGS, HeadOptions(members=2, epochs=1, seed=1))
    assert not torch.allclose(found.weight[0], found.weight[1], atol=1e-3)
    assert not torch.allclose(found.weight, other.weight, atol=1e-3)


def test_the_optimum_is_scikit_learns() -> None:
    """Full batches and many steps reach the minimum of the convex problem, which scikit-learn finds its own way."""
    x, labels = _data(seed=3)
    decay = 0.02
    options = HeadOptions(members=1, epochs=1500, batch_size=len(x), learning_rate=0.02, weight_decay=decay)
    found = train_linear_heads(x, labels, FINDINGS, options)
    for f in range(3):
        kept = labels[:, f] >= 0
        design = np.concatenate([x.numpy()[kept], np.ones((kept.sum(), 1))], axis=1)  # the bias decays as well
        expected = LogisticRegression(C=1 / (decay * kept.sum()), fit_intercept=False, tol=1e-10, max_iter=5000)
        expected.fit(design, labels[kept, f])
        ours = np.append(found.weight[0, f].numpy(), found.bias[0, f].numpy())
        assert ours == pytest.approx(expected.coef_[0], abs=1e-3)


def test_a_finding_without_labels_only_decays() -> None:
    x, labels = _data()
    labels[:, 2] = -1
    found = train_linear_heads(x, labels, FINDINGS, HeadOptions(epochs=2, members=1))
    assert torch.isfinite(found.weight).all()
    assert found.weight[0, 2].norm() < initial_head(42, 0, "Fracture", 16)[0].norm()


def test_separable_findings_stay_finite() -> None:
    x = torch.eye(8)
    labels = (np.arange(8) < 4).astype(np.int8)[:, None].repeat(3, axis=1)
    found = train_linear_heads(x, labels, FINDINGS, HeadOptions(epochs=200, learning_rate=0.1))
    logits = x @ found.weight[0, 0] + found.bias[0, 0]
    assert torch.isfinite(found.weight).all()
    assert bool((logits[:4] > logits[4:].max()).all())


def test_bad_input_is_refused() -> None:
    x, labels = _data()
    with pytest.raises(ValueError, match="do not fit"):
        train_linear_heads(x, labels[:-1], FINDINGS)
    with pytest.raises(ValueError, match="do not fit"):
        train_linear_heads(x[:0], labels[:0], FINDINGS)
    with pytest.raises(ValueError, match="members"):
        HeadOptions(members=0)
    with pytest.raises(ValueError, match="learning_rate"):
        HeadOptions(learning_rate=0)
