"""Kinds of work of cells on a loaded model: generation, log-likelihoods, classification. One class per kind of work.

Each class builds its requests from documents, answers, scores, records, times and fits them, and checks suites when
they are planned. No module outside depends on the kind of a task.
"""
