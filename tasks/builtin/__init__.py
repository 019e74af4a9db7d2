"""Built-in data: generated documents of four tasks, in which it is known what each target word depends on.

They need no network and no licence, and have the fields of the real data sets. Their difficulty varies from token to
token: every target word has a kind (see `words.Kind`).
"""

from exitbench.tasks.builtin.corpus import TASKS, TEXT_TASKS, build_tokenizer, documents, vocabulary

__all__ = ["TASKS", "TEXT_TASKS", "build_tokenizer", "documents", "vocabulary"]
