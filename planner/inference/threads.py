"""Threads of the linear algebra library, held while many small matrices are worked on."""

import functools
from contextlib import AbstractContextManager

import threadpoolctl


@functools.cache
def _controller() -> threadpoolctl.ThreadpoolController:
    return threadpoolctl.ThreadpoolController()  # finding the libraries takes milliseconds, so once


def one_blas_thread() -> AbstractContextManager[object]:
    """A context in which the linear algebra library uses one thread."""
    return _controller().limit(limits=1, user_api="blas")
