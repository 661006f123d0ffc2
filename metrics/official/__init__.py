"""The networks of the papers' protocol (METHODS section 5), read from local files of the public
weights: Inception, VGG16, CLIP ViT-B/32, HPSv2.1. Nothing here downloads anything."""
