"""Built-in data: generated documents of four tasks, in which every target word has a known kind.

They need no network and no licence, and have the fields of the real data sets. Their difficulty varies from token to
token: what each word depends on is known (see `words.Kind`).
"""

from exitbench.tasks.builtin.corpus import TASKS, TEXT_TASKS, build_tokenizer, documents, vocabulary

__all__ = ["TASKS", "TEXT_TASKS", "build_tokenizer", "documents", "vocabulary"]
