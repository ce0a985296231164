"""Reads of the underlying stores whose bytes are proven to be of one version.

``source`` says what a source offers, ``opening`` builds one from a spec in each process; one module for each way to
prove a version: ``s3``, ``http``, ``local``, ``memory``, and ``generic`` for every other fsspec filesystem.
"""
