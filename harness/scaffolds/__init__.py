"""Scaffolds: files to begin with, of a method, a task or a suite: `exitbench new`."""
