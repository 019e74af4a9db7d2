"""The early-exit methods: each a named combination of gate, threshold, head and KV policy.

To add a method, write one file in this folder with a class decorated by `register`; nothing else is edited.
"""
