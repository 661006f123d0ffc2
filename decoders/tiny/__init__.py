"""The embedded models: data set, recipes, weights and loader. Small, but trained, and real."""
