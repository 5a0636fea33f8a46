"""The losses against slow sums, and who sees whom while drafting."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from llm.adapt.data import Batch
from llm.adapt.model import Backbone, Drafter
from llm.adapt.objective import Observed, draft_loss, observe, speak_loss
from llm.models.adapted import AdaptedCheckpoint
from llm.models.gguf import GgufFile
from llm.models.linear import FloatLinear
from llm.models.transformer import KVCache, Transformer
from tests.llm.tiny_adapted import CONFIG, write_tiny_adapted


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> AdaptedCheckpoint:
    folder: Path = write_tiny_adapted(tmp_path_factory.mktemp("objective"), seed=2)
    return AdaptedCheckpoint(GgufFile(folder / "model.gguf"), folder)


def random_batch(seed: int, rows: int = 3, length: int = 24) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(4, 260, (rows, length), generator=generator)
    spoken = torch.rand(rows, length, generator=generator) < 0.4
    spoken[:, 0] = False
    return Batch(ids, spoken)


def test_speaking_is_judged_on_what_the_assistant_says(checkpoint: AdaptedCheckpoint) -> None:
    batch = random_batch(0)
    reference = Transformer(checkpoint, FloatLinear)
    losses = []
    for ids, spoken in zip(batch.ids, batch.spoken, strict=True):
        cache = KVCache(reference.config, len(ids))
        hidden = reference.forward(ids, 0, torch.arange(len(ids)) + 1, cache)
        chances = reference.logits(hidden).log_softmax(-1)
        losses += [-float(chances[i - 1, ids[i]]) for i in range(len(ids)) if spoken[i]]
    found = speak_loss(Backbone(checkpoint, 0), batch).item()
    # bfloat16 against float32.
    assert found == pytest.approx(sum(losses) / len(losses), rel=0.05)


def drafts(drafter: Drafter, observed: Observed, anchor: int) -> torch.Tensor:
    anchors = torch.full((len(observed.batch.ids), 1), anchor)
    with torch.no_grad():
        return drafter(observed.states, observed.batch.ids, anchors)[:, 0].float()


def test_a_draft_sees_the_text_up_to_the_token_behind_its_anchor(
    checkpoint: AdaptedCheckpoint,
) -> None:
    drafter, backbone = Drafter(checkpoint, CONFIG), Backbone(checkpoint, 0)
    batch = random_batch(1)
    before = drafts(drafter, observe(backbone, batch, CONFIG.depths), 10)
    for changed, matters in ((5, True), (10, True), (11, True), (12, False), (20, False)):
        ids = batch.ids.clone()
        ids[:, changed] = (ids[:, changed] + 7) % 250 + 4
        after = drafts(drafter, observe(backbone, Batch(ids, batch.spoken), CONFIG.depths), 10)
        assert torch.equal(before, after) != matters, f"token {changed}"


def test_anchors_do_not_see_each_other(checkpoint: AdaptedCheckpoint) -> None:
    drafter, backbone = Drafter(checkpoint, CONFIG), Backbone(checkpoint, 0)
    observed = observe(backbone, random_batch(2), CONFIG.depths)
    anchors = torch.tensor([[3, 9, 15]] * 3)
    with torch.no_grad():
        together = drafter(observed.states, observed.batch.ids, anchors)
    for index, anchor in enumerate((3, 9, 15)):
        alone = drafts(drafter, observed, anchor)
        assert torch.allclose(together[:, index].float(), alone, atol=0.1)


def test_masks_see_each_other(checkpoint: AdaptedCheckpoint) -> None:
    drafter, backbone = Drafter(checkpoint, CONFIG), Backbone(checkpoint, 0)
    observed = observe(backbone, random_batch(3), CONFIG.depths)
    before = drafts(drafter, observed, 8)
    with torch.no_grad():
        drafter.masks[-1] += 1
    after = drafts(drafter, observed, 8)
    assert torch.equal(before[:, 0], after[:, 0]), "the clean row sees no mask"
    assert not torch.equal(before[:, 1], after[:, 1])


def test_only_drafts_on_the_models_own_path_count(checkpoint: AdaptedCheckpoint) -> None:
    """A drafter that is always right is as useful as the text lets it be."""
    batch = random_batch(4, rows=1, length=16)
    batch.spoken[:] = False
    batch.spoken[0, 5:12] = True
    observed = observe(Backbone(checkpoint, 0), batch, CONFIG.depths)
    observed.best[:] = CONFIG.token_ids[3]
    # The model agrees with the text at 7 and 8 and nowhere else.
    batch.ids[0, 7:9] = CONFIG.token_ids[3]
    drafter = Drafter(checkpoint, CONFIG)
    _, useful = draft_loss(drafter, observed)
    wanted: list[list[bool]] = []
    for anchor in range(4, 11):
        row, on_path = [], True
        for j in range(1, CONFIG.num_drafts + 1):
            place = anchor + j
            row.append(on_path and bool(batch.spoken[0, place]))
            on_path = row[-1] and bool(batch.ids[0, place + 1] == CONFIG.token_ids[3])
        wanted.append(row)
    anchors = torch.tensor([list(range(4, 11))])
    hidden = drafter(observed.states, batch.ids, anchors)
    best = torch.tensor(CONFIG.token_ids)[(hidden @ drafter.head.T).argmax(-1)][0]
    expected = torch.zeros(CONFIG.num_drafts)
    for row, tokens in zip(wanted, best, strict=True):
        for j, counts in enumerate(row):
            if not counts or int(tokens[j]) != CONFIG.token_ids[3]:
                break
            expected[j] += 1
    assert torch.allclose(useful, expected / sum(row[0] for row in wanted))
