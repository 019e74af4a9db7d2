"""Work: what a cell computes with a loaded model. One class per kind: generation, log-likelihoods, classification.

Each class builds its requests from documents, answers them, and scores, records and times the answers. It also
provides the data of fits, and checks suites when they are planned. No module outside this package depends on the kind
of a task.
"""
