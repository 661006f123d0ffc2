"""A tiny CLIP with random weights: the room's tests do not need the trained one."""

import pytest
import torch

from decoders.tiny.render import scene_batch
from decoders.tiny.scenes import vocabulary
from metrics.clip import ClipConfig, ScenesClip
from metrics.images import ImageSet, byte_images


def small_config(embed_dim: int = 16) -> ClipConfig:
    words = tuple(vocabulary())
    return ClipConfig(
        embed_dim=embed_dim,
        vision={"layers": 1, "width": 32, "head_width": 16, "patch_size": 16, "image_size": 64},
        text={
            "context_length": 40,
            "vocab_size": len(words) + 3,
            "width": 32,
            "heads": 2,
            "layers": 1,
        },
        words=words,
    )


@pytest.fixture(scope="session")
def clip() -> ScenesClip:
    torch.manual_seed(0)
    return ScenesClip(small_config())


@pytest.fixture(scope="session")
def images() -> ImageSet:
    """Of 40 scenes."""
    return byte_images(torch.from_numpy(scene_batch("valid", range(40)).images))
