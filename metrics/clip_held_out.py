"""How well the tiny CLIP tells real scenes apart: what its figures on generated images rest on.

Why: "CLIP prefers the right caption for 70 % of the generated images" says nothing unless CLIP
itself is right on real ones. The scenes are of the valid split, drawn anew and never trained on.
"""

from __future__ import annotations

from typing import Any

import torch

from decoders.tiny.scenes import ATTRIBUTES, counterfactual, scene_batch
from metrics.clip import attribute_preference, retrieval_at_1
from metrics.scenes_clip import ScenesClip


def held_out_figures(clip: ScenesClip, count: int, first: int) -> dict[str, Any]:
    """Held-out figures on `count` scenes of the valid split from index `first` on.

    retrieval: R@1 among (at most) 256 scenes, both ways. preference: right over wrong caption, the
    attribute drawn by `counterfactual`; preference_by_attribute: each attribute on every scene that
    has it.
    """
    indices = list(range(first, first + count))
    scenes = scene_batch("valid", indices)
    images = torch.from_numpy(scenes.images)
    pool = min(count, 256)
    to_text, to_image = retrieval_at_1(clip, images[:pool], scenes.captions[:pool])
    overall = attribute_preference(clip, images, [counterfactual("valid", i) for i in indices])
    by_attribute = {}
    for name in ATTRIBUTES:
        rows = [
            row
            for row, spec in enumerate(scenes.specs)
            if name != "relation" or spec.relation is not None
        ]
        pairs = [counterfactual("valid", indices[row], attribute=name) for row in rows]
        by_attribute[name] = round(attribute_preference(clip, images[rows], pairs).share.value, 4)
    return {
        "scenes": count,
        "retrieval_pool": pool,
        "retrieval_image_to_text": round(to_text, 4),
        "retrieval_text_to_image": round(to_image, 4),
        "preference": round(overall.share.value, 4),
        "preference_by_attribute": by_attribute,
    }
