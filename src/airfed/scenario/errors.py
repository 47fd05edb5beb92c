"""What is wrong with a scenario."""


class ScenarioError(ValueError):
    """A scenario is wrong; the message is the user's, in one sentence."""
