"""Reinforcement learning with rewards that a program checks: which prompts are worth a group of answers?

A prompt is an image of a digit, an answer the name of a digit, and a checker gives reward 1 for the right one. As with
language models, each prompt gets a group of answers, and an answer's advantage is its reward minus the mean of its
group. Every seventh checker is broken and accepts nothing.

The score of a prompt is the variance of its group's rewards. Where all answers are right, or none is, it is zero and so
are all advantages: the prompt teaches nothing. `update` stores it for the prompts trained on. A prompt that was
hopeless may come within reach later, so before each epoch a few of those left out get a group of answers without
training, and `observe` writes their variance.

    python -m examples.prompt_rewards [--epochs 20] [--seeds 0,1,2] [--prune-ratio 0.4]
"""

from __future__ import annotations

import time

import torch
from examples.comparing import Result, compare, read_options
from examples.digits import load
from torch import nn

import orderdp
from orderdp.policies import DynamicRandom

BATCH_SIZE = 32  # prompts
GROUP = 8  # answers to each
PROBED = 0.1  # fraction of the prompts that are answered without training before an epoch
BROKEN = 7  # every seventh checker accepts nothing


def rewards_of(answers: torch.Tensor, digits: torch.Tensor, prompts: torch.Tensor) -> torch.Tensor:
    """What the checkers of the prompts say to each of their answers."""
    works = prompts % BROKEN != 0
    return ((answers == digits.unsqueeze(1)) & works.unsqueeze(1)).float()


def group_losses(
    model: nn.Module, images: torch.Tensor, digits: torch.Tensor, prompts: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Policy-gradient loss of each prompt, and the variance of its rewards."""
    said = torch.distributions.Categorical(logits=model(images))
    answers = said.sample((GROUP,))
    rewards = rewards_of(answers.T, digits, prompts)
    advantages = rewards - rewards.mean(1, keepdim=True)
    losses = -(advantages * said.log_prob(answers).T).mean(1)
    return losses, rewards.var(1, correction=0)


def train(policy: orderdp.Policy, epochs: int, seed: int, learning_rate: float = 3e-3) -> Result:
    torch.manual_seed(seed)
    train_set, test_set = load()
    images, digits = train_set.tensors
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=learning_rate)
    pruner = orderdp.Pruner(policy, train_set, seed=seed, epochs=epochs)
    loader = pruner.loader(train_set, batch_size=BATCH_SIZE)

    start = time.process_time()
    for epoch in range(epochs):
        if epoch > 0 and policy.needs_feedback:
            left_out = (pruner.last_seen_epoch < epoch - 1).nonzero().flatten()
            probed = left_out[torch.randperm(len(left_out))[: round(PROBED * pruner.n)]]
            with torch.no_grad():
                pruner.observe(probed, group_losses(model, images[probed], digits[probed], probed)[1])
        for index, (pictures, names) in loader:
            losses, variances = group_losses(model, pictures, names, index)
            loss = pruner.update(index, losses, scores=variances)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    seconds = time.process_time() - start
    x, y = test_set.tensors
    with torch.no_grad():
        accuracy = 100 * (model(x).argmax(1) == y).float().mean().item()
    return Result(accuracy, pruner.report()["kept"], seconds, pruner, model)


def main(arguments: list[str] | None = None) -> dict[str, list[Result]]:
    options = read_options(__doc__, epochs=20, seeds="0,1,2", arguments=arguments)
    return compare(train, options, "right answers %", policies=(DynamicRandom(options.prune_ratio),))


if __name__ == "__main__":
    main()
