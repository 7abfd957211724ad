#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A program that uses the driver API and an OpenSSL of its own at the same time, also in a forked child.

Usage: causeway run [--tls] -- remote_program.py FOLDER_OF_LIBCUDA. It exits 0 when all bytes came back as they were sent.
"""
import ctypes
import hashlib
import os
import ssl
import sys

BYTES = 5_000_011
ROUNDS = 3


def check(result, what):
    if result != 0:
        sys.exit(f"{what} answers {result}")


def copy_both_ways(cuda, seed):
    """Random bytes to the device, from there to another place of it, and back."""
    check(cuda.cuInit(0), "cuInit")
    context, device = ctypes.c_void_p(), ctypes.c_int()
    check(cuda.cuDeviceGet(ctypes.byref(device), 0), "cuDeviceGet")
    check(cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), device), "cuDevicePrimaryCtxRetain")
    check(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent")
    first, second = ctypes.c_uint64(), ctypes.c_uint64()
    for place in (first, second):
        check(cuda.cuMemAlloc_v2(ctypes.byref(place), ctypes.c_size_t(BYTES)), "cuMemAlloc")
    for round_ in range(ROUNDS):
        sent = os.urandom(BYTES - seed - round_)
        back = ctypes.create_string_buffer(len(sent))
        size = ctypes.c_size_t(len(sent))
        check(cuda.cuMemcpyHtoD_v2(first, sent, size), "cuMemcpyHtoD")
        check(cuda.cuMemcpyDtoD_v2(second, first, size), "cuMemcpyDtoD")
        own_openssl()
        check(cuda.cuMemcpyDtoH_v2(back, second, size), "cuMemcpyDtoH")
        if hashlib.sha256(back.raw).digest() != hashlib.sha256(sent).digest():
            sys.exit("the bytes that came back are others")


def own_openssl():
    """The first message of a handshake by Python's OpenSSL, whose error queue must be as it left it."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = ssl.create_default_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        client.do_handshake()
        sys.exit("a handshake without a peer is done")
    except ssl.SSLWantReadError:
        pass
    if outgoing.pending == 0:
        sys.exit("Python's OpenSSL has nothing to send")
    incoming.write(b"no answer of TLS")
    try:
        client.do_handshake()
        sys.exit("a handshake with nonsense is done")
    except ssl.SSLError:
        pass


def main():
    own_openssl()
    cuda = ctypes.CDLL(os.path.join(sys.argv[1], "libcuda.so.1"))
    # Before the first session, so that parent and child each have one of their own.
    child = os.fork()
    copy_both_ways(cuda, 0 if child == 0 else 1)
    if child == 0:
        os._exit(0)
    if os.waitpid(child, 0)[1] != 0:
        sys.exit("the child that was forked before the first session failed")
    # And with the parent's session open: the child may end without harm to it.
    child = os.fork()
    if child == 0:
        own_openssl()
        os._exit(0)
    os.waitpid(child, 0)
    copy_both_ways(cuda, 2)


if __name__ == "__main__":
    main()
