"""The first half hour on a GPU: stages, each in a process of its own and with a verdict of its own,
so that a card that is lost, or a stage that fails, takes no other stage along."""
