"""The ranks of a pipeline: messages between them, agreement before a step, and the alarm when one fails."""
