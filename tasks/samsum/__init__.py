"""SAMSum: summaries of chat dialogues."""
